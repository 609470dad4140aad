/* Bilinear resizing of bytes with OpenCV's arithmetic (INTER_LINEAR): 11-bit weights, horizontally, then vertically.
 *
 * Each row is resized horizontally once and kept, in 15-bit numbers, as long as results need it. The wide kernels do
 * the same integer arithmetic as the plain ones, so every processor gives the same bytes. */
#include "image.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__) && !defined(SHARDIO_PLAIN)
#include <immintrin.h>
#define WIDE 1
#endif

enum { ONE = 2048, GROUP = 4 };

void axis_fill(Axis axis, int from, int to, int first, int count) {
    double scale = (double)from / to;
    for (int i = 0; i < count; i++) {
        float place = (float)((first + i + 0.5) * scale - 0.5);
        int at = (int)floorf(place);
        float share = place - (float)at;
        if (at < 0) {
            at = 0;
            share = 0;
        }
        if (at >= from - 1) { /* the last pixel alone; nothing is read beyond it unless it is the only one */
            at = from > 1 ? from - 2 : 0;
            share = from > 1;
        }
        axis.at[i] = at;
        axis.weights[2 * i] = (int16_t)lrintf((1 - share) * ONE);
        axis.weights[2 * i + 1] = (int16_t)lrintf(share * ONE);
    }
}

static void across_plain(const uint8_t *source, int16_t *out, Axis x, int width, int channels) {
    for (int i = 0; i < width; i++) {
        const uint8_t *pixel = source + (size_t)x.at[i] * (size_t)channels;
        for (int c = 0; c < channels; c++)
            out[i * channels + c] =
                (int16_t)((pixel[c] * x.weights[2 * i] + pixel[c + channels] * x.weights[2 * i + 1]) >> 4);
    }
}

static void down_plain(const int16_t *above, const int16_t *below, const int16_t *weights, uint8_t *out, int count) {
    for (int i = 0; i < count; i++)
        out[i] = (uint8_t)((((above[i] * weights[0]) >> 16) + ((below[i] * weights[1]) >> 16) + 2) >> 2);
}

static void planes_plain(const uint8_t *row, const float *affine, float *out, size_t plane, int from, int width,
                         int channels) {
    for (int c = 0; c < channels; c++)
        for (int i = from; i < width; i++)
            out[(size_t)c * plane + (size_t)i] = (float)row[i * channels + c] * affine[2 * c] + affine[2 * c + 1];
}

#ifdef WIDE
/* Resizes four RGB pixels at a time: a pair of neighbours is 6 of 8 loaded bytes. `pairs` holds each pair of weights
 * 4 times, for results 0, 2, 1, 3 of the group. */
__attribute__((target("avx2"))) static void across_wide(const uint8_t *source, int16_t *out, const int32_t *at,
                                                        const int16_t *pairs, int width) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i interleave = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 8, 11, 9, 12, 10, 13, -1, -1));
    const __m256i close_up = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1));
    for (int i = 0; i < width; i += GROUP, pairs += 8 * GROUP) {
        __m128i low = _mm_unpacklo_epi64(_mm_loadu_si64(source + at[i]), _mm_loadu_si64(source + at[i + 1]));
        __m128i high = _mm_unpacklo_epi64(_mm_loadu_si64(source + at[i + 2]), _mm_loadu_si64(source + at[i + 3]));
        __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        pixels = _mm256_shuffle_epi8(pixels, interleave);
        __m256i even = _mm256_madd_epi16(_mm256_unpacklo_epi8(pixels, zero), _mm256_loadu_si256((const __m256i *)pairs));
        __m256i odd =
            _mm256_madd_epi16(_mm256_unpackhi_epi8(pixels, zero), _mm256_loadu_si256((const __m256i *)(pairs + 16)));
        __m256i made = _mm256_packs_epi32(_mm256_srai_epi32(even, 4), _mm256_srai_epi32(odd, 4));
        made = _mm256_shuffle_epi8(made, close_up);
        _mm_storeu_si128((__m128i *)(out + 3 * i), _mm256_castsi256_si128(made));
        _mm_storeu_si128((__m128i *)(out + 3 * i + 6), _mm256_extracti128_si256(made, 1));
    }
}

__attribute__((target("avx2"))) static void down_wide(const int16_t *above, const int16_t *below,
                                                      const int16_t *weights, uint8_t *out, int count) {
    const __m256i first = _mm256_set1_epi16(weights[0]), second = _mm256_set1_epi16(weights[1]);
    const __m256i half = _mm256_set1_epi16(2);
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i a = _mm256_mulhi_epi16(first, _mm256_loadu_si256((const __m256i *)(above + i)));
        __m256i b = _mm256_mulhi_epi16(second, _mm256_loadu_si256((const __m256i *)(below + i)));
        __m256i made = _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(a, b), half), 2);
        made = _mm256_permute4x64_epi64(_mm256_packus_epi16(made, made), 0x08);
        _mm_storeu_si128((__m128i *)(out + i), _mm256_castsi256_si128(made));
    }
    down_plain(above + i, below + i, weights, out + i, count - i);
}

/* Prepares byte offsets and weights in the layout of across_wide; results past `width` repeat the first. */
static int16_t *pairs_fill(Resizer *resizer, Axis x, int width, int32_t **offsets) {
    size_t groups = (size_t)(width + GROUP - 1) / GROUP, room = groups * GROUP;
    int16_t *pairs = scratch_take(&resizer->pairs, room * (8 * sizeof *pairs + sizeof **offsets));
    if (!pairs) return NULL;
    *offsets = (int32_t *)(pairs + room * 8);
    for (int i = 0; i < (int)room; i++) {
        int from = i < width ? i : 0;
        int16_t *pair = pairs + (i / GROUP) * 8 * GROUP + (i % 2) * 16 + (i % GROUP / 2) * 8;
        for (int c = 0; c < 4; c++) memcpy(pair + 2 * c, x.weights + 2 * from, 2 * sizeof *pair);
        (*offsets)[i] = x.at[from] * 3;
    }
    return pairs;
}

/* Converts sixteen RGB pixels at a time. The planes are much larger than any cache: aligned stores bypass it. */
__attribute__((target("avx2"))) static void planes_wide(const uint8_t *row, const float *affine, float *out,
                                                        size_t plane, int width) {
    const int8_t *take = (const int8_t[]){0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /* red of the first */
                                          -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13,
                                          1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14,
                                          2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15};
    int aligned = ((uintptr_t)out | plane * sizeof *out) % 32 == 0, i = 0;
    for (; i + 16 <= width; i += 16) {
        __m128i part[3];
        for (int k = 0; k < 3; k++) part[k] = _mm_loadu_si128((const __m128i *)(row + 3 * i + 16 * k));
        for (int c = 0; c < 3; c++) {
            __m128i bytes = _mm_setzero_si128();
            for (int k = 0; k < 3; k++)
                bytes = _mm_or_si128(
                    bytes, _mm_shuffle_epi8(part[k], _mm_loadu_si128((const __m128i *)(take + 48 * c + 16 * k))));
            const __m256 factor = _mm256_set1_ps(affine[2 * c]), offset = _mm256_set1_ps(affine[2 * c + 1]);
            float *line = out + (size_t)c * plane + (size_t)i;
            for (int half = 0; half < 2; half++, line += 8, bytes = _mm_srli_si128(bytes, 8)) {
                __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                values = _mm256_add_ps(_mm256_mul_ps(values, factor), offset);
                if (aligned) _mm256_stream_ps(line, values);
                else _mm256_storeu_ps(line, values);
            }
        }
    }
    planes_plain(row, affine, out, plane, i, width, 3);
}
#endif

static void mirror(Axis x, int width) {
    for (int i = 0, j = width - 1; i < j; i++, j--) {
        int32_t at = x.at[i], weights;
        x.at[i] = x.at[j];
        x.at[j] = at;
        memcpy(&weights, x.weights + 2 * i, sizeof weights);
        memcpy(x.weights + 2 * i, x.weights + 2 * j, sizeof weights);
        memcpy(x.weights + 2 * j, &weights, sizeof weights);
    }
}

int resize(Resizer *resizer, Picture source, Axis y, Axis x, int height, int width, int channels, int flip,
           const float *affine, void *out) {
    size_t count = (size_t)width * (size_t)channels, room = count + 8 * GROUP;
    int16_t *rows = scratch_take(&resizer->rows, 2 * room * sizeof *rows);
    uint8_t *bytes = scratch_take(&resizer->bytes, count);
    if (!rows || !bytes) return -1;
    if (flip) mirror(x, width);
#ifdef WIDE
    int wide = __builtin_cpu_supports("avx2") && channels == 3;
    int32_t *offsets = NULL;
    int16_t *pairs = wide ? pairs_fill(resizer, x, width, &offsets) : NULL;
    if (wide && !pairs) return -1;
#endif
    int16_t *kept[2] = {rows, rows + room}; /* two source rows, resized horizontally */
    int number[2] = {-1, -1};
    for (int i = 0; i < height; i++) {
        if (number[1] == y.at[i]) {
            int16_t *swap = kept[0];
            kept[0] = kept[1], kept[1] = swap;
            number[0] = number[1], number[1] = -1;
        }
        int needed = y.weights[2 * i + 1] ? 2 : 1;
        for (int k = 0; k < needed; k++) {
            if (number[k] == y.at[i] + k) continue;
            number[k] = y.at[i] + k;
            const uint8_t *line = source.pixels + source.stride * (size_t)number[k];
#ifdef WIDE
            if (wide) across_wide(line, kept[k], offsets, pairs, width);
            else
#endif
                across_plain(line, kept[k], x, width, channels);
        }
        const int16_t *below = kept[needed - 1];
        uint8_t *target = affine ? bytes : (uint8_t *)out + (size_t)i * count;
#ifdef WIDE
        if (wide) down_wide(kept[0], below, y.weights + 2 * i, target, (int)count);
        else
#endif
            down_plain(kept[0], below, y.weights + 2 * i, target, (int)count);
        if (!affine) continue;
        float *line = (float *)out + (size_t)i * (size_t)width;
        size_t plane = (size_t)height * (size_t)width;
#ifdef WIDE
        if (wide) planes_wide(bytes, affine, line, plane, width);
        else
#endif
            planes_plain(bytes, affine, line, plane, 0, width, channels);
    }
#ifdef WIDE
    _mm_sfence(); /* makes the stores that bypassed the cache visible before this thread reports completion */
#endif
    return 0;
}
