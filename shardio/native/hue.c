/* Hue rotation of RGB bytes in the HSV model. A colour keeps its largest and its smallest channel value. */
#include <features.h>
#include <stdint.h>

/* All numbers are finite, and floating-point exceptions are of no interest: so the compiler may turn branches into
 * arithmetic, on eight pixels at a time where the processor can. It uses no fused multiply-add: every processor gives
 * the same bytes. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "finite-math-only", "no-signed-zeros")
#if defined(__x86_64__) && defined(__GLIBC__)
#define EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef EVERY_PROCESSOR
#define EVERY_PROCESSOR
#endif

enum { BLOCK = 256 /* pixels: the planes of a block fit the first-level cache */ };

typedef struct {
    float r[BLOCK], g[BLOCK], b[BLOCK];
} Planes;

/* The share, 0 to 1, of the span between largest and smallest value by which a channel is below the largest one. `hue`
 * is 0 to 6, `turn` the channel's offset on the hue circle. */
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

/* Rotates the hues of `count` pixels in place by `shift`, a fraction of the hue circle from -0.5 to 0.5. */
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
