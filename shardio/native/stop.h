/* The end of a loop in the middle of a call: calls that take long look between images whether their thread's work is over. */
#ifndef SHARDIO_STOP_H
#define SHARDIO_STOP_H
#include <stdint.h>

enum { STOPPED = -1 };

extern __thread const int32_t *shardio_stop; /* not 0 there once the work is over; NULL for none */

static inline int stopped(void) { return shardio_stop && __atomic_load_n(shardio_stop, __ATOMIC_RELAXED); }
#endif
