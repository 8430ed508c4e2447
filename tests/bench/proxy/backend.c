/* A stub of an OpenAI-like server, for benchmarks of proxies. It computes nothing.
 *
 *     backend PORT[-LAST] CHUNKS TICK_MS        listens on 127.0.0.1; runs until it is killed
 *
 * POST, "stream": true     SSE. The head at once; then one event per tick, of all streams of that
 *                          port together, as a batching engine emits them: "max_tokens" (else
 *                          CHUNKS) of content, then [DONE]. One write and one HTTP chunk per event.
 * POST, anything else      one JSON answer with Content-Length, at once; with "max_tokens" above
 *                          LARGE_TOKENS a long one, TOKEN_BYTES for each.
 * GET /health, /v1/models  as vLLM answers them.
 * GET /stub/counters       what all ports sent so far, as JSON; a benchmark takes differences.
 * GET /stub/tick/MS        another tick from now on, for all ports.
 *
 * Each port stands for a replica. They take turns within a tick: engines are not in step either.
 *
 * Rules: requests on one connection are answered in order, however they were cut into reads. What
 * the socket does not take waits in `out`; while SLOW_BYTES of it wait, that stream makes no more
 * (a slow reader costs its own stream only). A body needs Content-Length. A client that closes, or
 * half closes, is gone and so is its stream. Out of descriptors: the newcomer is closed, the
 * listener lives.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    HEAD_MAX = 64 << 10,  /* a longer request head is refused */
    BODY_MAX = 64 << 20,  /* a longer body too */
    READ_MIN = 16 << 10,  /* room made before each read */
    SLOW_BYTES = 64 << 10,
    EVENTS = 512,
    PORTS_MAX = 64,
    LARGE_TOKENS = 1000,
    TOKEN_BYTES = 4,
};

struct bytes {
    char *at;
    size_t used, room;
};

struct port {
    int listener;
    struct client **streams; /* those that are open, in no order */
    int open, room;
};

struct client {
    int fd;
    struct port *port;
    struct bytes in, out;
    size_t whole;         /* bytes of the request at the front of `in`; 0: head not yet complete */
    size_t owed;          /* bytes of a large answer that were not made yet */
    int slot;             /* its index among its port's streams, -1: none */
    int events_left;      /* of its stream, [DONE] included */
    bool closing;         /* close when `out` is empty */
    uint32_t watched;     /* what epoll watches for */
    struct client *next_dead;
};

static struct {
    unsigned long connections, requests, unary, streams, streams_done, events, refused;
} counted;

static int poller, spare_fd, timer, chunks;
static struct port ports[PORTS_MAX];
static int port_count;
static struct client *dead; /* freed after the current batch of events, which may name them */

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* ---- bytes ---- */

static void make_room(struct bytes *b, size_t more) {
    if (b->room - b->used >= more) return;
    size_t room = b->room ? b->room : READ_MIN;
    while (room - b->used < more) room *= 2;
    b->at = realloc(b->at, room);
    if (!b->at) die("realloc");
    b->room = room;
}

static void append(struct bytes *b, const char *from, size_t n) {
    make_room(b, n);
    memcpy(b->at + b->used, from, n);
    b->used += n;
}

static void drop_front(struct bytes *b, size_t n) {
    memmove(b->at, b->at + n, b->used - n);
    b->used -= n;
}

/* ---- one client's connection ---- */

static void forget_stream(struct client *c) {
    if (c->slot < 0) return;
    struct client *last = c->port->streams[--c->port->open];
    c->port->streams[c->slot] = last;
    last->slot = c->slot;
    c->slot = -1;
}

static void hang_up(struct client *c) {
    if (c->fd < 0) return;
    forget_stream(c);
    close(c->fd);
    c->fd = -1;
    c->next_dead = dead;
    dead = c;
}

static void bury_the_dead(void) {
    while (dead) {
        struct client *c = dead;
        dead = c->next_dead;
        free(c->in.at);
        free(c->out.at);
        free(c);
    }
}

/* Read while there is nothing to finish first; write while something waits. */
static void watch(struct client *c) {
    bool answering = c->slot >= 0 || c->owed;
    bool busy = c->closing || (answering && c->in.used >= HEAD_MAX) || c->out.used >= SLOW_BYTES;
    bool unsent = c->out.used || c->owed;
    uint32_t wanted = EPOLLRDHUP | (busy ? 0 : EPOLLIN) | (unsent ? EPOLLOUT : 0);
    if (wanted == c->watched) return;
    struct epoll_event event = {.events = wanted, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event) < 0) die("epoll_ctl");
    c->watched = wanted;
}

/* Send now what the socket takes, keep the rest. */
static void send_bytes(struct client *c, const char *from, size_t n) {
    ssize_t sent = 0;
    if (c->fd < 0) return;
    if (c->out.used == 0) {
        sent = send(c->fd, from, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            hang_up(c);
            return;
        }
        if (sent < 0) sent = 0;
    }
    if ((size_t)sent < n) append(&c->out, from + sent, n - sent);
}

static void send_waiting(struct client *c) {
    ssize_t sent = send(c->fd, c->out.at, c->out.used, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) hang_up(c);
    if (sent > 0) drop_front(&c->out, sent);
    if (c->closing && c->out.used == 0) hang_up(c);
}

/* Head and `json` in one write; the head promises `more` bytes behind it. */
static void begin_answer(struct client *c, const char *status, const char *json, size_t more) {
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nserver: stub\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n%s\r\n",
                     status, strlen(json) + more, c->closing ? "connection: close\r\n" : "");
    struct bytes whole = {0};
    append(&whole, head, n);
    append(&whole, json, strlen(json));
    send_bytes(c, whole.at, whole.used);
    free(whole.at);
}

static void answer(struct client *c, const char *status, const char *json) {
    begin_answer(c, status, json, 0);
}

static void refuse(struct client *c, const char *status) {
    counted.refused++;
    c->closing = true;
    answer(c, status, "{\"error\":{\"message\":\"refused by the stub\"}}");
    if (c->fd >= 0 && c->out.used == 0) hang_up(c);
}

/* ---- streams ---- */

#define SSE_HEAD                                                                               \
    "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"    \
    "transfer-encoding: chunked\r\n\r\n"
#define TOKEN                                                                                  \
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","        \
    "\"created\":1764450000,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":"           \
    "{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define LAST "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

static char token[512]; /* TOKEN as an HTTP chunk */
static int token_bytes;

static void begin_stream(struct client *c, int tokens) {
    struct port *port = c->port;
    counted.streams++;
    send_bytes(c, SSE_HEAD, strlen(SSE_HEAD));
    if (c->fd < 0) return;
    if (port->open == port->room) {
        port->room = port->room ? 2 * port->room : 256;
        port->streams = realloc(port->streams, port->room * sizeof *port->streams);
        if (!port->streams) die("realloc");
    }
    c->events_left = tokens + 1;
    c->slot = port->open;
    port->streams[port->open++] = c;
}

static void answer_requests(struct client *c);

/* Backwards, since a stream that ends is replaced by the last one, which had its turn. A request
 * that waited behind an ended stream may begin one here: it comes last and waits for its tick. */
static void tick(struct port *port) {
    for (int i = port->open - 1; i >= 0; i--) {
        struct client *c = port->streams[i];
        if (c->out.used >= SLOW_BYTES) continue;
        counted.events++;
        if (--c->events_left > 0) {
            send_bytes(c, token, token_bytes);
        } else {
            counted.streams_done++;
            forget_stream(c);
            send_bytes(c, LAST, strlen(LAST));
            answer_requests(c);
        }
        if (c->fd >= 0) watch(c);
    }
}

static void set_tick(int tick_ms) {
    long every_ns = tick_ms * 1000000L / port_count;
    struct timespec every = {every_ns / 1000000000L, every_ns % 1000000000L};
    struct itimerspec when = {every, every};
    if (timerfd_settime(timer, 0, &when, NULL) < 0) die("timerfd");
}

/* The ports whose turn it is; a turn that was missed altogether is late, not made up for. */
static void take_turns(void) {
    static int turn;
    uint64_t due, most = port_count;
    if (read(timer, &due, sizeof due) < 0) return;
    for (uint64_t n = due < most ? due : most; n > 0; n--) {
        tick(&ports[turn]);
        turn = (turn + 1) % port_count;
    }
}

/* ---- large answers ---- */

#define LARGE_HEAD "{\"object\":\"chat.completion\",\"choices\":[{\"message\":{\"content\":\""
#define LARGE_TAIL "\"}}]}"

/* Make and send the next part, when the last one has gone. */
static void send_more(struct client *c) {
    static char part[SLOW_BYTES];
    if (c->fd < 0 || !c->owed || c->out.used) return;
    if (!part[0]) memset(part, 'x', sizeof part);
    size_t n = c->owed < sizeof part ? c->owed : sizeof part;
    c->owed -= n;
    send_bytes(c, part, n);
    if (!c->owed) send_bytes(c, LARGE_TAIL, strlen(LARGE_TAIL));
}

/* ---- requests ---- */

/* The value of a header of the head at `c->in`, up to its line's end, or NULL. */
static const char *header(const char *head, size_t n, const char *name) {
    size_t length = strlen(name);
    for (const char *line = head; (line = memchr(line, '\n', head + n - line)); ) {
        line++;
        if ((size_t)(head + n - line) > length && !strncasecmp(line, name, length) &&
            line[length] == ':')
            return line + length + 1;
    }
    return NULL;
}

/* Measure the request at the front of `in`: true when it is there whole. */
static bool request_is_whole(struct client *c) {
    if (c->whole == 0) {
        char *end = memmem(c->in.at, c->in.used, "\r\n\r\n", 4);
        if (!end) {
            if (c->in.used > HEAD_MAX) refuse(c, "431 Request Header Fields Too Large");
            return false;
        }
        size_t head = end + 4 - c->in.at;
        const char *length = header(c->in.at, head, "content-length");
        if (header(c->in.at, head, "transfer-encoding")) {
            refuse(c, "411 Length Required");
            return false;
        }
        unsigned long body = length ? strtoul(length, NULL, 10) : 0;
        if (body > BODY_MAX) {
            refuse(c, "413 Content Too Large");
            return false;
        }
        c->whole = head + body;
    }
    return c->in.used >= c->whole;
}

/* A top-level `"stream": true`, give or take blanks: within a string the quotes are escaped. */
static bool asks_for_stream(const char *body, size_t n) {
    const char *end = body + n;
    for (const char *p = body; (p = memmem(p, end - p, "\"stream\"", 8)); ) {
        p += 8;
        while (p < end && (*p == ' ' || *p == ':')) p++;
        if (end - p >= 4 && !memcmp(p, "true", 4)) return true;
    }
    return false;
}

/* The top-level "max_tokens", else `otherwise`. */
static int tokens_asked(const char *body, size_t n, int otherwise) {
    const char *end = body + n, *p = memmem(body, n, "\"max_tokens\"", 12);
    if (!p) return otherwise;
    for (p += 12; p < end && (*p == ' ' || *p == ':'); p++) continue;
    int tokens = 0;
    for (; p < end && *p >= '0' && *p <= '9' && tokens < 100000000; p++)
        tokens = 10 * tokens + *p - '0';
    return tokens;
}

#define JSON_ANSWER                                                                            \
    "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\","                    \
    "\"created\":1764450000,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"message\":"         \
    "{\"role\":\"assistant\",\"content\":\"hello world, hello world\"},\"logprobs\":null,"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,"    \
    "\"total_tokens\":15}}"
#define JSON_MODELS                                                                            \
    "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":"        \
    "1764450000,\"owned_by\":\"vllm\",\"root\":\"tiny\",\"parent\":null,"                      \
    "\"max_model_len\":2048}]}"

static void answer_post(struct client *c, const char *body, size_t n) {
    int tokens = tokens_asked(body, n, chunks);
    counted.requests++;
    if (asks_for_stream(body, n)) {
        begin_stream(c, tokens);
        return;
    }
    counted.unary++;
    if (tokens <= LARGE_TOKENS) {
        answer(c, "200 OK", JSON_ANSWER);
        return;
    }
    c->owed = (size_t)tokens * TOKEN_BYTES;
    begin_answer(c, "200 OK", LARGE_HEAD, c->owed + strlen(LARGE_TAIL));
    send_more(c);
}

static void answer_get(struct client *c, const char *path) {
    char json[512];
    int open = 0;
    if (!strncmp(path, "/health ", 8)) {
        answer(c, "200 OK", "");
    } else if (!strncmp(path, "/v1/models ", 11)) {
        answer(c, "200 OK", JSON_MODELS);
    } else if (!strncmp(path, "/stub/tick/", 11) && atoi(path + 11) > 0) {
        set_tick(atoi(path + 11));
        answer(c, "200 OK", "");
    } else if (!strncmp(path, "/stub/counters ", 15)) {
        for (int i = 0; i < port_count; i++) open += ports[i].open;
        snprintf(json, sizeof json,
                 "{\"connections\":%lu,\"requests\":%lu,\"unary\":%lu,\"streams\":%lu,"
                 "\"streams_done\":%lu,\"open_streams\":%d,\"events\":%lu,\"refused\":%lu}",
                 counted.connections, counted.requests, counted.unary, counted.streams,
                 counted.streams_done, open, counted.events, counted.refused);
        answer(c, "200 OK", json);
    } else {
        answer(c, "404 Not Found", "{\"error\":{\"message\":\"unknown to the stub\"}}");
    }
}

/* Answer what is there, up to a stream or a large answer: the next request waits for its end. */
static void answer_requests(struct client *c) {
    while (c->fd >= 0 && !c->closing && c->slot < 0 && !c->owed && c->out.used < SLOW_BYTES &&
           request_is_whole(c)) {
        char *at = c->in.at;
        if (!strncmp(at, "GET ", 4)) {
            answer_get(c, at + 4);
        } else if (!strncmp(at, "POST ", 5)) {
            answer_post(c, at, c->whole);
        } else {
            refuse(c, "405 Method Not Allowed");
            return;
        }
        drop_front(&c->in, c->whole);
        c->whole = 0;
    }
}

static void read_more(struct client *c) {
    make_room(&c->in, c->whole > c->in.used ? c->whole - c->in.used : READ_MIN);
    ssize_t n = recv(c->fd, c->in.at + c->in.used, c->in.room - c->in.used, 0);
    if (n > 0) c->in.used += n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) hang_up(c);
}

/* ---- the loop ---- */

static void accept_all(struct port *port) {
    for (;;) {
        int fd = accept4(port->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            close(spare_fd); /* make room to tell the newcomer, or the listener would spin */
            fd = accept4(port->listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) { /* else nobody was there: Linux says EMFILE before it looks */
                close(fd);
                counted.refused++;
            }
            spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            return;
        }
        if (fd < 0) return;
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct client *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd;
        c->port = port;
        c->slot = -1;
        c->watched = EPOLLIN | EPOLLRDHUP;
        struct epoll_event event = {.events = c->watched, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
        counted.connections++;
    }
}

static int listen_on(int port) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 4096) < 0) die("bind");
    return fd;
}

static void add(int fd, void *key) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = key};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
}

int main(int argc, char **argv) {
    int first = argc == 4 ? atoi(argv[1]) : 0, tick_ms = argc == 4 ? atoi(argv[3]) : 0;
    const char *range = argc == 4 ? strchr(argv[1], '-') : NULL;
    int last = range ? atoi(range + 1) : first;
    chunks = argc == 4 ? atoi(argv[2]) : 0;
    port_count = last - first + 1;
    if (first < 1 || last > 65535 || port_count < 1 || port_count > PORTS_MAX || chunks < 1 ||
        tick_ms < 1) {
        fprintf(stderr, "usage: %s PORT[-LAST] CHUNKS TICK_MS (each > 0, %d ports at most)\n",
                argv[0], PORTS_MAX);
        return 2;
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    token_bytes = snprintf(token, sizeof token, "%zx\r\n%s\r\n", strlen(TOKEN), TOKEN);
    spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer < 0) die("timerfd");
    for (int i = 0; i < port_count; i++) {
        ports[i].listener = listen_on(first + i);
        add(ports[i].listener, &ports[i]);
    }
    add(timer, &timer);
    set_tick(tick_ms);
    for (;;) {
        struct epoll_event happened[EVENTS];
        int n = epoll_wait(poller, happened, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            void *key = happened[i].data.ptr;
            uint32_t what = happened[i].events;
            if (key >= (void *)ports && key < (void *)(ports + port_count)) {
                accept_all(key);
            } else if (key == &timer) {
                take_turns();
            } else {
                struct client *c = key;
                if (c->fd >= 0 && what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hang_up(c);
                if (c->fd >= 0 && what & EPOLLOUT) send_waiting(c);
                send_more(c);
                if (c->fd >= 0 && what & EPOLLIN) read_more(c);
                if (c->fd >= 0) answer_requests(c);
                if (c->fd >= 0) watch(c);
            }
        }
        bury_the_dead();
    }
}
