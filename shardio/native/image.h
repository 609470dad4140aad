/* What the C files for images share: growing scratch memory, bilinear resizing and area averages. */
#ifndef SHARDIO_IMAGE_H
#define SHARDIO_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *memory;
    size_t size;
} Scratch;

/* Returns at least `size` bytes of undefined content, or NULL if memory is exhausted. */
static inline void *scratch_take(Scratch *scratch, size_t size) {
    if (size > scratch->size) {
        free(scratch->memory);
        scratch->memory = malloc(size);
        scratch->size = scratch->memory ? size : 0;
    }
    return scratch->memory;
}

/* The results wanted of `count` JPEG files. Arrays have a row per file. */
typedef struct {
    int64_t count;
    const uint8_t *const *data;
    const int64_t *sizes;
    const int32_t *images;  /* the expected height and width of the image */
    const int32_t *boxes;   /* top, left, height and width of the region in the image */
    const int32_t *scaled;  /* height and width to which the region is resized */
    const int32_t *windows; /* top and left of the result within the resized region */
    const uint8_t *flips;
    const float *affine; /* factor and offset per channel, for float planes; NULL for bytes, channels last */
    uint8_t *out;
    int64_t out_bytes; /* per result */
    int32_t height, width, channels;
    int64_t most; /* pixels of one file to hold at once */
    uint8_t *failed; /* set to 1 for each file that is left to the caller */
} JpegBatch;

/* Pixels in memory of `channels` bytes each, rows `stride` bytes apart, READ_BEYOND readable bytes after the last. */
typedef struct {
    const uint8_t *pixels;
    size_t stride;
} Picture;

enum {
    READ_BEYOND = 16,
    JPEG_MEMORY = 1 << 30 /* the most bytes that libjpeg may allocate for one image: a header may claim any size */
};

/* The sources of the results along one axis: result i is the mean of source pixels at[i] and at[i] + 1, with weights in
 * units of 1/2048. */
typedef struct {
    int32_t *at;
    int16_t *weights; /* 2 per result */
} Axis;

typedef struct {
    Scratch pairs, rows, bytes;
} Resizer;

/* Fills `axis` with results `first` .. `first + count - 1` of an axis of `from` pixels resized to `to` pixels. */
void axis_fill(Axis axis, int from, int to, int first, int count);

/* Resizes `source` to `height` x `width` pixels, mirrored if `flip`. With `affine` (a factor and an offset per channel)
 * the result is float planes, else bytes with channels last. Returns 0, or -1 if memory is exhausted. */
int resize(Resizer *resizer, Picture source, Axis y, Axis x, int height, int width, int channels, int flip,
           const float *affine, void *out);

/* The sources of an area average along one axis: result i is the weighted mean of samples at[i] to last[i], both
 * included. There are `taps` weights per result. `same`: each result equals the sample in its place. */
typedef struct {
    int32_t *at, *last;
    uint16_t *weights;
    int32_t count, taps, same;
} AreaAxis;

/* The length of an axis: `from / parts` samples are averaged to `to / every` results, the last of which may be partial.
 * `mirrored`: results count from the end. */
typedef struct {
    int64_t from, parts, to, every;
    int mirrored;
} Lengths;

/* A plane of bytes whose area average is computed while its rows arrive, first to last. */
typedef struct {
    Scratch memory;
    AreaAxis y, x;
    uint16_t *sums;
    uint8_t *out;
    size_t stride; /* of `out` */
    int32_t row, next;
    int upwards, samples;
} Area;

enum { AREA_TAPS = 120 }; /* the most samples per result: steeper averages are refused */

/* Prepares `area` for rows of `samples` bytes. Returns 0, or -1 if memory is exhausted or an axis is too steep. */
int area_begin(Area *area, Lengths y, Lengths x, int samples, uint8_t *out, size_t stride);

/* Adds the next row. Rows beyond the last result are ignored. */
void area_row(Area *area, const uint8_t *row);

/* Pixels of one byte, rows `stride` bytes apart. */
typedef struct {
    uint8_t *pixels;
    size_t stride;
    int height, width;
} Plane;

/* Transposes a plane of `plane.width` rows into `plane`. */
void plane_swap(const uint8_t *source, size_t stride, Plane plane);

#endif
