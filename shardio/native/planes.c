/* Converts a crop of a video's frame, planes of brightness and colour, to RGB: `engines/video_frames.py` has the formula. */
#include <stdint.h>

#include "processors.h"

#define SPAN 256 /* pixels that are converted before they are put in turn, so that they stay in the cache */

static inline uint8_t clamped(int32_t value) {
    value = value < 0 ? 0 : value;
    return (uint8_t)(value > 255 ? 255 : value);
}

/* The steps are loops of their own, which the compiler turns into vectors. */
#define DEFINE(T)                                                                                                      \
    EVERY_PROCESSOR static void convert_##T(                                                                           \
        const uint8_t *const *planes, const int64_t *pitches, const int32_t *shape, const int32_t *factors,            \
        const int32_t *crop, uint8_t *out                                                                              \
    ) {                                                                                                                \
        const int32_t across = shape[1], down = shape[2], bits = shape[3], black = shape[4];                           \
        const int32_t middle = 1 << (shape[0] - 1), half = 1 << (bits - 1);                                            \
        const int32_t light_by = factors[0], red_v = factors[1], green_u = factors[2], green_v = factors[3];           \
        const int32_t blue_u = factors[4];                                                                             \
        int32_t u[SPAN], v[SPAN];                                                                                      \
        uint8_t red[SPAN], green[SPAN], blue[SPAN];                                                                    \
        for (int32_t y = crop[0]; y < crop[0] + crop[2]; y++) {                                                        \
            const T *light = (const T *)(planes[0] + y * pitches[0]);                                                  \
            const T *us = (const T *)(planes[1] + (y >> down) * pitches[1]);                                           \
            const T *vs = (const T *)(planes[2] + (y >> down) * pitches[2]);                                           \
            for (int32_t first = crop[1]; first < crop[1] + crop[3]; first += SPAN) {                                  \
                const int32_t left = crop[1] + crop[3] - first, count = left < SPAN ? left : SPAN;                     \
                for (int32_t i = 0; i < count; i++) {                                                                  \
                    u[i] = us[(first + i) >> across] - middle;                                                         \
                    v[i] = vs[(first + i) >> across] - middle;                                                         \
                }                                                                                                      \
                for (int32_t i = 0; i < count; i++) {                                                                  \
                    const int32_t l = (light[first + i] - black) * light_by + half;                                    \
                    red[i] = clamped((l + red_v * v[i]) >> bits);                                                      \
                    green[i] = clamped((l + green_u * u[i] + green_v * v[i]) >> bits);                                 \
                    blue[i] = clamped((l + blue_u * u[i]) >> bits);                                                    \
                }                                                                                                      \
                for (int32_t i = 0; i < count; i++, out += 3) out[0] = red[i], out[1] = green[i], out[2] = blue[i];    \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE(uint8_t)
DEFINE(uint16_t)

/* Converts a crop (top, left, height, width) of three planes to RGB, height x width x 3.
 *
 * shape: the bits of a sample, the shifts of the colours' places across and down, the bits behind the point of the
 * factors, the black level; factors: of brightness, red of v, green of u and of v, blue of u. */
void shardio_planes_to_rgb(
    const uint8_t *const *planes, const int64_t *pitches, const int32_t *shape, const int32_t *factors,
    const int32_t *crop, uint8_t *out
) {
    if (shape[0] > 8)
        convert_uint16_t(planes, pitches, shape, factors, crop, out);
    else
        convert_uint8_t(planes, pitches, shape, factors, crop, out);
}
