/* Ends of processes: one that leaves threads behind, since nothing can end them: see shardio/system/at_exit.py; and one
 * that a first SIGTERM does not end: see shardio/system/processes.py.
 *
 * Up to 3.13, Python calls pthread_exit in a thread that asks for the GIL while the interpreter ends. glibc unwinds the
 * thread's stack for that, and the first destructor of C++, which nothing may unwind, calls abort. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <pthread.h>
#include <stdio.h>

static pthread_t last;

/* A thread that aborts stays where it is instead. Only the one that ends the process may abort it. */
static void stay(int number) {
    while (!pthread_equal(pthread_self(), last)) pause();
    signal(number, SIG_DFL);
    raise(number);
}

/* Leave before the destructors of libraries run, because threads still use what these destroy. */
static void leave(int status, void *unused) {
    (void)unused;
    fflush(stdout);
    _exit(status);
}

/* Have the process end with its own exit status, whatever its other threads do. The caller ends the interpreter. */
void shardio_leave_threads(void) {
    last = pthread_self();
    signal(SIGABRT, stay);
    on_exit(leave, NULL);
}
#else
void shardio_leave_threads(void) {} /* elsewhere pthread_exit unwinds nothing */
#endif

static volatile sig_atomic_t passed;

static void pass_first(int number, siginfo_t *info, void *unused) {
    (void)unused;
    if (info->si_pid != getppid() && !passed) {
        passed = 1;
        return;
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* Have SIGTERM end this process only if its parent sends it, or at the second time. */
void shardio_pass_first_sigterm(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = pass_first;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
}
