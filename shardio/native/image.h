/* What jpeg.c and resize.c share: scratch memory that grows, and the two steps that make a picture. */
#ifndef SHARDIO_IMAGE_H
#define SHARDIO_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *memory;
    size_t size;
} Scratch;

/* At least `size` bytes, with whatever is in them; NULL if there are none. */
static inline void *scratch_take(Scratch *scratch, size_t size) {
    if (size > scratch->size) {
        free(scratch->memory);
        scratch->memory = malloc(size);
        scratch->size = scratch->memory ? size : 0;
    }
    return scratch->memory;
}

/* Pixels in memory: `channels` bytes each, rows `stride` bytes apart, READ_BEYOND readable bytes after the last. */
typedef struct {
    const uint8_t *pixels;
    size_t stride;
} Picture;

enum { READ_BEYOND = 16 };

/* Where the results of one axis come from: result i is the mean of source at[i] and at[i] + 1, weighted in 1/2048. */
typedef struct {
    int32_t *at;
    int16_t *weights; /* 2 each */
} Axis;

typedef struct {
    Scratch pairs, rows, bytes;
} Resizer;

/* Results `first` .. `first + count - 1` of an axis of `from` pixels resized to `to`. */
void axis_fill(Axis axis, int from, int to, int first, int count);

/* Resizes to `height` x `width` bytes, mirrored if `flip`; with `affine` (factor and offset by channel) the result is
 * float planes, else bytes with channels last. 0, or -1 without memory. */
int resize(Resizer *resizer, Picture source, Axis y, Axis x, int height, int width, int channels, int flip,
           const float *affine, void *out);

#endif
