/* What the image files share: scratch memory that grows, and the steps that make a picture. */
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

enum {
    READ_BEYOND = 16,
    JPEG_MEMORY = 1 << 30 /* bytes that libjpeg may take for one image: a header may claim any size */
};

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

/* Where the results of one axis of an area average come from: result i is the weighted mean of source samples at[i] up
 * to and with last[i]; its weights are `taps` a result. `same`: every result is the one sample in its place. */
typedef struct {
    int32_t *at, *last;
    uint16_t *weights;
    int32_t count, taps, same;
} AreaAxis;

/* How long an axis is: `from / parts` samples are averaged to `to / every` results, the last of which may be a part of
 * one. `mirrored`: results are counted from the end. */
typedef struct {
    int64_t from, parts, to, every;
    int mirrored;
} Lengths;

/* A plane of bytes that is averaged while its rows arrive, from the first to the last. */
typedef struct {
    Scratch memory;
    AreaAxis y, x;
    uint16_t *sums;
    uint8_t *out;
    size_t stride; /* of `out` */
    int32_t row, next;
    int upwards, samples;
} Area;

enum { AREA_TAPS = 120 }; /* of one result; steeper averages are refused */

/* Makes ready for rows of `samples` bytes; 0, or -1 without memory, or if an axis is too steep. */
int area_begin(Area *area, Lengths y, Lengths x, int samples, uint8_t *out, size_t stride);

/* The next row. What is beyond the last result is ignored. */
void area_row(Area *area, const uint8_t *row);

/* One byte a pixel, rows `stride` bytes apart. */
typedef struct {
    uint8_t *pixels;
    size_t stride;
    int height, width;
} Plane;

/* Fills `plane` from one of `plane.width` rows: columns become rows. */
void plane_swap(const uint8_t *source, size_t stride, Plane plane);

#endif
