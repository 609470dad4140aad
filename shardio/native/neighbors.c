/* Steps that make a pixel of other pixels. Warps and sharpening have the arithmetic of Pillow: Geometry.c, Filter.c and
 * Blend.c. The blur has torchvision's, in another order of additions. */
#include "steps.h"

#include <math.h>
#include <string.h>

enum { SPARE = 4 /* bytes that a pixel may be read and written beyond its channels */ };

static size_t size_of(Pixels image) {
    return (size_t)image.height * (size_t)image.width * (size_t)image.channels;
}

static inline void copy_pixel(uint8_t *to, const uint8_t *from, int32_t channels) {
    for (int32_t c = 0; c < channels; c++) to[c] = from[c];
}

/* Copies pixels from the last to the first. Each is written with a byte too many, which the next one replaces. */
static inline void reverse(uint8_t *to, const uint8_t *from, int32_t width, int32_t channels) {
    from += (size_t)width * (size_t)channels;
    for (int32_t x = 0; x < width - 1; x++, to += channels) memcpy(to, from -= channels, channels == 3 ? 4 : 1);
    copy_pixel(to, from - channels, channels);
}

int flip(Pixels image, int vertical, Scratch *scratch) {
    size_t count = (size_t)image.width * (size_t)image.channels;
    uint8_t *row = image.pixels, *copy = scratch_take(scratch, count + SPARE);
    if (!copy) return -1;
    if (vertical) {
        uint8_t *other = row + (size_t)(image.height - 1) * count;
        for (; row < other; row += count, other -= count) {
            memcpy(copy, row, count);
            memcpy(row, other, count);
            memcpy(other, copy, count);
        }
        return 0;
    }
    memset(copy + count, 0, SPARE);
    for (int32_t y = 0; y < image.height; y++, row += count) {
        memcpy(copy, row, count);
        if (image.channels == 3)
            reverse(row, copy, image.width, 3);
        else
            reverse(row, copy, image.width, 1);
    }
    return 0;
}

static inline int64_t fixed(double value) { return (int64_t)floor(value * 65536 + 0.5); }

static inline void warp_row(uint8_t *to, const uint8_t *source, Pixels image, int32_t channels, const int64_t *at) {
    int64_t x = at[0], y = at[1];
    for (int32_t i = 0; i < image.width; i++, to += channels, x += at[2], y += at[3]) {
        int64_t column = x >> 16, row = y >> 16;
        if (column >= 0 && column < image.width && row >= 0 && row < image.height)
            copy_pixel(to, source + (row * image.width + column) * channels, channels);
        else
            memset(to, 0, (size_t)channels);
    }
}

/* Takes the pixel in which the place lies that belongs to the middle of a result, in units of 2^-16. */
static void warp_nearest(Pixels image, const uint8_t *source, const double *m) {
    int64_t xx = fixed(m[0]), xy = fixed(m[1]), yx = fixed(m[3]), yy = fixed(m[4]);
    int64_t at[4] = {fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), fixed(m[5] + m[3] * 0.5 + m[4] * 0.5), xx, yx};
    uint8_t *to = image.pixels;
    for (int32_t row = 0; row < image.height; row++, to += (size_t)image.width * image.channels) {
        if (image.channels == 3)
            warp_row(to, source, image, 3, at);
        else
            warp_row(to, source, image, 1, at);
        at[0] += xy;
        at[1] += yy;
    }
}

/* The channels of a pixel; what is left over is 0. */
typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(16)));

static inline int32_t clip(int32_t value, int32_t size) { return value < 0 ? 0 : value < size ? value : size - 1; }

enum { BLOCK = 128 };

/* The four pixels around a place, as numbers of source pixels, and how far it is from the first. */
typedef struct {
    int32_t a[BLOCK], b[BLOCK], c[BLOCK], d[BLOCK];
    double dx[BLOCK], dy[BLOCK];
} Places;

/* Finds the places of pixels from `column` on. What lies outside of the image has `outside` as its pixels. */
__attribute__((always_inline)) static inline void find(Places *places, Pixels image, int32_t column, int32_t count, const double *start, const double *m) {
    const int32_t outside = image.height * image.width;
    for (int32_t i = 0; i < count; i++) {
        double x = m[0] * (column + i + 0.5) + start[0] + m[2], y = m[3] * (column + i + 0.5) + start[1] + m[5];
        int inside = x >= 0 && x < image.width && y >= 0 && y < image.height;
        x = inside ? x - 0.5 : 0;
        y = inside ? y - 0.5 : 0;
        int32_t left = (int32_t)(x + 1) - 1, top = (int32_t)(y + 1) - 1; /* rounded down: both are above -1 */
        places->dx[i] = x - left;
        places->dy[i] = y - top;
        int32_t right = clip(left + 1, image.width), above = clip(top, image.height) * image.width;
        int32_t below = clip(top + 1, image.height) * image.width;
        left = clip(left, image.width);
        places->a[i] = inside ? above + left : outside;
        places->b[i] = inside ? above + right : outside;
        places->c[i] = inside ? below + left : outside;
        places->d[i] = inside ? below + right : outside;
    }
}

/* Interpolates between four pixels. The arithmetic is in doubles, and in the order of Pillow's. */
EVERY_PROCESSOR static void warp_bilinear(Pixels image, const Floats *source, const double *m) {
    uint8_t *to = image.pixels;
    Places places;
    for (int32_t row = 0; row < image.height; row++) {
        double start[2] = {m[1] * (row + 0.5), m[4] * (row + 0.5)};
        for (int32_t column = 0; column < image.width; column += BLOCK) {
            int32_t count = image.width - column < BLOCK ? image.width - column : BLOCK;
            find(&places, image, column, count, start, m);
            for (int32_t i = 0; i < count; i++, to += image.channels) {
                Doubles a = __builtin_convertvector(source[places.a[i]], Doubles);
                Doubles b = __builtin_convertvector(source[places.b[i]], Doubles);
                Doubles c = __builtin_convertvector(source[places.c[i]], Doubles);
                Doubles d = __builtin_convertvector(source[places.d[i]], Doubles);
                Doubles upper = a + (b - a) * places.dx[i], lower = c + (d - c) * places.dx[i];
                Ints made = __builtin_convertvector(upper + (lower - upper) * places.dy[i], Ints);
                to[0] = (uint8_t)made[0];
                if (image.channels == 3) {
                    to[1] = (uint8_t)made[1];
                    to[2] = (uint8_t)made[2];
                }
            }
        }
    }
}

EVERY_PROCESSOR static void read_pixels(Floats *out, const uint8_t *pixels, int64_t count, int32_t channels) {
    for (int64_t i = 0; i < count; i++, pixels += channels)
        out[i] = channels == 3 ? (Floats){pixels[0], pixels[1], pixels[2]} : (Floats){pixels[0]};
    out[count] = (Floats){0};
}

int warp(Pixels image, const double *matrix, int bilinear, Scratch *scratch) {
    int64_t count = (int64_t)image.height * image.width;
    void *source = scratch_take(scratch, bilinear ? ((size_t)count + 1) * sizeof(Floats) : size_of(image));
    if (!source) return -1;
    if (bilinear) {
        read_pixels(source, image.pixels, count, image.channels);
        warp_bilinear(image, source, matrix);
    } else {
        memcpy(source, image.pixels, size_of(image));
        warp_nearest(image, source, matrix);
    }
    return 0;
}

/* Sharpens the middle of a row, given the row above and the row below it. */
EVERY_PROCESSOR static void sharpen_row(
    uint8_t *to, const uint8_t *above, const uint8_t *row, const uint8_t *below, int32_t count, int32_t channels,
    float factor
) {
    for (int32_t i = channels; i < count - channels; i++) {
        int32_t left = above[i - channels] + row[i - channels] + below[i - channels];
        int32_t right = above[i + channels] + row[i + channels] + below[i + channels];
        int32_t sum = left + right + above[i] + 5 * row[i] + below[i];
        int32_t smooth = (int32_t)(((float)(2 * sum) + 13.5f) * (1 / 26.0f)); /* the mean by 13, rounded */
        float blended = (float)smooth + factor * (float)(row[i] - smooth);
        blended = blended > 0 ? blended : 0;
        to[i] = (uint8_t)(int32_t)(blended < 255 ? blended : 255);
    }
}

/* Pixels on an edge stay. */
int sharpen(Pixels image, float factor, Scratch *scratch) {
    int32_t count = image.width * image.channels;
    uint8_t *source = scratch_take(scratch, size_of(image));
    if (!source) return -1;
    memcpy(source, image.pixels, size_of(image));
    for (int32_t row = 1; row < image.height - 1; row++) {
        const uint8_t *at = source + (size_t)row * (size_t)count;
        sharpen_row(
            image.pixels + (size_t)row * (size_t)count, at - count, at, at + count, count, image.channels, factor
        );
    }
    return 0;
}

/* The pixel in a place beyond an edge: mirrored, without the last pixel twice, as often as needed. */
static int32_t mirrored(int32_t place, int32_t size) {
    int32_t period = size > 1 ? 2 * (size - 1) : 1;
    place = (place % period + period) % period;
    return size > 1 && place >= size ? period - place : size > 1 ? place : 0;
}

typedef float Lanes __attribute__((vector_size(64)));

enum { LANES = sizeof(Lanes) / sizeof(float), TOGETHER = 4 };

/* Sums `taps` rows times their weights, of which the first and the last are the same and so on. Rows and sums have room
 * for LANES * TOGETHER values more than `count`. */
EVERY_PROCESSOR static void sum_rows(float *sums, const float *const *rows, const float *weights, int taps, int32_t count) {
    for (int32_t first = 0; first < count; first += LANES * TOGETHER) {
        Lanes held[TOGETHER], a, b;
        memcpy(held, rows[taps / 2] + first, sizeof held);
        for (int i = 0; i < TOGETHER; i++) held[i] *= weights[taps / 2];
        for (int k = 0; k < taps / 2; k++) {
            const float *one = rows[k] + first, *other = rows[taps - 1 - k] + first;
            for (int i = 0; i < TOGETHER; i++) {
                memcpy(&a, one + i * LANES, sizeof a);
                memcpy(&b, other + i * LANES, sizeof b);
                held[i] += (a + b) * weights[k];
            }
        }
        memcpy(sums + first, held, sizeof held);
    }
}

EVERY_PROCESSOR static void to_floats(float *out, const uint8_t *row, int32_t count) {
    for (int32_t i = 0; i < count; i++) out[i] = row[i];
}

EVERY_PROCESSOR static void to_bytes(uint8_t *out, const float *sums, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        float rounded = (sums[i] + 12582912.0f) - 12582912.0f; /* to the nearest, and to even between two */
        out[i] = (uint8_t)(int32_t)(rounded < 255 ? rounded : 255);
    }
}

/* Filters along the rows, then down the columns. The weights are symmetrical. */
int blur(Pixels image, const float *down, int rows, const float *across, int columns, Scratch *scratch) {
    int32_t channels = image.channels, count = image.width * channels, reach = columns / 2;
    size_t more = LANES * TOGETHER, pitch = (size_t)count + more, pointers = (size_t)(rows > columns ? rows : columns);
    size_t floats = pitch + (size_t)(2 * reach * channels) + ((size_t)image.height + 1) * pitch;
    float *row = scratch_take(scratch, (floats + 1) * sizeof(float) + pointers * sizeof(float *));
    if (!row) return -1;
    float *sums = row + pitch + (size_t)(2 * reach * channels), *filtered = sums + pitch;
    const float **terms = (const float **)(row + floats + floats % 2);
    memset(row, 0, floats * sizeof(float));
    for (int k = 0; k < columns; k++) terms[k] = row + (size_t)(k * channels);
    for (int32_t y = 0; y < image.height; y++) {
        const uint8_t *at = image.pixels + (size_t)y * (size_t)count;
        to_floats(row + reach * channels, at, count);
        for (int32_t x = -reach; x < image.width + reach; x = x == -1 ? image.width : x + 1)
            for (int32_t c = 0; c < channels; c++)
                row[(x + reach) * channels + c] = at[mirrored(x, image.width) * channels + c];
        sum_rows(filtered + (size_t)y * pitch, terms, across, columns, count);
    }
    for (int32_t y = 0; y < image.height; y++) {
        for (int k = 0; k < rows; k++) terms[k] = filtered + (size_t)mirrored(y + k - rows / 2, image.height) * pitch;
        sum_rows(sums, terms, down, rows, count);
        to_bytes(image.pixels + (size_t)y * (size_t)count, sums, count);
    }
    return 0;
}
