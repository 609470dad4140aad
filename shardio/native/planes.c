/* Converts rows of a video's frame, planes of brightness and colour, to RGB: `engines/video_frames.py` has the formula. */
#include "image.h"
#include "processors.h"

enum { SPAN = 512 /* pixels that are converted together, so that what is made of them stays in the cache */ };

static inline uint8_t clamped(int32_t value) {
    value = value < 0 ? 0 : value;
    return (uint8_t)(value > 255 ? 255 : value);
}

/* The steps are loops of their own, which the compiler turns into vectors: what a colour adds to red, green and blue; that
 * for each pixel; the pixels by channel; and in turn. A span begins where a colour does, `skipped` pixels early. */
#define DEFINE(T)                                                                                                      \
    EVERY_PROCESSOR static void convert_##T(                                                                           \
        const Frame *frame, int32_t y, int32_t left, int32_t columns, uint8_t *out                                     \
    ) {                                                                                                                \
        const int32_t across = frame->across, shift = frame->shift, middle = 1 << (frame->bits - 1);                   \
        const int32_t light_by = frame->factors[0], red_v = frame->factors[1], green_u = frame->factors[2];            \
        const int32_t green_v = frame->factors[3], blue_u = frame->factors[4];                                         \
        const int32_t base = (1 << (shift - 1)) - frame->black * light_by;                                             \
        const T *light = (const T *)(frame->planes[0] + y * frame->pitches[0]);                                        \
        const T *us = (const T *)(frame->planes[1] + (y >> frame->down) * frame->pitches[1]);                          \
        const T *vs = (const T *)(frame->planes[2] + (y >> frame->down) * frame->pitches[2]);                          \
        int32_t halves[3][SPAN / 2], terms[3][SPAN], skipped = left & across;                                          \
        uint8_t made[3][SPAN];                                                                                         \
        for (int32_t first = left - skipped; first < left + columns; first += SPAN, skipped = 0) {                     \
            const int32_t rest = left + columns - first, count = rest < SPAN ? rest : SPAN;                            \
            const int32_t colors = (count + across) >> across;                                                         \
            int32_t *const added[3] = {                                                                                \
                across ? halves[0] : terms[0], across ? halves[1] : terms[1], across ? halves[2] : terms[2]            \
            };                                                                                                         \
            for (int32_t i = 0; i < colors; i++) {                                                                     \
                const int32_t u = us[(first >> across) + i] - middle, v = vs[(first >> across) + i] - middle;          \
                added[0][i] = base + red_v * v;                                                                        \
                added[1][i] = base + green_u * u + green_v * v;                                                        \
                added[2][i] = base + blue_u * u;                                                                       \
            }                                                                                                          \
            for (int c = 0; across && c < 3; c++)                                                                      \
                for (int32_t i = 0; i < colors; i++) terms[c][2 * i] = terms[c][2 * i + 1] = halves[c][i];             \
            for (int32_t i = 0; i < count; i++) {                                                                      \
                const int32_t l = light[first + i] * light_by;                                                         \
                made[0][i] = clamped((l + terms[0][i]) >> shift);                                                      \
                made[1][i] = clamped((l + terms[1][i]) >> shift);                                                      \
                made[2][i] = clamped((l + terms[2][i]) >> shift);                                                      \
            }                                                                                                          \
            for (int32_t i = skipped; i < count; i++, out += 3)                                                        \
                out[0] = made[0][i], out[1] = made[1][i], out[2] = made[2][i];                                         \
        }                                                                                                              \
    }

DEFINE(uint8_t)
DEFINE(uint16_t)

void frame_row(const Frame *frame, int32_t y, int32_t left, int32_t columns, uint8_t *out) {
    if (frame->bits > 8)
        convert_uint16_t(frame, y, left, columns, out);
    else
        convert_uint8_t(frame, y, left, columns, out);
}
