/* Steps that change the colour of each pixel. The arithmetic is that of Pillow: Blend.c and Convert.c, ImageEnhance and
 * ImageOps. */
#include "steps.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 /* pixels: the planes of a block fit the first-level cache */ };

static inline int32_t grey_of(int32_t r, int32_t g, int32_t b) { return (19595 * r + 38470 * g + 7471 * b + 32768) >> 16; }

/* What lies between two bytes, or beyond them: cut off, not rounded. */
static inline uint8_t between(int32_t base, int32_t value, float factor) {
    float blended = (float)base + factor * (float)(value - base);
    blended = blended > 0 ? blended : 0;
    return (uint8_t)(int32_t)(blended < 255 ? blended : 255);
}

EVERY_PROCESSOR static int64_t sum_of_greys(const uint8_t *pixels, int64_t count) {
    int64_t sum = 0;
    for (int64_t first = 0; first < count; first += BLOCK, pixels += 3 * BLOCK) {
        int32_t size = count - first < BLOCK ? (int32_t)(count - first) : BLOCK, part = 0;
        for (int32_t i = 0; i < size; i++) part += grey_of(pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]);
        sum += part;
    }
    return sum;
}

EVERY_PROCESSOR static void blend_with_value(uint8_t *pixels, int64_t count, int32_t base, float factor) {
    for (int64_t i = 0; i < count; i++) pixels[i] = between(base, pixels[i], factor);
}

EVERY_PROCESSOR static void blend_with_grey(uint8_t *pixels, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++, pixels += 3) {
        int32_t grey = grey_of(pixels[0], pixels[1], pixels[2]);
        for (int c = 0; c < 3; c++) pixels[c] = between(grey, pixels[c], factor);
    }
}

void blend(Pixels image, float factor, int base) {
    int64_t count = (int64_t)image.height * image.width, sum = 0;
    if (base == BASE_GREY) {
        if (image.channels == 3) blend_with_grey(image.pixels, count, factor);
        return; /* a grey image is its own grey */
    }
    if (base == BASE_MEAN && count > 0) {
        if (image.channels == 3)
            sum = sum_of_greys(image.pixels, count);
        else
            for (int64_t i = 0; i < count; i++) sum += image.pixels[i];
        sum = (int64_t)((double)sum / (double)count + 0.5);
    }
    blend_with_value(image.pixels, count * image.channels, (int32_t)sum, factor);
}

/* Hues are bytes, of which 255 make a circle. A hue that is a whole number is one less where Pillow's rounding errors
 * take it below. */
static const uint32_t LESS[8] = {0xfffffffe, 0, 0x11000000, 0x111, 0x222aaaaa, 0x23232222, 0x22222, 0};

typedef struct {
    int32_t r[BLOCK], g[BLOCK], b[BLOCK];
} Planes;

/* The value of a channel that is `place` away from red on the circle of 510 half hues. */
static inline int32_t channel(int32_t hue, int32_t place, int32_t saturation, int32_t value) {
    int32_t k = 2 * hue + place;
    k = k >= 510 ? k - 510 : k;
    k = k < 340 - k ? k : 340 - k;
    k = k > 0 ? k : 0;
    k = k < 85 ? k : 85;
    return value - (int32_t)(((float)(value * saturation * k) + 10837.5f) * (1 / 21675.0f));
}

EVERY_PROCESSOR static void turn_block(Planes *planes, int32_t count, int32_t turn) {
    for (int32_t i = 0; i < count; i++) {
        int32_t r = planes->r[i], g = planes->g[i], b = planes->b[i];
        int32_t high = r > g ? r : g, low = r < g ? r : g;
        high = high > b ? high : b;
        low = low < b ? low : b;
        int32_t span = high - low, some = span > 0 ? span : 1;
        int32_t sixths = high == r ? g - b : high == g ? 2 * span + b - r : 4 * span + r - g;
        sixths = 85 * (sixths < 0 ? sixths + 6 * span : sixths);
        int32_t hue = (int32_t)((float)sixths / (float)(2 * some));
        int32_t less = (int32_t)(LESS[hue >> 5] >> (hue & 31)) & 1;
        hue -= hue * 2 * some == sixths ? less : 0;
        hue = (hue + turn) & 255;
        int32_t saturation = (int32_t)((float)(255 * span) / (float)(high > 0 ? high : 1));
        planes->r[i] = channel(hue, 425, saturation, high);
        planes->g[i] = channel(hue, 255, saturation, high);
        planes->b[i] = channel(hue, 85, saturation, high);
    }
}

/* Adds `turn` to the hues of an image. */
EVERY_PROCESSOR void turn_hue(Pixels image, int turn) {
    Planes planes;
    int64_t count = (int64_t)image.height * image.width;
    if (image.channels != 3) return;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int32_t size = count - first < BLOCK ? (int32_t)(count - first) : BLOCK;
        uint8_t *at = image.pixels + 3 * first;
        for (int32_t i = 0; i < size; i++) {
            planes.r[i] = at[3 * i];
            planes.g[i] = at[3 * i + 1];
            planes.b[i] = at[3 * i + 2];
        }
        turn_block(&planes, size, turn);
        for (int32_t i = 0; i < size; i++) {
            at[3 * i] = (uint8_t)planes.r[i];
            at[3 * i + 1] = (uint8_t)planes.g[i];
            at[3 * i + 2] = (uint8_t)planes.b[i];
        }
    }
}

EVERY_PROCESSOR void solarize(Pixels image, float threshold) {
    int64_t count = (int64_t)image.height * image.width * image.channels;
    int32_t from = threshold <= 0 ? 0 : threshold > 255 ? 256 : (int32_t)ceilf(threshold);
    for (int64_t i = 0; i < count; i++) {
        int32_t value = image.pixels[i];
        image.pixels[i] = (uint8_t)(value >= from ? 255 - value : value);
    }
}

typedef struct {
    int64_t counts[3][256];
} Histograms;

static void count_values(Pixels image, Histograms *histograms) {
    int64_t count = (int64_t)image.height * image.width;
    const uint8_t *at = image.pixels;
    memset(histograms, 0, sizeof *histograms);
    for (int64_t i = 0; i < count; i++, at += image.channels)
        for (int c = 0; c < image.channels; c++) histograms->counts[c][at[c]]++;
}

static void look_up(Pixels image, uint8_t tables[3][256]) {
    int64_t count = (int64_t)image.height * image.width;
    uint8_t *at = image.pixels;
    for (int64_t i = 0; i < count; i++, at += image.channels)
        for (int c = 0; c < image.channels; c++) at[c] = tables[c][at[c]];
}

static uint8_t cut_off(double value) { return value <= 0 ? 0 : value >= 255 ? 255 : (uint8_t)value; }

void stretch_contrast(Pixels image) {
    Histograms histograms;
    uint8_t tables[3][256];
    count_values(image, &histograms);
    for (int c = 0; c < image.channels; c++) {
        int low = 0, high = 255;
        while (low < 255 && !histograms.counts[c][low]) low++;
        while (high > 0 && !histograms.counts[c][high]) high--;
        double scale = high > low ? 255.0 / (high - low) : 1, offset = high > low ? -low * scale : 0;
        for (int value = 0; value < 256; value++) tables[c][value] = cut_off(value * scale + offset);
    }
    look_up(image, tables);
}

void equalize(Pixels image) {
    Histograms histograms;
    uint8_t tables[3][256];
    int64_t count = (int64_t)image.height * image.width;
    count_values(image, &histograms);
    for (int c = 0; c < image.channels; c++) {
        const int64_t *counts = histograms.counts[c];
        int last = 255;
        while (last > 0 && !counts[last]) last--;
        int64_t step = (count - counts[last]) / 255, sum = step / 2;
        for (int value = 0; value < 256; sum += counts[value++]) {
            int64_t level = step ? sum / step : value;
            tables[c][value] = (uint8_t)(level < 255 ? level : 255);
        }
    }
    look_up(image, tables);
}
