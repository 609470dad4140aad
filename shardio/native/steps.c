/* All steps of many images of one size in one call: colours, warps, filters, flips and boxes. */
#include "steps.h"

#include <string.h>

static void posterize(Pixels image, uint8_t bits) {
    size_t count = (size_t)image.height * (size_t)image.width * (size_t)image.channels;
    for (size_t i = 0; i < count; i++) image.pixels[i] &= bits;
}

static void erase(Pixels image, const int32_t *box, const uint8_t *value) {
    for (int32_t y = box[0]; y < box[0] + box[2]; y++) {
        uint8_t *at = image.pixels + ((size_t)y * (size_t)image.width + (size_t)box[1]) * (size_t)image.channels;
        for (int32_t x = 0; x < box[3]; x++, at += image.channels) memcpy(at, value, (size_t)image.channels);
    }
}

static int carry_out(Pixels image, const Step *step, int64_t row, Scratch *scratch) {
    switch (step->kind) {
    case FLIP: return flip(image, step->way != 0, scratch);
    case WARP: return warp(image, (const double *)step->values + 6 * row, step->way != 0, scratch);
    case BLEND: blend(image, ((const float *)step->values)[row], ((const uint8_t *)step->more)[row]); return 0;
    case HUE: turn_hue(image, ((const uint8_t *)step->values)[row]); return 0;
    case POSTERIZE: posterize(image, ((const uint8_t *)step->values)[row]); return 0;
    case SOLARIZE: solarize(image, ((const float *)step->values)[row]); return 0;
    case STRETCH: stretch_contrast(image); return 0;
    case EQUALIZE: equalize(image); return 0;
    case SHARPEN: return sharpen(image, ((const float *)step->values)[row], scratch);
    case BLUR:
        return blur(
            image, (const float *)step->values + row * step->rows, (int)step->rows,
            (const float *)step->more + row * step->columns, (int)step->columns, scratch
        );
    case ERASE: erase(image, (const int32_t *)step->values + 4 * row, step->more); return 0;
    default: return -1;
    }
}

/* Carries out steps on images of one shape (height, width, channels), `apart` bytes from one to the next.
 * Returns 0, or -1 if memory is exhausted. */
int shardio_carry_out(int64_t count, uint8_t *pixels, int64_t apart, const int32_t *shape, const Step *steps, int64_t number) {
    Scratch scratch = {NULL, 0};
    int failed = 0;
    if (shape[0] <= 0 || shape[1] <= 0) return 0;
    for (int64_t row = 0; row < count && !failed; row++) {
        Pixels image = {pixels + row * apart, shape[0], shape[1], shape[2]};
        for (int64_t i = 0; i < number && !failed; i++)
            if (steps[i].mask[row]) failed = carry_out(image, &steps[i], row, &scratch);
    }
    free(scratch.memory);
    return failed;
}
