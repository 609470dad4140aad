/* Resizing of bytes with Pillow's filters, bit for bit: widened by the scale where it shrinks, horizontally, then
 * vertically, rounded to bytes in between. The arithmetic is that of Pillow's Resample.c and, for `nearest`, Geometry.c.
 *
 * Rows arrive from top to bottom and are resized horizontally at once; as many are kept as one result needs. A weight of
 * 22 bits is split into two factors that fit the processor's 16-bit products; sums are exact, so every kernel gives the
 * same bytes. */
#include "image.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__) && !defined(SHARDIO_PLAIN)
#include <immintrin.h>
#define WIDE 1
#endif

enum { BITS = 22, DIGIT = 8, HALF = 1 << (BITS - 1), LOW = 12, GROUP = 4, ALIGN = 64 };
static const float UNIT = 1.0f / 255;

static double box(double x) { return x > -0.5 && x <= 0.5; }

static double bilinear(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double hamming(double x) {
    x = fabs(x);
    if (x == 0) return 1;
    if (x >= 1) return 0;
    x *= M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) {
    if (x == 0) return 1;
    x *= M_PI;
    return sin(x) / x;
}

static double bicubic_points(double x) { /* OpenCV's and torch's curve */
    const double a = -0.75;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : 0;
}

static double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static const struct {
    double (*weight)(double);
    double support;
    int points; /* between the nearest pixels, however much an axis shrinks; those beyond an edge are the edge's */
} FILTERS[] = {[FILTER_NEAREST] = {box, 0, 1},
               [FILTER_BOX] = {box, 0.5, 0},
               [FILTER_BILINEAR] = {bilinear, 1, 0},
               [FILTER_HAMMING] = {hamming, 1, 0},
               [FILTER_BICUBIC] = {bicubic, 2, 0},
               [FILTER_LANCZOS] = {lanczos, 3, 0},
               [FILTER_BILINEAR_POINTS] = {bilinear, 1, 1},
               [FILTER_BICUBIC_POINTS] = {bicubic_points, 2, 1}};

/* What Pillow computes of an axis before its results. */
typedef struct {
    double scale, widened, support;
} Reach;

static Reach reach_of(int filter, Extent extent) {
    double scale = (extent.high - extent.low) / extent.results;
    double widened = scale < 1 || FILTERS[filter].points ? 1 : scale;
    return (Reach){scale, widened, FILTERS[filter].support * widened};
}

static int is_same(Extent extent) {
    return extent.low == 0 && extent.high == extent.size && extent.size == extent.results;
}

/* Sets the source pixels of the results; returns the most of one. */
static int32_t axis_places(FilterAxis *axis, int filter, Extent extent, int turned) {
    const Reach reach = reach_of(filter, extent);
    int32_t most = 1, step = turned ? -1 : 1, to = turned ? extent.count - 1 : 0;
    axis->same = is_same(extent);
    if (filter == FILTER_NEAREST || axis->same) {
        double place = extent.low + reach.scale * 0.5; /* Pillow adds up the places rather than multiplying */
        for (int32_t i = 0; i < extent.first + extent.count; i++, place += reach.scale) {
            if (i < extent.first) continue;
            axis->at[to] = (int32_t)place < extent.size ? (int32_t)place : extent.size - 1;
            axis->used[to] = 1;
            to += step;
        }
        return 1;
    }
    for (int32_t i = extent.first; i < extent.first + extent.count; i++, to += step) {
        double center = extent.low + (i + 0.5) * reach.scale;
        int32_t low = (int32_t)(center - reach.support + 0.5), high = (int32_t)(center + reach.support + 0.5);
        low = low < 0 ? 0 : low;
        high = high > extent.size ? extent.size : high;
        axis->at[to] = low;
        axis->used[to] = high - low;
        most = high - low > most ? high - low : most;
    }
    return most;
}

/* Sets the weights of a result between points: of those beyond an edge, the edge's pixel has the weight too. */
static void put_points(int32_t *weights, double (*weight)(double), double center, double support, int32_t at,
                       int32_t used) {
    int32_t first = (int32_t)floor(center - support + 0.5), last = first + 2 * (int32_t)support - 1;
    for (int32_t place = first; place <= last; place++) {
        int32_t t = place < at ? 0 : place >= at + used ? used - 1 : place - at;
        double share = weight(place - center + 0.5);
        weights[t] += (int32_t)floor(0.5 + share * (1 << (BITS - DIGIT))) * (1 << DIGIT); /* the last digit is 0 */
    }
}

/* Sets the weights of the results; `shares` has room for `axis->taps` numbers. */
static void axis_weights(FilterAxis *axis, int filter, Extent extent, int turned, double *shares) {
    const Reach reach = reach_of(filter, extent);
    double step = 1 / reach.widened;
    int32_t *weights = axis->weights;
    for (int32_t place = 0; place < axis->count; place++, weights += axis->taps) {
        int32_t used = axis->used[place], result = extent.first + (turned ? axis->count - 1 - place : place);
        if (filter == FILTER_NEAREST || axis->same) {
            weights[0] = 1 << BITS;
            continue;
        }
        double center = extent.low + (result + 0.5) * reach.scale, sum = 0;
        if (FILTERS[filter].points) {
            put_points(weights, FILTERS[filter].weight, center, reach.support, axis->at[place], used);
            continue;
        }
        for (int32_t t = 0; t < used; t++) {
            double x = (t + axis->at[place] - center + 0.5) * step;
            shares[t] = filter == FILTER_BILINEAR ? bilinear(x) : FILTERS[filter].weight(x);
            sum += shares[t];
        }
        for (int32_t t = 0; t < used; t++) {
            double share = sum != 0 ? shares[t] / sum : shares[t];
            weights[t] = (int32_t)((share < 0 ? -0.5 : 0.5) + share * (1 << BITS));
        }
    }
}

/* Fills an axis; `turned`: the results are in reverse order. Returns 0, or -1 if memory is exhausted. */
static int axis_fill_filter(FilterAxis *axis, int filter, Extent extent, int turned) {
    size_t count = (size_t)extent.count;
    axis->count = extent.count;
    axis->coarse = FILTERS[filter].points;
    axis->at = scratch_take(&axis->places, 2 * count * sizeof *axis->at);
    if (!axis->at) return -1;
    axis->used = axis->at + count;
    axis->most = axis_places(axis, filter, extent, turned);
    axis->taps = (axis->most + GROUP - 1) / GROUP * GROUP;
    size_t weights = count * (size_t)axis->taps;
    double *shares = scratch_take(&axis->numbers, (size_t)axis->taps * sizeof *shares +
                                                      weights * (sizeof *axis->weights + 2 * sizeof *axis->high));
    if (!shares) return -1;
    axis->weights = (int32_t *)(shares + axis->taps);
    axis->high = (int16_t *)(axis->weights + weights);
    axis->low = axis->high + weights;
    memset(axis->weights, 0, weights * sizeof *axis->weights);
    axis_weights(axis, filter, extent, turned, shares);
    axis->from = extent.size;
    axis->to = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t end = axis->at[i] + axis->used[i];
        axis->from = axis->at[i] < axis->from ? axis->at[i] : axis->from;
        axis->to = end > axis->to ? end : axis->to;
    }
    for (size_t i = 0; i < count; i++) axis->at[i] -= axis->from;
    return 0;
}

#ifdef WIDE
/* Splits weights into the factors that AVX2 multiplies. */
static void axis_halve(FilterAxis *axis) {
    size_t weights = (size_t)axis->count * (size_t)axis->taps;
    for (size_t i = 0; i < weights; i++) {
        axis->high[i] = (int16_t)(axis->weights[i] >> LOW);
        axis->low[i] = (int16_t)(axis->weights[i] & ((1 << LOW) - 1));
    }
}
#endif

/* Fills an axis whose results are the source pixels in their places. */
static void axis_copy(FilterAxis *axis, Extent extent) {
    axis->count = extent.count;
    axis->from = extent.first;
    axis->to = extent.first + extent.count;
}

#ifdef WIDE
/* Macros leave kernels out, to test what other processors run. */
static int has_avx2(void) {
#ifdef SHARDIO_NO_AVX2
    return 0;
#else
    return __builtin_cpu_supports("avx2");
#endif
}

static int has_vnni(void) {
#if defined(SHARDIO_NO_AVX2) || defined(SHARDIO_NO_AVX512)
    return 0;
#else
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#endif
}
#endif

static uint8_t rounded(uint32_t sum) {
    int32_t value = (int32_t)sum >> BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void across_plain(const uint8_t *row, const FilterAxis *x, int from, int channels, uint8_t *out) {
    for (int32_t i = from; i < x->count; i++) {
        const uint8_t *source = row + (size_t)x->at[i] * (size_t)channels;
        const int32_t *weights = x->weights + (size_t)i * (size_t)x->taps;
        for (int c = 0; c < channels; c++) {
            uint32_t sum = HALF; /* sums may pass 2^31 on the way; unsigned numbers wrap */
            for (int32_t t = 0; t < x->used[i]; t++) sum += (uint32_t)source[t * channels + c] * (uint32_t)weights[t];
            out[i * channels + c] = rounded(sum);
        }
    }
}

static void down_plain(const uint8_t *const *rows, const int32_t *weights, int32_t used, uint8_t *out, int from,
                       int count) {
    for (int i = from; i < count; i++) {
        uint32_t sum = HALF;
        for (int32_t t = 0; t < used; t++) sum += (uint32_t)rows[t][i] * (uint32_t)weights[t];
        out[i] = rounded(sum);
    }
}

static void planes_plain(const uint8_t *row, const float *normalize, float *out, size_t plane, int from, int width,
                         int channels) {
    for (int c = 0; c < channels; c++)
        for (int i = from; i < width; i++)
            out[(size_t)c * plane + (size_t)i] =
                ((float)row[i * channels + c] * UNIT - normalize[2 * c]) / normalize[2 * c + 1];
}

#ifndef SHARDIO_PLAIN
/* Four numbers in a register of any processor: SSE2, NEON and others, as the compiler knows them. */
typedef uint32_t Four __attribute__((vector_size(16)));
typedef int32_t FourSigned __attribute__((vector_size(16)));
typedef uint8_t FourBytes __attribute__((vector_size(4)));

static inline Four four_load(const uint8_t *from) {
    FourBytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Four);
}

static inline FourBytes four_rounded(Four sum) {
    FourSigned value = (FourSigned)sum >> BITS;
    value &= ~(value >> 31);                 /* at least 0 */
    value = (value | (255 - value) >> 31) & 255; /* at most 255 */
    return __builtin_convertvector(value, FourBytes);
}

/* Resizes a row of RGB pixels; returns how many results it made. Writes a byte beyond each. */
static int across_four(const uint8_t *row, const FilterAxis *x, uint8_t *out) {
    const int32_t *weights = x->weights;
    for (int32_t i = 0; i < x->count; i++, weights += x->taps) {
        const uint8_t *source = row + 3 * x->at[i];
        Four sum = {HALF, HALF, HALF, HALF};
        for (int32_t t = 0; t < x->used[i]; t++) sum += four_load(source + 3 * t) * (uint32_t)weights[t];
        FourBytes bytes = four_rounded(sum);
        memcpy(out + 3 * i, &bytes, sizeof bytes);
    }
    return x->count;
}

/* Adds up rows, 16 bytes at a time; returns how many bytes it made. */
static int down_four(const uint8_t *const *rows, const int32_t *weights, int32_t used, uint8_t *out, int count) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        Four sums[4];
        for (int k = 0; k < 4; k++) sums[k] = (Four){HALF, HALF, HALF, HALF};
        for (int32_t t = 0; t < used; t++)
            for (int k = 0; k < 4; k++) sums[k] += four_load(rows[t] + i + 4 * k) * (uint32_t)weights[t];
        for (int k = 0; k < 4; k++) {
            FourBytes bytes = four_rounded(sums[k]);
            memcpy(out + i + 4 * k, &bytes, sizeof bytes);
        }
    }
    return i;
}
#endif

#ifdef WIDE
#define AVX2 __attribute__((target("avx2")))

/* The sums of one RGB result in pairs to be added: red, red, green, green, blue, blue, 0, 0. Reads up to 16 bytes beyond
 * the `used` pixels. */
AVX2 static inline __m256i sum_rgb(const uint8_t *source, const int16_t *high, const int16_t *low, int32_t used) {
    const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 6, -1, 9, -1, 1, -1, 4, -1, 7, -1, 10, -1, 2, -1, 5, -1, 8, -1,
                                           11, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i highs = _mm256_setzero_si256(), lows = _mm256_setzero_si256();
    int32_t t = 0;
    do {
        __m256i pixels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(source + 3 * t)));
        pixels = _mm256_shuffle_epi8(pixels, pairs);
        int64_t first, second;
        memcpy(&first, high + t, sizeof first);
        memcpy(&second, low + t, sizeof second);
        highs = _mm256_add_epi32(highs, _mm256_madd_epi16(pixels, _mm256_set1_epi64x(first)));
        lows = _mm256_add_epi32(lows, _mm256_madd_epi16(pixels, _mm256_set1_epi64x(second)));
        t += GROUP;
    } while (t < used);
    return _mm256_add_epi32(_mm256_slli_epi32(highs, LOW), lows);
}

/* Makes eight RGB results from their sums: sums[k] holds red, green, blue and a number of no use of results k and k + 4.
 * Writes 4 bytes beyond them. */
AVX2 static inline void put_rgb(const __m256i *sums, uint8_t *out) {
    const __m256i close_up = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32(HALF);
    __m256i made[4];
    for (int k = 0; k < 4; k++) made[k] = _mm256_srai_epi32(_mm256_add_epi32(sums[k], half), BITS);
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(made[0], made[1]), _mm256_packs_epi32(made[2], made[3]));
    bytes = _mm256_shuffle_epi8(bytes, close_up);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(out + 12), _mm256_extracti128_si256(bytes, 1));
}

/* The sums of two RGB results of at most `taps`, 2 or 4, source pixels, with weights as `across_pairs` arranges them. */
AVX2 static inline __m256i sum_few(const uint8_t *first, const uint8_t *second, const __m256i *weights, int taps) {
    const __m256i front = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i back = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
                                           _mm_loadu_si128((const __m128i *)second), 1);
    __m256i pixels = _mm256_shuffle_epi8(both, front);
    __m256i highs = _mm256_madd_epi16(pixels, weights[0]), lows = _mm256_madd_epi16(pixels, weights[1]);
    if (taps > 2) {
        pixels = _mm256_shuffle_epi8(both, back);
        highs = _mm256_add_epi32(highs, _mm256_madd_epi16(pixels, weights[2]));
        lows = _mm256_add_epi32(lows, _mm256_madd_epi16(pixels, weights[3]));
    }
    return _mm256_add_epi32(_mm256_slli_epi32(highs, LOW), lows);
}

/* Resizes a row of RGB pixels, eight results at a time; returns how many it made. */
AVX2 static inline int across_few(const uint8_t *row, const FilterAxis *x, uint8_t *out, int taps) {
    int32_t i = 0;
    const __m256i *weights = x->pairs;
    for (; i + 8 <= x->count; i += 8) {
        __m256i sums[4];
        for (int k = 0; k < 4; k++, weights += taps)
            sums[k] = sum_few(row + 3 * x->at[i + k], row + 3 * x->at[i + k + 4], weights, taps);
        put_rgb(sums, out + 3 * i);
    }
    return i;
}

AVX2 static int across_rgb(const uint8_t *row, const FilterAxis *x, uint8_t *out) {
    if (x->most <= 2) return across_few(row, x, out, 2);
    if (x->most <= 4) return across_few(row, x, out, 4);
    /* Brings the sums of two results, each in pairs, into the order of put_rgb. */
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    int32_t i = 0, taps = x->taps;
    const int16_t *high = x->high, *low = x->low;
    for (; i + 8 <= x->count; i += 8, high += 8 * taps, low += 8 * taps) {
        __m256i sums[4];
        for (int k = 0; k < 4; k++) {
            int32_t one = i + k, other = one + 4;
            __m256i a = sum_rgb(row + 3 * x->at[one], high + k * taps, low + k * taps, x->used[one]);
            __m256i b = sum_rgb(row + 3 * x->at[other], high + (k + 4) * taps, low + (k + 4) * taps, x->used[other]);
            sums[k] = _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(a, b), order);
        }
        put_rgb(sums, out + 3 * i);
    }
    return i;
}

/* Arranges the weights of at most 4 source pixels as sum_few takes them: for each pair of results and of source pixels
 * the high parts, then the low ones, each repeated for red, green and blue. Returns -1 if memory is exhausted. */
static int across_pairs(FilterAxis *x) {
    size_t pairs = x->most <= 2 ? 1 : 2, groups = (size_t)x->count / 8;
    int32_t *to = scratch_take(&x->arranged, groups * 4 * pairs * 2 * 32 + 32);
    if (!to) return -1;
    to = (int32_t *)(((uintptr_t)to + 31) / 32 * 32);
    x->pairs = (const __m256i *)to;
    for (size_t i = 0; i < groups * 8; i += 8)
        for (size_t k = 0; k < 4; k++)
            for (size_t p = 0; p < pairs; p++)
                for (int part = 0; part < 2; part++)
                    for (size_t result = i + k; result < i + 8; result += 4, to += 4) {
                        const int16_t *from = part ? x->low : x->high;
                        int32_t pair;
                        memcpy(&pair, from + result * (size_t)x->taps + 2 * p, sizeof pair);
                        for (int c = 0; c < 4; c++) to[c] = pair;
                    }
    return 0;
}

/* Converts sixteen RGB pixels at a time. The planes are much larger than any cache: aligned stores bypass it. */
AVX2 static void planes_wide(const uint8_t *row, const float *normalize, float *out,
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
            const __m256 mean = _mm256_set1_ps(normalize[2 * c]), deviation = _mm256_set1_ps(normalize[2 * c + 1]);
            float *line = out + (size_t)c * plane + (size_t)i;
            for (int half = 0; half < 2; half++, line += 8, bytes = _mm_srli_si128(bytes, 8)) {
                __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                values = _mm256_mul_ps(values, _mm256_set1_ps(UNIT));
                values = _mm256_div_ps(_mm256_sub_ps(values, mean), deviation);
                if (aligned) _mm256_stream_ps(line, values);
                else _mm256_storeu_ps(line, values);
            }
        }
    }
    planes_plain(row, normalize, out, plane, i, width, 3);
}

/* Adds up rows, 32 bytes at a time; returns how many bytes it made. `used` is even. */
AVX2 static int down_wide(const uint8_t *const *rows, const int16_t *high, const int16_t *low, int32_t used, uint8_t *out,
                          int count) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(HALF);
    int i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i highs[4] = {zero, zero, zero, zero}, lows[4] = {half, half, half, half};
        for (int32_t t = 0; t < used; t += 2) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(rows[t] + i));
            __m256i b = _mm256_loadu_si256((const __m256i *)(rows[t + 1] + i));
            __m256i first = _mm256_unpacklo_epi8(a, b), second = _mm256_unpackhi_epi8(a, b);
            int32_t pair;
            memcpy(&pair, high + t, sizeof pair);
            const __m256i upper = _mm256_set1_epi32(pair);
            memcpy(&pair, low + t, sizeof pair);
            const __m256i lower = _mm256_set1_epi32(pair);
            __m256i values[4] = {_mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
                                 _mm256_unpacklo_epi8(second, zero), _mm256_unpackhi_epi8(second, zero)};
            for (int k = 0; k < 4; k++) {
                highs[k] = _mm256_add_epi32(highs[k], _mm256_madd_epi16(values[k], upper));
                lows[k] = _mm256_add_epi32(lows[k], _mm256_madd_epi16(values[k], lower));
            }
        }
        for (int k = 0; k < 4; k++)
            lows[k] = _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(highs[k], LOW), lows[k]), BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(lows[0], lows[1]), _mm256_packs_epi32(lows[2], lows[3]));
        _mm256_storeu_si256((__m256i *)(out + i), bytes);
    }
    return i;
}
#endif

#ifdef WIDE
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

enum { LANES = 16, DIGITS = 3, BLOCK = 4 };

/* 16 sums of 4 products each. A byte of `places` chooses the source byte among those from the group's start, and a digit
 * is its weight in base 256: weights are digits[2] * 65536 + digits[1] * 256 + digits[0], all of them signed. */
typedef struct {
    uint8_t places[LANES][BLOCK];
    int8_t digits[DIGITS][LANES][BLOCK];
} Group;

static inline void put_digits(const int32_t *weights, int8_t (*digits)[BLOCK]) {
    for (int t = 0; t < BLOCK; t++) {
        int32_t weight = weights[t];
        for (int d = 0; d < DIGITS; d++) {
            digits[d][t] = (int8_t)weight;
            weight = (weight - digits[d][t]) >> DIGIT;
        }
    }
}

/* Arranges the weights of a horizontal axis by the bytes of its results, and of the bytes' source pixels four at a time.
 * Without groups (`reach` is 0) the axis is too steep. Returns -1 if memory is exhausted. */
static int axis_group(FilterAxis *x, int channels) {
    struct Groups *groups = &x->groups;
    const int32_t bytes = x->count * channels;
    groups->count = (bytes + LANES - 1) / LANES;
    groups->blocks = x->taps / BLOCK;
    groups->reach = 0;
    size_t count = (size_t)groups->count * (size_t)groups->blocks;
    uint8_t *memory = scratch_take(&x->arranged, count * (sizeof(Group) + sizeof *groups->starts) + 64);
    if (!memory) return -1;
    Group *group = (Group *)(memory + (64 - (uintptr_t)memory % 64) % 64);
    int32_t *start = (int32_t *)(group + count);
    groups->all = group;
    groups->starts = start;
    int32_t reach = 0;
    for (int32_t first = 0; first < bytes; first += LANES) {
        int32_t last = (first + LANES < bytes ? first + LANES : bytes) - 1;
        int32_t begin = x->at[first / channels], end = x->at[last / channels];
        int32_t low = begin < end ? begin : end, high = begin < end ? end : begin;
        if ((high - low + BLOCK) * channels > reach) reach = (high - low + BLOCK) * channels;
        if (reach > READ_BEYOND) return 0;
        for (int32_t block = 0; block < groups->blocks; block++, group++, start++) {
            int32_t from = low + block * BLOCK, end = x->to - x->from - 1;
            *start = (from < end ? from : end) * channels; /* beyond the end there are weights of zero only */
            int32_t result = first / channels, channel = first % channels;
            for (int lane = 0; lane < LANES; result++, channel = 0) {
                int8_t digits[DIGITS][BLOCK] = {0};
                int32_t known = result < x->count ? result : x->count - 1; /* the last group may have lanes of no use */
                put_digits(x->weights + (size_t)known * (size_t)x->taps + block * BLOCK, digits);
                int32_t place = (x->at[known] - low) * channels + channel;
                for (; channel < channels && lane < LANES; channel++, lane++, place++) {
                    for (int t = 0; t < BLOCK; t++) group->places[lane][t] = (uint8_t)(place + t * channels);
                    for (int d = 0; d < DIGITS; d++) memcpy(group->digits[d][lane], digits[d], BLOCK);
                }
            }
        }
    }
    groups->reach = reach;
    return 0;
}

VNNI static inline __m512i sum_digits(const __m512i *sums) {
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sums[2], DIGIT), sums[1]);
    return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(sum, DIGIT), sums[0]), BITS);
}

VNNI static inline void put_bytes(uint8_t *out, __m512i made) {
    made = _mm512_max_epi32(made, _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)out, _mm512_cvtusepi32_epi8(made));
}

/* Makes a row of results, and up to 15 bytes beyond. */
VNNI static void across_vnni(const uint8_t *row, const FilterAxis *x, uint8_t *out) {
    const struct Groups *groups = &x->groups;
    const Group *group = groups->all;
    const int32_t *start = groups->starts;
    const __m512i half = _mm512_set1_epi32(HALF), zero = _mm512_setzero_si512();
    const int far = groups->reach > 64;
    for (int32_t i = 0; i < groups->count; i++, out += LANES) {
        __m512i sums[DIGITS] = {half, zero, zero};
        for (int32_t block = 0; block < groups->blocks; block++, group++, start++) {
            const uint8_t *from = row + *start;
            __m512i places = _mm512_load_si512(group->places), bytes = _mm512_loadu_si512(from);
            if (far) bytes = _mm512_permutex2var_epi8(bytes, places, _mm512_loadu_si512(from + 64));
            else bytes = _mm512_permutexvar_epi8(places, bytes);
            for (int d = 0; d < DIGITS; d++)
                sums[d] = _mm512_dpbusd_epi32(sums[d], bytes, _mm512_load_si512(group->digits[d]));
        }
        put_bytes(out, sum_digits(sums));
    }
}

/* The same where a result has at most four source pixels, near one another: digit by digit from the highest. */
VNNI static inline void across_digits(const uint8_t *row, const struct Groups *groups, uint8_t *out, int digits) {
    const Group *group = groups->all, *end = group + groups->count;
    const int32_t *start = groups->starts;
    const __m512i half = _mm512_set1_epi32(HALF >> 16);
    for (; group < end; group++, start++, out += LANES) {
        __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(group->places), _mm512_loadu_si512(row + *start));
        __m512i sum = _mm512_dpbusd_epi32(half, bytes, _mm512_load_si512(group->digits[2]));
        sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, DIGIT), bytes, _mm512_load_si512(group->digits[1]));
        if (digits == DIGITS)
            sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, DIGIT), bytes, _mm512_load_si512(group->digits[0]));
        put_bytes(out, _mm512_srai_epi32(sum, digits == DIGITS ? BITS : BITS - DIGIT));
    }
}

VNNI static void across_block(const uint8_t *row, const FilterAxis *x, uint8_t *out) {
    if (x->coarse) across_digits(row, &x->groups, out, DIGITS - 1);
    else across_digits(row, &x->groups, out, DIGITS);
}

/* Splits the weights of a vertical axis into digits, each of four weights in one number. Returns -1 if memory is
 * exhausted. */
static int axis_split(FilterAxis *y) {
    size_t blocks = (size_t)y->count * (size_t)y->taps / BLOCK;
    int8_t(*digits)[DIGITS][BLOCK] = scratch_take(&y->arranged, blocks * sizeof *digits);
    if (!digits) return -1;
    y->pairs = digits;
    for (size_t i = 0; i < blocks; i++) put_digits(y->weights + i * BLOCK, digits[i]);
    return 0;
}

/* Brings the bytes of four rows together, column by column, in the order that `put_columns` undoes. */
VNNI static inline void interleave(const uint8_t *const *rows, int at, __mmask64 there, __m512i *four) {
    __m512i line[BLOCK];
    for (int k = 0; k < BLOCK; k++) line[k] = _mm512_maskz_loadu_epi8(there, rows[k] + at);
    __m512i low = _mm512_unpacklo_epi8(line[0], line[1]), high = _mm512_unpackhi_epi8(line[0], line[1]);
    __m512i lower = _mm512_unpacklo_epi8(line[2], line[3]), upper = _mm512_unpackhi_epi8(line[2], line[3]);
    four[0] = _mm512_unpacklo_epi16(low, lower);
    four[1] = _mm512_unpackhi_epi16(low, lower);
    four[2] = _mm512_unpacklo_epi16(high, upper);
    four[3] = _mm512_unpackhi_epi16(high, upper);
}

VNNI static inline void put_columns(uint8_t *out, __mmask64 there, const __m512i *made) {
    __m512i low = _mm512_packs_epi32(made[0], made[1]), high = _mm512_packs_epi32(made[2], made[3]);
    _mm512_mask_storeu_epi8(out, there, _mm512_packus_epi16(low, high));
}

static inline uint64_t columns_left(int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

/* Adds up rows, 64 bytes at a time. There are rows for four weights per block, some of them zero. */
VNNI static void down_vnni(const uint8_t *const *rows, const int32_t (*digits)[DIGITS], int32_t blocks, uint8_t *out,
                           int count) {
    const __m512i half = _mm512_set1_epi32(HALF), zero = _mm512_setzero_si512();
    for (int i = 0; i < count; i += 64) {
        const __mmask64 there = columns_left(count - i);
        __m512i sums[4][DIGITS], made[4];
        for (int k = 0; k < 4; k++) sums[k][0] = half, sums[k][1] = sums[k][2] = zero;
        for (int32_t block = 0; block < blocks; block++) {
            __m512i four[4];
            interleave(rows + block * BLOCK, i, there, four);
            for (int d = 0; d < DIGITS; d++) {
                const __m512i digit = _mm512_set1_epi32(digits[block][d]);
                for (int k = 0; k < 4; k++) sums[k][d] = _mm512_dpbusd_epi32(sums[k][d], four[k], digit);
            }
        }
        for (int k = 0; k < 4; k++) made[k] = sum_digits(sums[k]);
        put_columns(out + i, there, made);
    }
}

/* The same of at most four rows: digit by digit from the highest. */
VNNI static inline void down_digits(const uint8_t *const *rows, const int32_t (*digits)[DIGITS], uint8_t *out, int count,
                                    int used_digits) {
    const __m512i half = _mm512_set1_epi32(HALF >> 16), top = _mm512_set1_epi32(digits[0][2]),
                  middle = _mm512_set1_epi32(digits[0][1]), last = _mm512_set1_epi32(digits[0][0]);
    for (int i = 0; i < count; i += 64) {
        const __mmask64 there = columns_left(count - i);
        __m512i four[4], made[4];
        interleave(rows, i, there, four);
        for (int k = 0; k < 4; k++) {
            __m512i sum = _mm512_dpbusd_epi32(half, four[k], top);
            sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, DIGIT), four[k], middle);
            if (used_digits == DIGITS) sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, DIGIT), four[k], last);
            made[k] = _mm512_srai_epi32(sum, used_digits == DIGITS ? BITS : BITS - DIGIT);
        }
        put_columns(out + i, there, made);
    }
}

VNNI static void down_block(const uint8_t *const *rows, const FilterAxis *y, const int32_t (*digits)[DIGITS], uint8_t *out,
                            int count) {
    if (y->coarse) down_digits(rows, digits, out, count, DIGITS - 1);
    else down_digits(rows, digits, out, count, DIGITS);
}
#endif

/* Mirrors or copies the wanted part of a row that keeps its width. */
static void copy_row(const uint8_t *row, int32_t count, int channels, int flip, uint8_t *out) {
    if (!flip) memcpy(out, row, (size_t)count * (size_t)channels);
    else if (channels == 1)
        for (int32_t i = 0; i < count; i++) out[i] = row[count - 1 - i];
    else
        for (int32_t i = 0; i < count; i++) memcpy(out + 3 * i, row + 3 * (count - 1 - i), 3);
}

static void across(const Resampler *it, const uint8_t *row, uint8_t *out) {
    const FilterAxis *x = &it->x;
    if (x->same) {
        copy_row(row, x->count, it->output.channels, it->output.flip, out);
        return;
    }
    int from = 0;
#ifdef WIDE
    if (x->groups.reach) {
        (x->groups.blocks == 1 && x->groups.reach <= 64 ? across_block : across_vnni)(row, x, out);
        return;
    }
    if (it->output.channels == 3 && has_avx2()) from = across_rgb(row, x, out);
#endif
#ifndef SHARDIO_PLAIN
    if (it->output.channels == 3 && !from) from = across_four(row, x, out);
#endif
    across_plain(row, x, from, it->output.channels, out);
}

/* Makes the next result, of `count` bytes, from the rows that are kept. */
static void down(Resampler *it, uint8_t *out, int count) {
    const FilterAxis *y = &it->y;
    int32_t at = y->at[it->made], used = y->used[it->made];
    if (used == 1) {
        memcpy(out, it->kept + (size_t)(at % it->room) * it->stride, (size_t)count);
        return;
    }
    for (int32_t t = 0; t < (used + 3) / 4 * 4; t++) /* kernels read rows of no weight */
        it->rows[t] = it->kept + (size_t)((at + t % used) % it->room) * it->stride;
    size_t weights = (size_t)it->made * (size_t)y->taps;
    int from = 0;
#ifdef WIDE
    if (has_vnni()) {
        const int32_t(*digits)[DIGITS] = (const int32_t(*)[DIGITS])y->pairs + weights / BLOCK;
        if (used <= BLOCK) down_block(it->rows, y, digits, out, count);
        else down_vnni(it->rows, digits, (used + 3) / BLOCK, out, count);
        return;
    }
    if (has_avx2()) from = down_wide(it->rows, y->high + weights, y->low + weights, (used + 1) / 2 * 2, out, count);
#endif
#ifndef SHARDIO_PLAIN
    if (!from) from = down_four(it->rows, y->weights + weights, used, out, count);
#endif
    down_plain(it->rows, y->weights + weights, used, out, from, count);
}

/* Converts a line of results to floats in their planes. */
static void put_planes(const Resampler *it, const uint8_t *line) {
    const Output *to = &it->output;
    float *out = (float *)to->out + it->made * to->pitch;
#ifdef WIDE
    if (to->channels == 3 && has_avx2()) {
        planes_wide(line, to->normalize, out, to->plane, it->x.count);
        return;
    }
#endif
    planes_plain(line, to->normalize, out, to->plane, 0, it->x.count, to->channels);
}

void fill_pixels(Output output, int32_t height, int32_t width, const uint8_t *pixel) {
    for (int32_t row = 0; row < height; row++) {
        ptrdiff_t at = row * output.pitch;
        for (int32_t i = 0; i < width; i++, at++)
            if (output.normalize)
                planes_plain(pixel, output.normalize, (float *)output.out + at, output.plane, 0, 1, output.channels);
            else memcpy((uint8_t *)output.out + at * output.channels, pixel, (size_t)output.channels);
    }
}

int resample_begin(Resampler *it, int filter, Extent y, Extent x, Output output) {
    it->output = output;
    it->row = it->made = 0;
    it->copies = is_same(y) && is_same(x);
    if (it->copies) {
        axis_copy(&it->y, y);
        axis_copy(&it->x, x);
        it->kept = scratch_take(&it->memory, (size_t)x.count * (size_t)output.channels + READ_BEYOND);
        return it->kept ? 0 : -1;
    }
    if (axis_fill_filter(&it->y, filter, y, 0) || axis_fill_filter(&it->x, filter, x, output.flip)) return -1;
#ifdef WIDE
    it->x.groups.reach = 0;
    if (has_vnni() && (axis_split(&it->y) || (!it->x.same && axis_group(&it->x, output.channels)))) return -1;
    if (!has_vnni()) axis_halve(&it->y);
    if (!it->x.groups.reach) axis_halve(&it->x);
    if (!it->x.groups.reach && output.channels == 3 && it->x.most <= 4 && has_avx2() && across_pairs(&it->x)) return -1;
#endif
    it->room = it->y.taps;
    /* Since Pillow 13, with what is cut off each axis. Identical axes need no pass, and have no order. */
    double shorter = y.size - y.results, narrower = x.size - x.results;
    it->down_first = filter != FILTER_NEAREST && shorter > 0 && shorter > 2 * narrower;
    it->width = it->down_first ? it->x.to - it->x.from : x.count;
    int32_t widest = it->width > x.count ? it->width : x.count;
    it->stride = ((size_t)widest * (size_t)output.channels + READ_BEYOND + ALIGN - 1) / ALIGN * ALIGN;
    size_t pointers = ((size_t)it->room + 4) * sizeof *it->rows;
    uint8_t *memory = scratch_take(&it->memory, ALIGN + ((size_t)it->room + 2) * it->stride + pointers);
    if (!memory) return -1;
    it->kept = memory + (ALIGN - (uintptr_t)memory % ALIGN) % ALIGN;
    it->rows = (const uint8_t **)(it->kept + ((size_t)it->room + 2) * it->stride);
    return 0;
}

void resampler_free(Resampler *it) {
    Scratch *all[] = {&it->memory,    &it->y.places,  &it->y.numbers, &it->y.arranged,
                      &it->x.places, &it->x.numbers, &it->x.arranged};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
}

/* Makes a row of results of a row of their source pixels. */
static void copied_row(Resampler *it, const uint8_t *row) {
    const Output *to = &it->output;
    uint8_t *out = (uint8_t *)to->out + it->made * to->pitch * to->channels;
    if (!to->normalize) copy_row(row, it->x.count, to->channels, to->flip, out);
    else {
        if (to->flip) copy_row(row, it->x.count, to->channels, 1, it->kept);
        put_planes(it, to->flip ? it->kept : row);
    }
    it->made++;
}

void resample_row(Resampler *it, const uint8_t *row) {
    const FilterAxis *y = &it->y;
    if (it->copies) {
        copied_row(it, row);
        return;
    }
    int32_t number = it->row++;
    if (it->made == y->count || number < y->at[it->made]) return; /* no result needs it */
    size_t count = (size_t)it->width * (size_t)it->output.channels;
    uint8_t *kept = it->kept + (size_t)(number % it->room) * it->stride;
    if (it->down_first) memcpy(kept, row, count);
    else across(it, row, kept);
    for (; it->made < y->count && y->at[it->made] + y->used[it->made] - 1 <= number; it->made++) {
        size_t made = (size_t)it->x.count * (size_t)it->output.channels;
        ptrdiff_t place = it->made * it->output.pitch * it->output.channels;
        uint8_t *out = it->output.normalize ? NULL : (uint8_t *)it->output.out + place;
        uint8_t *line = it->kept + (size_t)it->room * it->stride, *bytes = line + it->stride;
        if (!it->down_first) down(it, out ? out : bytes, (int)count);
        else {
            down(it, line, (int)count);
            across(it, line, bytes); /* which writes beyond its results */
            if (out) memcpy(out, bytes, made);
        }
        if (!out) put_planes(it, bytes);
    }
}
