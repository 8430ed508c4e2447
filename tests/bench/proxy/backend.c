/* A stub of an OpenAI-like server, for benchmarks of proxies. It computes nothing.
 *
 *     backend PORT CHUNKS TICK_MS        listens on 127.0.0.1; runs until it is killed
 *
 * POST, "stream": true     SSE. The head at once; then one event per tick, of all streams together,
 *                          as a batching engine emits them: CHUNKS of content, then [DONE]. One
 *                          write and one HTTP chunk per event.
 * POST, anything else      one JSON answer with Content-Length, at once.
 * GET /health, /v1/models  as vLLM answers them.
 * GET /stub/counters       what was sent so far, as JSON; a benchmark takes differences.
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
};

struct bytes {
    char *at;
    size_t used, room;
};

struct client {
    int fd;
    struct bytes in, out;
    size_t whole;         /* bytes of the request at the front of `in`; 0: head not yet complete */
    int slot;             /* its index among the streams, -1: none */
    int events_left;      /* of its stream, [DONE] included */
    bool closing;         /* close when `out` is empty */
    uint32_t watched;     /* what epoll watches for */
    struct client *next_dead;
};

static struct {
    unsigned long connections, requests, unary, streams, streams_done, events, refused;
} counted;

static int poller, spare_fd, chunks;
static struct client **streams; /* those that are open, in no order */
static int open_streams, room_for_streams;
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
    struct client *last = streams[--open_streams];
    streams[c->slot] = last;
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
    bool busy = c->closing || (c->slot >= 0 && c->in.used >= HEAD_MAX) || c->out.used >= SLOW_BYTES;
    uint32_t wanted = EPOLLRDHUP | (busy ? 0 : EPOLLIN) | (c->out.used ? EPOLLOUT : 0);
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

static void answer(struct client *c, const char *status, const char *json) {
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nserver: stub\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n%s\r\n",
                     status, strlen(json), c->closing ? "connection: close\r\n" : "");
    struct bytes whole = {0};
    append(&whole, head, n);
    append(&whole, json, strlen(json));
    send_bytes(c, whole.at, whole.used);
    free(whole.at);
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

static void begin_stream(struct client *c) {
    counted.streams++;
    send_bytes(c, SSE_HEAD, strlen(SSE_HEAD));
    if (c->fd < 0) return;
    if (open_streams == room_for_streams) {
        room_for_streams = room_for_streams ? 2 * room_for_streams : 256;
        streams = realloc(streams, room_for_streams * sizeof *streams);
        if (!streams) die("realloc");
    }
    c->events_left = chunks + 1;
    c->slot = open_streams;
    streams[open_streams++] = c;
}

static void answer_requests(struct client *c);

/* Backwards, since a stream that ends is replaced by the last one, which had its turn. A request
 * that waited behind an ended stream may begin one here: it comes last and waits for its tick. */
static void tick(void) {
    for (int i = open_streams - 1; i >= 0; i--) {
        struct client *c = streams[i];
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

static void answer_get(struct client *c, const char *path) {
    char json[512];
    if (!strncmp(path, "/health ", 8)) {
        answer(c, "200 OK", "");
    } else if (!strncmp(path, "/v1/models ", 11)) {
        answer(c, "200 OK", JSON_MODELS);
    } else if (!strncmp(path, "/stub/counters ", 15)) {
        snprintf(json, sizeof json,
                 "{\"connections\":%lu,\"requests\":%lu,\"unary\":%lu,\"streams\":%lu,"
                 "\"streams_done\":%lu,\"open_streams\":%d,\"events\":%lu,\"refused\":%lu}",
                 counted.connections, counted.requests, counted.unary, counted.streams,
                 counted.streams_done, open_streams, counted.events, counted.refused);
        answer(c, "200 OK", json);
    } else {
        answer(c, "404 Not Found", "{\"error\":{\"message\":\"unknown to the stub\"}}");
    }
}

/* Answer what is there, up to a stream: the next request waits for its end. */
static void answer_requests(struct client *c) {
    while (c->fd >= 0 && !c->closing && c->slot < 0 && c->out.used < SLOW_BYTES &&
           request_is_whole(c)) {
        char *at = c->in.at;
        if (!strncmp(at, "GET ", 4)) {
            answer_get(c, at + 4);
        } else if (!strncmp(at, "POST ", 5)) {
            counted.requests++;
            if (asks_for_stream(at, c->whole)) {
                begin_stream(c);
            } else {
                counted.unary++;
                answer(c, "200 OK", JSON_ANSWER);
            }
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

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            close(spare_fd); /* make room to tell the newcomer, or the listener would spin */
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
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

static int start_timer(int tick_ms) {
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct timespec every = {tick_ms / 1000, tick_ms % 1000 * 1000000L};
    struct itimerspec when = {every, every};
    if (fd < 0 || timerfd_settime(fd, 0, &when, NULL) < 0) die("timerfd");
    return fd;
}

static void add(int fd, void *key) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = key};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
}

int main(int argc, char **argv) {
    int port = argc == 4 ? atoi(argv[1]) : 0, tick_ms = argc == 4 ? atoi(argv[3]) : 0;
    chunks = argc == 4 ? atoi(argv[2]) : 0;
    if (port < 1 || port > 65535 || chunks < 1 || tick_ms < 1) {
        fprintf(stderr, "usage: %s PORT CHUNKS TICK_MS (each > 0)\n", argv[0]);
        return 2;
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    token_bytes = snprintf(token, sizeof token, "%zx\r\n%s\r\n", strlen(TOKEN), TOKEN);
    spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(port), timer = start_timer(tick_ms);
    add(listener, &listener);
    add(timer, &timer);
    for (;;) {
        struct epoll_event happened[EVENTS];
        int n = epoll_wait(poller, happened, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            void *key = happened[i].data.ptr;
            uint32_t what = happened[i].events;
            if (key == &listener) {
                accept_all(listener);
            } else if (key == &timer) {
                uint64_t ticks; /* those that were missed are late, not made up for */
                if (read(timer, &ticks, sizeof ticks) > 0) tick();
            } else {
                struct client *c = key;
                if (c->fd >= 0 && what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hang_up(c);
                if (c->fd >= 0 && what & EPOLLOUT) send_waiting(c);
                if (c->fd >= 0 && what & EPOLLIN) read_more(c);
                if (c->fd >= 0) answer_requests(c);
                if (c->fd >= 0) watch(c);
            }
        }
        bury_the_dead();
    }
}
