/* Area averages of byte planes: each result is the mean of the rectangle that it covers, as with OpenCV's INTER_AREA.
 *
 * Rows are summed as they arrive, in 15-bit numbers, and averaged horizontally once a result's last row is in. The wide
 * kernel does the same integer arithmetic as the plain one, so every processor gives the same bytes. */
#include "image.h"

#include <string.h>
#if defined(__SSE2__) && !defined(SHARDIO_PLAIN)
#include <emmintrin.h>
#define WIDE 1
#endif

enum { DOWN_ONE = 1 << 15, ACROSS_ONE = 1 << 14, GROUP = 4, SHIFT = 21, TILE = 32 };

/* The most samples that one result averages, rounded up to whole groups; 0 if they exceed AREA_TAPS. */
static int taps_of(Lengths lengths) {
    int64_t span = (lengths.from * lengths.every - 1) / (lengths.parts * lengths.to) + 2;
    return span > AREA_TAPS ? 0 : (int)(span + GROUP - 1) / GROUP * GROUP;
}

static int32_t count_of(Lengths lengths) { return (int32_t)((lengths.to + lengths.every - 1) / lengths.every); }

/* Fills an axis. Lengths are in units of which a sample has parts * to and a result from * every: exact integers. */
static void axis_cover(AreaAxis *axis, Lengths lengths, int one) {
    int64_t sample = lengths.parts * lengths.to, result = lengths.from * lengths.every;
    int64_t end = lengths.from * lengths.to, first = lengths.mirrored ? end - axis->count * result : 0;
    axis->same = sample == result && first == 0;
    memset(axis->weights, 0, (size_t)axis->count * (size_t)axis->taps * sizeof *axis->weights);
    for (int32_t i = 0; i < axis->count; i++) {
        int64_t low = first + i * result, high = low + result < end ? low + result : end;
        low = low > 0 ? low : 0;
        int64_t at = low / sample, last = (high - 1) / sample, given = 0;
        axis->at[i] = (int32_t)at;
        axis->last[i] = (int32_t)last;
        for (int64_t k = at; k <= last; k++) {
            int64_t covered = ((k + 1) * sample < high ? (k + 1) * sample : high) - low;
            int64_t sum = (2 * one * covered + (high - low)) / (2 * (high - low));
            axis->weights[i * axis->taps + (k - at)] = (uint16_t)(sum - given);
            given = sum;
        }
    }
}

/* Reverses the order of the results. */
static void axis_turn(AreaAxis *axis) {
    for (int32_t i = 0, j = axis->count - 1; i < j; i++, j--) {
        int32_t at = axis->at[i];
        axis->at[i] = axis->at[j];
        axis->at[j] = at;
        uint16_t *low = axis->weights + i * axis->taps, *high = axis->weights + j * axis->taps;
        for (int k = 0; k < axis->taps; k++) {
            uint16_t weight = low[k];
            low[k] = high[k];
            high[k] = weight;
        }
    }
}

int area_begin(Area *area, Lengths y, Lengths x, int samples, uint8_t *out, size_t stride) {
    AreaAxis *axes[] = {&area->y, &area->x};
    const Lengths lengths[] = {y, x};
    size_t need = ((size_t)samples + AREA_TAPS) * sizeof *area->sums;
    for (int i = 0; i < 2; i++) {
        axes[i]->count = count_of(lengths[i]);
        axes[i]->taps = taps_of(lengths[i]);
        if (!axes[i]->taps) return -1;
        need += (size_t)axes[i]->count * (2 * sizeof(int32_t) + (size_t)axes[i]->taps * sizeof(uint16_t));
    }
    int32_t *memory = scratch_take(&area->memory, need);
    if (!memory) return -1;
    for (int i = 0; i < 2; i++) {
        axes[i]->at = memory;
        axes[i]->last = memory + axes[i]->count;
        memory += 2 * axes[i]->count;
    }
    area->y.weights = (uint16_t *)memory;
    area->x.weights = area->y.weights + (size_t)area->y.count * (size_t)area->y.taps;
    area->sums = area->x.weights + (size_t)area->x.count * (size_t)area->x.taps;
    memset(area->sums, 0, ((size_t)samples + AREA_TAPS) * sizeof *area->sums);
    axis_cover(&area->y, y, DOWN_ONE);
    axis_cover(&area->x, x, ACROSS_ONE);
    if (x.mirrored) axis_turn(&area->x);
    area->x.same = area->x.same && !x.mirrored;
    area->out = out;
    area->stride = stride;
    area->row = area->next = 0;
    area->upwards = y.mirrored;
    area->samples = samples;
    return 0;
}

static uint16_t part(uint8_t value, uint16_t weight) {
    return (uint16_t)(((uint32_t)(uint16_t)(value << 8) * weight) >> 16);
}

static void put_row(uint16_t *restrict sums, const uint8_t *restrict row, uint16_t weight, uint16_t bias, int count) {
    for (int i = 0; i < count; i++) sums[i] = (uint16_t)(bias + part(row[i], weight));
}

static void add_row(uint16_t *restrict sums, const uint8_t *restrict row, uint16_t weight, int count) {
    for (int i = 0; i < count; i++) sums[i] = (uint16_t)(sums[i] + part(row[i], weight));
}

static void across_plain(const uint16_t *sums, const AreaAxis *x, int from, uint8_t *out) {
    const uint16_t *weights = x->weights + (size_t)from * (size_t)x->taps;
    for (int i = from; i < x->count; i++, weights += x->taps) {
        const uint16_t *source = sums + x->at[i];
        int32_t total = 1 << (SHIFT - 1);
        for (int k = 0; k < x->taps; k++) total += source[k] * weights[k];
        out[i] = (uint8_t)(total >> SHIFT);
    }
}

#ifdef WIDE
/* Averages four results at a time, from four samples each per step. */
static int across_wide(const uint16_t *sums, const AreaAxis *x, uint8_t *out) {
    const __m128i half = _mm_set1_epi32(1 << (SHIFT - 1));
    const uint16_t *weights = x->weights;
    size_t taps = (size_t)x->taps;
    int i = 0;
    for (; i + GROUP <= x->count; i += GROUP, weights += GROUP * taps) {
        __m128i total = half;
        for (size_t k = 0; k < taps; k += GROUP) {
            __m128i pairs[2];
            for (int p = 0; p < 2; p++) {
                const uint16_t *first = sums + x->at[i + 2 * p] + k, *second = sums + x->at[i + 2 * p + 1] + k;
                const uint16_t *w = weights + 2 * (size_t)p * taps + k;
                __m128i values = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)first),
                                                    _mm_loadl_epi64((const __m128i *)second));
                __m128i shares = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)w),
                                                    _mm_loadl_epi64((const __m128i *)(w + taps)));
                pairs[p] = _mm_madd_epi16(values, shares);
            }
            __m128 low = _mm_castsi128_ps(pairs[0]), high = _mm_castsi128_ps(pairs[1]);
            __m128i even = _mm_castps_si128(_mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
            __m128i odd = _mm_castps_si128(_mm_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)));
            total = _mm_add_epi32(total, _mm_add_epi32(even, odd));
        }
        __m128i made = _mm_srai_epi32(total, SHIFT);
        made = _mm_packs_epi32(made, made);
        int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(made, made));
        memcpy(out + i, &bytes, sizeof bytes);
    }
    return i;
}
#endif

static void finish_result(Area *area) {
    uint8_t *out = area->out + area->stride * (size_t)(area->upwards ? area->y.count - 1 - area->next : area->next);
    int from = 0;
#ifdef WIDE
    from = across_wide(area->sums, &area->x, out);
#endif
    across_plain(area->sums, &area->x, from, out);
    area->next++;
}

void area_row(Area *area, const uint8_t *row) {
    int32_t number = area->row++;
    if (area->y.same && area->x.same) {
        if (number >= area->y.count) return;
        memcpy(area->out + area->stride * (size_t)(area->upwards ? area->y.count - 1 - number : number), row,
               (size_t)area->x.count);
        return;
    }
    while (area->next < area->y.count) { /* a row may end one result and begin the next one */
        int32_t at = area->y.at[area->next], last = area->y.last[area->next];
        uint16_t weight = area->y.weights[area->next * area->y.taps + (number - at)];
        if (number == at) put_row(area->sums, row, weight, (uint16_t)((last - at + 1) / 2), area->samples);
        else add_row(area->sums, row, weight, area->samples);
        if (number < last) return;
        finish_result(area);
        if (area->next < area->y.count && area->y.at[area->next] > number) return;
    }
}

void plane_swap(const uint8_t *source, size_t stride, Plane plane) {
    for (int top = 0; top < plane.height; top += TILE)
        for (int left = 0; left < plane.width; left += TILE)
            for (int y = top; y < plane.height && y < top + TILE; y++)
                for (int x = left; x < plane.width && x < left + TILE; x++)
                    plane.pixels[plane.stride * (size_t)y + (size_t)x] = source[stride * (size_t)x + (size_t)y];
}
