/* Looks bytes up in tables: `engines/output_format.py` converts pixels to other numbers so. */
#include <stdint.h>

#define DEFINE(T)                                                                                                      \
    __attribute__((always_inline)) static inline void planes_##T(                                                      \
        int64_t count, const int channels, const uint8_t *pixels, const T *tables, T *out                              \
    ) {                                                                                                                \
        for (int c = 0; c < channels; c++)                                                                             \
            for (int64_t i = 0; i < count; i++) out[c * count + i] = tables[256 * c + pixels[i * channels + c]];       \
    }                                                                                                                  \
    __attribute__((always_inline)) static inline void pixels_##T(                                                      \
        int64_t count, const int channels, const uint8_t *pixels, const T *tables, T *out                              \
    ) {                                                                                                                \
        for (int64_t i = 0; i < count * channels; i += channels)                                                       \
            for (int c = 0; c < channels; c++) out[i + c] = tables[256 * c + pixels[i + c]];                           \
    }                                                                                                                  \
    static void look_up_##T(                                                                                           \
        int64_t count, int channels, int planes, const uint8_t *pixels, const T *tables, T *out                        \
    ) {                                                                                                                \
        if (planes)                                                                                                    \
            channels == 3 ? planes_##T(count, 3, pixels, tables, out) : planes_##T(count, 1, pixels, tables, out);     \
        else                                                                                                           \
            channels == 3 ? pixels_##T(count, 3, pixels, tables, out) : pixels_##T(count, 1, pixels, tables, out);     \
    }

DEFINE(uint16_t)
DEFINE(uint32_t)

/* Looks up images of `count` pixels of 1 or 3 channels in a table of 256 entries per channel, of 2 or 4 bytes; the
 * results of an image are planes, or stand as its pixels do. */
void shardio_look_up(
    int64_t images, int64_t count, int32_t channels, int32_t planes, int32_t width, const uint8_t *pixels,
    const void *tables, void *out
) {
    for (int64_t i = 0; i < images; i++) {
        const int64_t at = i * count * channels;
        if (width == 2)
            look_up_uint16_t(count, channels, planes, pixels + at, tables, (uint16_t *)out + at);
        else
            look_up_uint32_t(count, channels, planes, pixels + at, tables, (uint32_t *)out + at);
    }
}
