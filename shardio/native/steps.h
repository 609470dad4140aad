/* Steps on the bytes of one image, channels last, in place. */
#ifndef SHARDIO_STEPS_H
#define SHARDIO_STEPS_H

#include "image.h"

/* Floating-point exceptions are of no interest and all numbers are finite, so the compiler may turn branches into
 * arithmetic. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "finite-math-only", "no-signed-zeros")
#endif
#include "processors.h"

enum { FLIP, WARP, BLEND, HUE, POSTERIZE, SOLARIZE, STRETCH, EQUALIZE, SHARPEN, BLUR, ERASE, STEPS };

/* A step, with a row per image in each array. */
typedef struct {
    int64_t kind;
    const uint8_t *mask;
    const void *values, *more;
    int64_t rows, columns; /* of a blur's filters, which `values` and `more` hold */
    int64_t way; /* of a warp, whether it is bilinear; of a flip, whether it is vertical */
} Step;

int shardio_carry_out(int64_t count, uint8_t *pixels, int64_t apart, const int32_t *shape, const Step *steps, int64_t number);

#pragma GCC visibility push(hidden)

typedef struct {
    uint8_t *pixels;
    int32_t height, width, channels;
} Pixels;

enum { BASE_BLACK, BASE_MEAN, BASE_GREY };

/* colors.c */
void blend(Pixels image, float factor, int base);
void turn_hue(Pixels image, int turn);
void solarize(Pixels image, float threshold);
void stretch_contrast(Pixels image);
void equalize(Pixels image);

/* neighbors.c. These return 0, or -1 if memory is exhausted. */
int flip(Pixels image, int vertical, Scratch *scratch);
int warp(Pixels image, const double *matrix, int bilinear, Scratch *scratch);
int sharpen(Pixels image, float factor, Scratch *scratch);
int blur(Pixels image, const float *down, int rows, const float *across, int columns, Scratch *scratch);

#pragma GCC visibility pop

#endif
