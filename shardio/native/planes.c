/* Converts a crop of a video's frame, planes of brightness and colour, to RGB: `engines/video_frames.py` has the formula. */
#include <stdint.h>

static inline uint8_t clamped(int32_t value) {
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

#define DEFINE(T)                                                                                                      \
    static void convert_##T(                                                                                           \
        const uint8_t *const *planes, const int64_t *pitches, const int32_t *shape, const int32_t *factors,            \
        const int32_t *crop, uint8_t *out                                                                              \
    ) {                                                                                                                \
        const int32_t across = shape[1], down = shape[2], bits = shape[3], black = shape[4];                           \
        const int32_t middle = 1 << (shape[0] - 1), half = 1 << (bits - 1);                                            \
        for (int32_t y = crop[0]; y < crop[0] + crop[2]; y++) {                                                        \
            const T *light = (const T *)(planes[0] + y * pitches[0]);                                                  \
            const T *blue = (const T *)(planes[1] + (y >> down) * pitches[1]);                                         \
            const T *red = (const T *)(planes[2] + (y >> down) * pitches[2]);                                          \
            for (int32_t x = crop[1]; x < crop[1] + crop[3]; x++, out += 3) {                                          \
                const int32_t l = (light[x] - black) * factors[0] + half;                                              \
                const int32_t u = blue[x >> across] - middle, v = red[x >> across] - middle;                           \
                out[0] = clamped((l + factors[1] * v) >> bits);                                                        \
                out[1] = clamped((l + factors[2] * u + factors[3] * v) >> bits);                                       \
                out[2] = clamped((l + factors[4] * u) >> bits);                                                        \
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
