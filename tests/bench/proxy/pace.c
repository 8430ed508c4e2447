/* A client that sends at a constant rate, whatever the answers do: an open loop.
 *
 *     pace PORT RATE_PER_S SECONDS CONNECTIONS PATH [BODY_FILE]
 *
 * To 127.0.0.1, HTTP/1.1, kept-alive connections; POST of BODY_FILE as JSON, else GET. Prints one
 * line of JSON.
 *
 * Rules: request i is due at start + i / RATE. It goes on the connection that has been idle for
 * longest; with none idle it waits here, in order. Its latency counts from the moment it was due,
 * so that a server that stalls pays for all that it kept waiting (no coordinated omission). What is
 * not answered GRACE_S after the last was due is an error, and its wait so far is its latency.
 * The first WARM_UP_S are sent but not counted: connections are opened then.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GRACE_S 1.0
#define WARM_UP_S 0.3
enum { ANSWER_MAX = 64 << 10, CONNECTIONS_MAX = 4096, EVENTS = 256 };

struct connection {
    int fd;
    bool busy;
    int64_t due_ns;     /* of the request it carries */
    long number;        /* which request that is */
    size_t sent, used;  /* bytes of the request that went out, of the answer that came in */
    char *answer;
};

static struct connection pool[CONNECTIONS_MAX];
static struct connection *idle[CONNECTIONS_MAX]; /* a ring, longest idle first */
static int connections, first_idle, idle_count, poller, port;
static char *request;
static size_t request_bytes;
static int32_t *latencies_us;
static long counted, answers, first_counted;
static struct { long status, closed, unanswered; } errors;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void count(long number, int64_t took_ns) {
    if (number >= first_counted) latencies_us[counted++] = took_ns / 1000;
}

static void rest(struct connection *c) {
    c->busy = false;
    c->used = 0;
    idle[(first_idle + idle_count++) % connections] = c;
}

static void open_connection(struct connection *c) {
    int on = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl");
}

/* The server closed it: an error if a request was on it; in any case there is a new one. */
static void reopen(struct connection *c) {
    close(c->fd);
    open_connection(c);
    if (!c->busy) return;
    errors.closed++;
    count(c->number, now_ns() - c->due_ns);
    rest(c);
}

static void send_on(struct connection *c) {
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    ssize_t n = send(c->fd, request + c->sent, request_bytes - c->sent, flags);
    if (n > 0) c->sent += n;
    else if (n < 0 && errno != EAGAIN) reopen(c);
}

/* Is the answer there to its last byte? By Content-Length, or by the last chunk. */
static bool answer_is_whole(struct connection *c) {
    c->answer[c->used] = 0;
    char *end = strstr(c->answer, "\r\n\r\n");
    if (!end) return false;
    char *length = strcasestr(c->answer, "\r\ncontent-length:");
    if (length && length < end)
        return c->used >= (size_t)(end + 4 - c->answer) + strtoul(length + 17, NULL, 10);
    return c->used >= 5 && !memcmp(c->answer + c->used - 5, "0\r\n\r\n", 5);
}

static void receive(struct connection *c) {
    for (;;) {
        ssize_t n = recv(c->fd, c->answer + c->used, ANSWER_MAX - c->used, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            reopen(c);
            return;
        }
        c->used += n;
        if (!c->busy || !answer_is_whole(c)) continue;
        count(c->number, now_ns() - c->due_ns);
        if (!memcmp(c->answer, "HTTP/1.1 200", 12)) answers += c->number >= first_counted;
        else errors.status++;
        rest(c);
    }
}

static void build_request(const char *path, const char *body_file) {
    char *body = NULL;
    size_t n = 0;
    if (body_file) {
        FILE *file = fopen(body_file, "r");
        if (!file || getdelim(&body, &n, EOF, file) < 0) die(body_file);
        n = strlen(body);
    }
    const char *form = body ? "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s"
                            : "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    request_bytes = asprintf(&request, form, path, n, body);
}

static int by_size(const void *a, const void *b) {
    return (*(int32_t *)a > *(int32_t *)b) - (*(int32_t *)a < *(int32_t *)b);
}

static double percentile_ms(double share) {
    return counted ? latencies_us[(long)(share * (counted - 1))] / 1e3 : 0;
}

static void report(double counted_s) {
    qsort(latencies_us, counted, sizeof *latencies_us, by_size);
    printf("{\"due\":%ld,\"answers\":%ld,\"per_s\":%.1f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,"
           "\"max_ms\":%.3f,\"errors\":{\"status\":%ld,\"closed\":%ld,\"unanswered\":%ld}}\n",
           counted, answers, answers / counted_s, percentile_ms(0.5), percentile_ms(0.99),
           percentile_ms(1), errors.status, errors.closed, errors.unanswered);
}

int main(int argc, char **argv) {
    port = argc > 5 ? atoi(argv[1]) : 0;
    double rate = argc > 5 ? atof(argv[2]) : 0, seconds = argc > 5 ? atof(argv[3]) : 0;
    connections = argc > 5 ? atoi(argv[4]) : 0;
    if (port < 1 || rate <= 0 || seconds <= WARM_UP_S || connections < 1 ||
        connections > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: %s PORT RATE_PER_S SECONDS CONNECTIONS PATH [BODY_FILE]\n",
                argv[0]);
        return 2;
    }
    build_request(argv[5], argc > 6 ? argv[6] : NULL);
    long all = rate * seconds, due = 0, begun = 0;
    first_counted = rate * WARM_UP_S;
    latencies_us = malloc((all + 1) * sizeof *latencies_us);
    poller = epoll_create1(EPOLL_CLOEXEC);
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = 0; i < connections; i++) {
        pool[i].answer = malloc(ANSWER_MAX + 1);
        open_connection(&pool[i]);
        rest(&pool[i]);
    }
    int64_t start_ns = now_ns(), end_ns = start_ns + (seconds + GRACE_S) * 1e9, now;
    while ((now = now_ns()) < end_ns && (begun < all || idle_count < connections)) {
        while (due < all && start_ns + (int64_t)(due * 1e9 / rate) <= now) due++;
        while (begun < due && idle_count) {
            struct connection *c = idle[first_idle];
            first_idle = (first_idle + 1) % connections;
            idle_count--;
            c->busy = true;
            c->sent = 0;
            c->due_ns = start_ns + (int64_t)(begun * 1e9 / rate);
            c->number = begun++;
            send_on(c);
        }
        int64_t wait_ns = (due < all ? start_ns + (int64_t)(due * 1e9 / rate) : end_ns) - now_ns();
        struct timespec wait = {wait_ns > 0 ? wait_ns / 1000000000 : 0,
                                wait_ns > 0 ? wait_ns % 1000000000 : 0};
        struct epoll_event happened[EVENTS];
        int n = epoll_pwait2(poller, happened, EVENTS, &wait, NULL);
        for (int i = 0; i < n; i++) {
            struct connection *c = happened[i].data.ptr;
            if (c->busy && c->sent < request_bytes) send_on(c);
            receive(c);
        }
    }
    for (int i = 0; i < connections; i++) {
        if (!pool[i].busy) continue;
        errors.unanswered++;
        count(pool[i].number, now - pool[i].due_ns);
    }
    for (; begun < all; begun++) {
        errors.unanswered++;
        count(begun, now - start_ns - (int64_t)(begun * 1e9 / rate));
    }
    report(seconds - WARM_UP_S);
    return 0;
}
