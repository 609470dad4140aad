/* See guard.h. */
#define _GNU_SOURCE
#include "guard.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>

__thread sigjmp_buf *shardio_escape AT_ONCE;

static struct sigaction before;

static void on_fault(int number, siginfo_t *info, void *context) {
    if (shardio_escape) siglongjmp(*shardio_escape, 1);
    /* Not our fault: pass it on. Without another handler, the access faults again and ends the process. */
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
    else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) sigaction(number, &before, NULL);
    else before.sa_handler(number);
}

static void install(void) {
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK; /* SA_NODEFER: a jump leaves the handler */
    sigaction(SIGBUS, &ours, &before);
}

void shardio_catch(void) {
    // Not pthread_once, which moved to libc in glibc 2.34: a wheel that uses it runs on no older system.
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int installed;
    if (__atomic_load_n(&installed, __ATOMIC_ACQUIRE)) return;
    pthread_mutex_lock(&mutex);
    if (!installed) {
        install();
        __atomic_store_n(&installed, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&mutex);
}
