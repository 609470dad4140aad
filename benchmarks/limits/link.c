/* A link between clients and a server on the same machine: every request waits for a round trip, and all answers share
 * one bandwidth. It moves pages between sockets (splice) and copies nothing, so that it costs little processor time;
 * a Linux without `netem` needs no more than this.
 *
 *   cc -O3 -o link link.c -lpthread
 *   ./link TARGET_PORT ROUND_TRIP_MS MBIT_PER_S COUNTERS     (0: no wait, no limit)
 *
 * It listens at a free port of 127.0.0.1, which it prints, and runs until its input ends. A new connection waits for
 * one round trip before its first request, as TCP's handshake does; the growth of TCP's window is not modelled. Requests
 * are told by the blocks that a client sends: one that begins with a method of HTTP is one.
 * COUNTERS is a file of four numbers, 64 bits each: requests, bytes of answers, connections, bytes of requests.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REQUESTS, DOWN, CONNECTIONS, UP, COUNTERS };
enum { BLOCK = 128 << 10 };
static const int64_t BURST = 1000000; /* nanoseconds that an idle link saves up */
static int target;
static int64_t round_trip;
static double nanoseconds_per_byte;
static uint64_t *counters;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t free_at; /* when the link has sent all that it was given */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void sleep_until(int64_t when) {
    struct timespec t = {when / 1000000000, when % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}

static void count(int which, uint64_t more) { __atomic_add_fetch(&counters[which], more, __ATOMIC_RELAXED); }

static void pass_limit(size_t bytes) {
    count(DOWN, bytes);
    if (nanoseconds_per_byte <= 0) return;
    pthread_mutex_lock(&lock);
    int64_t least = now() - BURST;
    if (free_at < least) free_at = least;
    free_at += (int64_t)(bytes * nanoseconds_per_byte);
    int64_t until = free_at;
    pthread_mutex_unlock(&lock);
    if (until > now()) sleep_until(until);
}

static int connect_to_server(void) {
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(target), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(server, (struct sockaddr *)&address, sizeof address)) {
        close(server);
        return -1;
    }
    return server;
}

static int send_all(int to, const char *data, ssize_t size) {
    while (size > 0) {
        ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        data += sent, size -= sent;
    }
    return 0;
}

static int begins_request(const char *data, ssize_t size) {
    static const char *methods[] = {"GET ", "HEAD ", "PUT ", "POST ", "DELETE "};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        size_t length = strlen(methods[i]);
        if ((size_t)size >= length && !memcmp(data, methods[i], length)) return 1;
    }
    return 0;
}

static void *serve(void *argument) {
    int client = (int)(intptr_t)argument, server = connect_to_server(), through[2];
    if (server < 0 || pipe2(through, O_CLOEXEC)) {
        close(client);
        if (server >= 0) close(server);
        return NULL;
    }
    fcntl(through[1], F_SETPIPE_SZ, 1 << 20);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    count(CONNECTIONS, 1);
    int64_t opened = now() + round_trip;
    char request[1 << 14];
    struct pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    while (poll(ends, 2, -1) > 0) {
        if (ends[0].revents) {
            ssize_t size = recv(client, request, sizeof request, 0);
            if (size <= 0) break;
            count(UP, size);
            if (begins_request(request, size)) {
                count(REQUESTS, 1);
                if (round_trip) sleep_until((now() > opened ? now() : opened) + round_trip);
            }
            if (send_all(server, request, size)) break;
        }
        if (ends[1].revents) {
            ssize_t size = splice(server, NULL, through[1], NULL, BLOCK, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (size <= 0) break;
            pass_limit(size);
            while (size > 0) {
                ssize_t moved = splice(through[0], NULL, client, NULL, size, SPLICE_F_MOVE);
                if (moved <= 0) goto end;
                size -= moved;
            }
        }
    }
end:
    close(client), close(server), close(through[0]), close(through[1]);
    return NULL;
}

static void *await_end(void *unused) {
    char byte;
    (void)unused;
    while (read(0, &byte, 1) > 0) {}
    exit(0);
}

int main(int count_of_arguments, char **arguments) {
    if (count_of_arguments != 5) return fprintf(stderr, "TARGET_PORT ROUND_TRIP_MS MBIT_PER_S COUNTERS\n"), 2;
    target = atoi(arguments[1]);
    round_trip = (int64_t)(atof(arguments[2]) * 1e6);
    nanoseconds_per_byte = atof(arguments[3]) > 0 ? 8e3 / atof(arguments[3]) : 0;
    signal(SIGPIPE, SIG_IGN);
    int file = open(arguments[4], O_RDWR | O_CREAT, 0644), listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0 || ftruncate(file, COUNTERS * sizeof *counters)) return perror(arguments[4]), 1;
    counters = mmap(NULL, COUNTERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    if (counters == MAP_FAILED || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        return perror("listen"), 1;
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 256 << 10);
    pthread_create(&thread, &detached, await_end, NULL);
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
        if (client < 0) continue;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (pthread_create(&thread, &detached, serve, (void *)(intptr_t)client)) close(client);
    }
}
