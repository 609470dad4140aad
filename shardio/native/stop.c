/* See stop.h. */
#include "stop.h"
#include <stddef.h>

__thread const int32_t *shardio_stop;

void shardio_follow(const int32_t *stop) { shardio_stop = stop; }
