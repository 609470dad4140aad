/* Hues turned, in the HSV model: RGB bytes to RGB bytes. A colour keeps its largest and its smallest value. */
#include <features.h>
#include <stdint.h>

/* The numbers are finite, and no comparison needs to be told of: then the compiler turns choices into arithmetic, eight
 * pixels at a time where the processor can. There is no fused arithmetic in it: every processor gives the same bytes. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "finite-math-only", "no-signed-zeros")
#if defined(__x86_64__) && defined(__GLIBC__)
#define EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef EVERY_PROCESSOR
#define EVERY_PROCESSOR
#endif

enum { BLOCK = 256 /* pixels, so that the planes of a block stay in the nearest cache */ };

typedef struct {
    float r[BLOCK], g[BLOCK], b[BLOCK];
} Planes;

/* What is left of the span between largest and smallest in a channel, at a hue of 0 to 6 that is moved on by `turn`. */
static inline float less(float hue, float turn) {
    float k = hue + turn;
    k = k >= 6 ? k - 6 : k;
    float least = k < 4 - k ? k : 4 - k;
    least = least > 0 ? least : 0;
    return least < 1 ? least : 1;
}

static inline void turn(Planes *planes, int count, float shift) {
    for (int i = 0; i < count; i++) {
        float r = planes->r[i], g = planes->g[i], b = planes->b[i];
        float high = r > g ? r : g, low = r < g ? r : g;
        high = high > b ? high : b;
        low = low < b ? low : b;
        float span = high - low, per = 1 / (span > 0 ? span : 1);
        float hue = high == r ? (g - b) * per : high == g ? 2 + (b - r) * per : 4 + (r - g) * per;
        hue += shift;
        hue = hue < 0 ? hue + 6 : hue;
        hue = hue >= 6 ? hue - 6 : hue;
        planes->r[i] = high - span * less(hue, 5) + 0.5f;
        planes->g[i] = high - span * less(hue, 3) + 0.5f;
        planes->b[i] = high - span * less(hue, 1) + 0.5f;
    }
}

/* Turns the hues of `count` pixels in place by `shift` of the circle, -0.5 to 0.5. */
EVERY_PROCESSOR void shardio_hue(uint8_t *pixels, int64_t count, float shift) {
    Planes planes;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int size = (int)(count - first < BLOCK ? count - first : BLOCK);
        uint8_t *at = pixels + 3 * first;
        for (int i = 0; i < size; i++) {
            planes.r[i] = at[3 * i];
            planes.g[i] = at[3 * i + 1];
            planes.b[i] = at[3 * i + 2];
        }
        turn(&planes, size, 6 * shift);
        for (int i = 0; i < size; i++) {
            at[3 * i] = (uint8_t)(int)planes.r[i];
            at[3 * i + 1] = (uint8_t)(int)planes.g[i];
            at[3 * i + 2] = (uint8_t)(int)planes.b[i];
        }
    }
}
