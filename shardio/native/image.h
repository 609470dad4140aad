/* What the C files for images share: growing scratch memory, resizing and area averages. */
#ifndef SHARDIO_IMAGE_H
#define SHARDIO_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#pragma GCC visibility push(hidden)

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

/* A region of an image in pixels, up to but without `bottom` and `right`. */
typedef struct {
    int32_t top, left, bottom, right;
} Region;

/* A part of a JPEG file as a file of its own, `size` bytes at `data`, which shows this much of the image from (top, left)
 * on. */
typedef struct {
    Scratch memory, starts;
    const uint8_t *data;
    int64_t size;
    int32_t top, left, height, width;
} Part;

/* Whether a file's header says that it has restart markers, and that all is in one scan. */
int part_is_possible(const uint8_t *data, int64_t size);

/* Cuts out the segments of a file of this height and width that cover a region of it. Returns 0 if that is not possible,
 * because the file lacks restart markers or has them out of order, or if it is not worth while. */
int part_take(Part *part, const uint8_t *data, int64_t size, const int32_t *image, Region region);

/* Whether more than MOST_SCANS scans are in a JPEG, from the data of its first scan on: each takes a pass over all blocks,
 * of 10 bytes of the file. */
int has_many_scans(const uint8_t *scan, int64_t size);

enum { MOST_SCANS = 100 };

/* A frame of a video: planes of brightness and of the colours u and v, rows `pitches` bytes apart, of samples of `bits` bits,
 * in two bytes if those are more than 8. `across` and `down`: the shifts of a colour's place; `shift`: the bits behind the
 * point of the factors, which are those of brightness, red of v, green of u and of v, blue of u. */
typedef struct {
    const uint8_t *planes[3];
    int64_t pitches[3];
    int32_t height, width, bits, across, down, shift, black, factors[5];
} Frame;

/* Converts pixels of row `y` to RGB, `columns` of them from `left` on. */
void frame_row(const Frame *frame, int32_t y, int32_t left, int32_t columns, uint8_t *out);

/* The results wanted of `count` images. Arrays have a row per image. */
typedef struct {
    int64_t count;
    const uint8_t *const *data;
    const int64_t *sizes;
    const int32_t *images;  /* the expected height and width of the image as it is stored */
    const int32_t *boxes;   /* top, left, height and width of the region in the upright image */
    const int32_t *scaled;  /* height and width to which the region is resized */
    const int32_t *windows; /* top and left of the result within the resized region; `fill` beyond that */
    const uint8_t *flips;   /* FLIP_... */
    const uint8_t *turns; /* what makes the image upright: TURN_..., of a file; NULL for nothing */
    const float *normalize; /* mean and deviation per channel, for float planes; NULL for bytes, channels last */
    uint8_t *out;
    int64_t out_bytes; /* per result */
    int32_t height, width, channels;
    int32_t filter;  /* FILTER_... */
    int32_t encoded; /* data are JPEG files, else pixels: bytes with channels last */
    int32_t frames;  /* data are frames of videos, a `Frame` each */
    int32_t fast;    /* chroma is repeated, not interpolated, and the decoder shrinks what is far too large */
    int64_t most;    /* pixels of one file to hold at once */
    double seconds;  /* of processor time for the decoding of one file */
    uint8_t fill[4]; /* the pixel beyond the region */
    uint8_t *failed; /* per image 0, FAILED if it is left to the caller, or FAILED_LATE if it takes too long */
} ImageBatch;

enum {
    READ_BEYOND = 128,
    JPEG_MEMORY = 1 << 30 /* the most bytes that libjpeg may allocate for one image: a header may claim any size */
};

enum { FAILED = 1, FAILED_LATE };

/* A result is flipped left to right, or top to bottom. */
enum { FLIP_COLUMNS = 1, FLIP_ROWS = 2 };

/* The rows or the columns are mirrored, then both swapped. */
enum { TURN_ROWS = 1, TURN_COLUMNS = 2, TURN_SWAP = 4 };

enum {
    FILTER_NEAREST,
    FILTER_BOX,
    FILTER_BILINEAR,
    FILTER_HAMMING,
    FILTER_BICUBIC,
    FILTER_LANCZOS,
    FILTER_BILINEAR_POINTS, /* without antialiasing */
    FILTER_BICUBIC_POINTS
};

/* An axis to resize: the part from `low` to `high` of `size` source pixels becomes `results` pixels, of which `count`
 * are wanted, from the one called `first`. */
typedef struct {
    double low, high;
    int32_t size, results, first, count;
} Extent;

/* The weights of an axis as processors with AVX-512 VNNI take them, see resample.c. `reach`: the bytes from the start of
 * a group's source to its end; 0 if there are no groups. */
struct Groups {
    const void *all;
    const int32_t *starts;
    int32_t count, blocks, reach;
};

/* The weights of an axis. Result i is the sum of source pixels at[i] .. at[i] + used[i] - 1, counted from `from`, each
 * times its weight in units of 2^-22; high * 4096 + low is the same number. There are `taps` weights per result. */
typedef struct {
    int32_t *weights, *at, *used;
    int16_t *high, *low;
    int32_t count, taps, most, from, to;
    int same;   /* every result is the source pixel in its place */
    int coarse; /* the last 8 bits of each weight are 0 */
    const void *pairs;
    struct Groups groups;
    Scratch places, numbers, arranged;
} FilterAxis;

/* Where results go: bytes with channels last; with `normalize`, a mean and a deviation per channel, floats in planes. */
typedef struct {
    void *out;
    const float *normalize;
    ptrdiff_t pitch; /* results from one row to the next; below 0 if they are written from the last row up */
    size_t plane;    /* results from one plane to the next */
    int channels, flip;
} Output;

/* An image that is resized while its rows arrive. */
typedef struct {
    FilterAxis y, x;
    Scratch memory;
    Output output;
    const uint8_t **rows;
    uint8_t *kept;
    size_t stride;
    int32_t room, width, row, made;
    int down_first, copies;
} Resampler;

/* Prepares `it` for the source pixels from x.from to x.to of the rows from y.from to y.to. Returns 0, or -1 if memory is
 * exhausted. */
int resample_begin(Resampler *it, int filter, Extent y, Extent x, Output output);

/* Makes all pixels of an output of `height` rows and `width` columns the same. */
void fill_pixels(Output output, int32_t height, int32_t width, const uint8_t *pixel);

void resampler_free(Resampler *it);

/* Adds the next row, with READ_BEYOND readable bytes after it. */
void resample_row(Resampler *it, const uint8_t *row);

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

#pragma GCC visibility pop

/* See damage.c: 0 for a JPEG file that is whole, 1 for a damaged one. */
int shardio_jpeg_damage(const uint8_t *data, int64_t size, int64_t height, int64_t width, int64_t most, char *text);

#endif
