/* Undoes the shuffle of HDF5's and Zarr's filters: the first bytes of all elements, then their second bytes, and so on. */
#include <stdint.h>

#include "processors.h"

/* Loops over bytes, which compilers turn into vectors that interleave. `apart` and `joined` do not overlap. */
#define DEFINE(WIDTH)                                                                                                  \
    EVERY_PROCESSOR static void join_##WIDTH(int64_t count, const uint8_t *restrict apart, uint8_t *restrict joined) { \
        for (int64_t i = 0; i < count; i++)                                                                            \
            for (int byte = 0; byte < WIDTH; byte++) joined[i * WIDTH + byte] = apart[byte * count + i];               \
    }

DEFINE(2)
DEFINE(4)
DEFINE(8)

/* Joins `count` elements of `width` bytes; returns -1, and does nothing, for a width of none of the loops above. */
int32_t shardio_unshuffle(int64_t width, int64_t count, const uint8_t *apart, uint8_t *joined) {
    switch (width) {
    case 2: join_2(count, apart, joined); return 0;
    case 4: join_4(count, apart, joined); return 0;
    case 8: join_8(count, apart, joined); return 0;
    default: return -1;
    }
}
