/* Numbers of arrays converted to floats, normalized and filled in one pass: the loops of `engines/array_transforms.py`. */
#include <stdint.h>
#include <string.h>

/* Floating-point exceptions are of no interest, so the compiler may compute what it then does not choose. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif
#include "processors.h"

enum { MOST = 1024, MOST_AXES = 32 }; /* values at a time, which stay in the first cache */

/* Values along one axis: how far apart they are, in bytes, and their numbers, in entries. */
typedef struct {
    const char *values;
    const float *numbers[3]; /* mean, standard deviation, what takes the place of missing values */
    int64_t value_step, number_steps[3];
} Line;

/* Defines `convert_T`, which writes `(x - mean) / std` of n values to `out`, and to `missing` which are none: those are
 * filled if `fills`. Each operation is rounded to float. No value is read after one behind it was written. */
#define EACH _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
#define DEFINE(T)                                                                                                      \
    EVERY_PROCESSOR static void convert_##T(                                                                           \
        const Line *line, int64_t n, const void *codes, int64_t coded, int fills, float *out, uint8_t *missing         \
    ) {                                                                                                                \
        const float mean = *line->numbers[0], std = *line->numbers[1], fill = *line->numbers[2];                       \
        const T code = coded ? *(const T *)codes : (T)0, *values = (const T *)line->values;                            \
        const int64_t *steps = line->number_steps;                                                                     \
        const int plain = !steps[0] && !steps[1] && !steps[2] && line->value_step == (int64_t)sizeof(T);               \
        if (plain && !fills)                                                                                           \
            EACH out[i] = ((float)values[i] - mean) / std;                                                             \
        else if (plain && coded == 0)                                                                                  \
            EACH {                                                                                                     \
                const int none = values[i] != values[i];                                                               \
                const float made = ((float)values[i] - mean) / std;                                                    \
                missing[i] = (uint8_t)none;                                                                            \
                out[i] = none ? fill : made;                                                                           \
            }                                                                                                          \
        else if (plain && coded == 1)                                                                                  \
            EACH {                                                                                                     \
                const int none = (values[i] != values[i]) | (values[i] == code);                                       \
                const float made = ((float)values[i] - mean) / std;                                                    \
                missing[i] = (uint8_t)none;                                                                            \
                out[i] = none ? fill : made;                                                                           \
            }                                                                                                          \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const T value = *(const T *)(line->values + i * line->value_step);                                     \
                int none = value != value;                                                                             \
                for (int64_t k = 0; k < coded; k++) none |= value == ((const T *)codes)[k];                            \
                none &= fills;                                                                                         \
                missing[i] = (uint8_t)none;                                                                            \
                out[i] = none ? line->numbers[2][i * steps[2]]                                                         \
                              : ((float)value - line->numbers[0][i * steps[0]]) / line->numbers[1][i * steps[1]];      \
            }                                                                                                          \
    }

DEFINE(float)
DEFINE(double)
DEFINE(uint8_t)
DEFINE(int8_t)
DEFINE(uint16_t)
DEFINE(int16_t)
DEFINE(uint32_t)
DEFINE(int32_t)
DEFINE(uint64_t)
DEFINE(int64_t)

typedef void Convert(const Line *, int64_t, const void *, int64_t, int, float *, uint8_t *);
static Convert *const CONVERT[] = {
    convert_float,    convert_double,  convert_uint8_t,  convert_int8_t,   convert_uint16_t,
    convert_int16_t,  convert_uint32_t, convert_int32_t, convert_uint64_t, convert_int64_t,
};

enum { FLOAT32, BFLOAT16, FLOAT16 };

/* Both round to the nearest number, to the even one of two. */
EVERY_PROCESSOR static void round_to_bfloat16(const float *floats, int64_t n, uint16_t *out) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, floats + i, 4);
        const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        out[i] = (uint16_t)(floats[i] != floats[i] ? 0x7FC0 : rounded);
    }
}

EVERY_PROCESSOR static void round_to_float16(const float *floats, int64_t n, uint16_t *out) {
    uint32_t bits[MOST], tiny[MOST];
    float small[MOST];
    memcpy(bits, floats, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) small[i] = __builtin_fabsf(floats[i]) + 0.5f; /* whose last place is a half's */
    memcpy(tiny, small, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t size = bits[i] & 0x7FFFFFFFu, sign = bits[i] >> 16 & 0x8000u;
        const uint32_t normal = (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
        const uint32_t large = size > 0x7F800000u ? 0x7E00u : 0x7C00u; /* NaN, or infinity */
        const uint32_t found = size >= 0x47800000u ? large : size < 0x38800000u ? tiny[i] - (126u << 23) : normal;
        out[i] = (uint16_t)(found | sign);
    }
}

/* One array. `at` counts along its axes. */
static void convert(
    Convert *function, int64_t axes, const int64_t *shape, const int64_t *steps, const char *values, const float *const *numbers,
    const void *codes, int64_t coded, int64_t fills, int64_t dtype, char *out, uint8_t *marks
) {
    float floats[MOST];
    uint8_t missing[MOST];
    int64_t at[MOST_AXES] = {0};
    const int64_t last = axes - 1, length = shape[last], size = dtype == FLOAT32 ? 4 : 2;
    for (int64_t axis = 0; axis < axes; axis++)
        if (!shape[axis]) return;
    for (;;) {
        Line line = {values, {numbers[0], numbers[1], numbers[2]}, steps[last], {0}};
        for (int k = 0; k < 3; k++) line.number_steps[k] = steps[(k + 1) * axes + last];
        for (int64_t axis = 0; axis < last; axis++) {
            line.values += at[axis] * steps[axis];
            for (int k = 0; k < 3; k++) line.numbers[k] += at[axis] * steps[(k + 1) * axes + axis];
        }
        for (int64_t i = 0; i < length; i += MOST) {
            const int64_t n = length - i < MOST ? length - i : MOST;
            function(&line, n, codes, coded, (int)fills, dtype == FLOAT32 ? (float *)out : floats, marks ? marks : missing);
            if (dtype == BFLOAT16) round_to_bfloat16(floats, n, (uint16_t *)out);
            if (dtype == FLOAT16) round_to_float16(floats, n, (uint16_t *)out);
            line.values += n * line.value_step;
            for (int k = 0; k < 3; k++) line.numbers[k] += n * line.number_steps[k];
            out += n * size;
            marks = marks ? marks + n : NULL;
        }
        int64_t axis = last - 1;
        while (axis >= 0 && ++at[axis] == shape[axis]) at[axis--] = 0;
        if (axis < 0) return;
    }
}

/* Converts `count` arrays of one shape and layout: `shape` [axes], and `steps` [4, axes], the distance along each axis of
 * the values, in bytes, and of the three numbers, in entries. `kind` is the place of the values' dtype in `CONVERT`.
 *
 * `codes` are `coded` numbers of that dtype that stand for no value beside NaN. `out` receives numbers of `dtype`, and
 * `marks`, unless they are NULL, which values were none; both are contiguous. An `out` may be its `values`. */
void shardio_convert_numbers(
    int64_t kind, int64_t axes, const int64_t *shape, const int64_t *steps, int64_t count, const char *const *values,
    const float *const *numbers, const void *codes, int64_t coded, int64_t fills, int64_t dtype, char *const *out,
    uint8_t *const *marks
) {
    for (int64_t i = 0; i < count; i++)
        convert(
            CONVERT[kind], axes, shape, steps, values[i], numbers, codes, coded, fills, dtype, out[i],
            fills && marks ? marks[i] : NULL
        );
}
