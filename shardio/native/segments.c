/* Cuts parts out of baseline JPEG files whose restart markers let a decoder begin in the middle. A part is a JPEG file of
 * its own, with the same header but for its size, whose markers are numbered anew.
 * Source: ITU-T T.81, B.1.1.2, B.2.4.4, E.1.4. */
#include "image.h"

#include <string.h>

enum { SOF0 = 0xc0, RST0 = 0xd0, SOI = 0xd8, EOI, SOS, DRI = 0xdd, APP0 = 0xe0, APP14 = 0xee, APP15, COM = 0xfe };
enum { BLOCK = 8, MOST_FACTOR = 4, WORTH = 8 };

/* How a file's coded data are divided. MCUs are the units of blocks that are coded together. */
typedef struct {
    int64_t scan, frame; /* where the coded data and the frame's parameters begin */
    int32_t height, width, mcu_height, mcu_width, rows, columns;
    int32_t interval; /* MCUs between restart markers */
} Layout;

static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

static void put_word(uint8_t *at, int32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static int32_t units(int32_t size, int32_t unit) { return (size + unit - 1) / unit; }

/* The place of the next marker segment of a header, which `at` leads to, or 0: its code is data[at - 1], and all of it is
 * there. Codes below SOF0 and from RST0 on have no length, or are unknown to libjpeg. */
static int64_t marker_at(const uint8_t *data, int64_t size, int64_t at) {
    while (at + 1 < size && data[at] == 0xff && data[at + 1] == 0xff) at++;
    if (at + 4 > size || data[at] != 0xff) return 0;
    int code = data[at + 1], length = word(data + at + 2);
    return code >= SOF0 && (code < RST0 || code > EOI) && length >= 2 && at + 2 + length <= size ? at + 2 : 0;
}

/* Reads a frame's parameters. Returns 0 for what is no baseline frame of one or three components. */
static int read_frame(Layout *it, const uint8_t *frame) {
    int length = word(frame), components = length >= 8 ? frame[7] : 0, across = 1, down = 1;
    if ((components != 1 && components != 3) || length != 8 + 3 * components || frame[2] != 8) return 0;
    for (int c = 0; components == 3 && c < components; c++) { /* one alone is coded block by block */
        int x = frame[9 + 3 * c] >> 4, y = frame[9 + 3 * c] & 15;
        if (x < 1 || y < 1 || x > MOST_FACTOR || y > MOST_FACTOR) return 0;
        across = x > across ? x : across;
        down = y > down ? y : down;
    }
    it->height = word(frame + 3);
    it->width = word(frame + 5);
    it->mcu_height = BLOCK * down;
    it->mcu_width = BLOCK * across;
    it->rows = units(it->height, it->mcu_height);
    it->columns = units(it->width, it->mcu_width);
    return it->height && it->width;
}

static int is_frame(int code) { return code >= 0xc0 && code <= 0xcf && code != 0xc4 && code != 0xc8; }

/* Reads the header. Returns 0 for a file that has no restart markers, or that is not coded in one sequential scan. */
static int read_layout(Layout *it, const uint8_t *data, int64_t size) {
    *it = (Layout){0};
    if (size < 4 || data[0] != 0xff || data[1] != SOI) return 0;
    for (int64_t at = 2; (at = marker_at(data, size, at)) != 0; at += word(data + at)) {
        int code = data[at - 1], length = word(data + at);
        if (code == DRI && length == 4) it->interval = word(data + at + 2);
        if (is_frame(code)) { /* 0xc0 and 0xc1 are sequential, with Huffman codes */
            if (it->frame || code > 0xc1 || !read_frame(it, data + at)) return 0;
            it->frame = at;
        }
        if (code == SOS) {
            int components = it->frame ? data[it->frame + 7] : 0;
            it->scan = at + length;
            return components && it->interval && length == 6 + 2 * components && data[at + 2] == components &&
                   memcmp(data + it->scan - 3, "\0\77\0", 3) == 0; /* all coefficients at once */
        }
    }
    return 0;
}

/* Finds where segments begin, and at last where the end marker ends. Returns 0 unless there are `count` of them, with
 * markers in their order. */
static int find_segments(const uint8_t *data, int64_t size, int64_t at, int64_t count, int64_t *starts) {
    starts[0] = at;
    for (int64_t found = 1; at < size - 1;) {
        const uint8_t *mark = memchr(data + at, 0xff, (size_t)(size - 1 - at));
        if (!mark) return 0;
        at = mark - data + 1;
        int code = data[at];
        if (code == 0xff) continue; /* as many as the encoder likes */
        at++;
        if (code == 0) continue; /* a byte of data */
        starts[found] = at;
        if (code == EOI) return found == count;
        if (found == count || code != (RST0 | ((found - 1) & 7))) return 0;
        found++;
    }
    return 0;
}

/* The segments of which a part consists: `runs` times `length` of them, each run `every` segments after the one before. */
typedef struct {
    int64_t first, runs, length, every;
} Segments;

static int32_t divisor(int32_t a, int32_t b) { return b ? divisor(b, a % b) : a; }

/* Chooses the segments that cover a region, and sets the part's place and size. */
static Segments choose(Part *part, const Layout *it, Region region) {
    int32_t top = region.top / it->mcu_height, bottom = units(region.bottom, it->mcu_height);
    int32_t left = 0, right = it->columns;
    Segments chosen;
    if (it->columns % it->interval == 0) {
        int32_t across = it->interval * it->mcu_width;
        chosen.every = it->columns / it->interval;
        chosen.first = top * chosen.every + region.left / across;
        chosen.length = units(region.right, across) - region.left / across;
        chosen.runs = bottom - top;
        left = region.left / across * it->interval;
        right = left + (int32_t)chosen.length * it->interval;
    } else { /* segments that begin rows: every so many */
        int32_t step = it->interval / divisor(it->interval, it->columns);
        top = top / step * step;
        chosen.first = (int64_t)top * it->columns / it->interval;
        chosen.length = ((int64_t)bottom * it->columns + it->interval - 1) / it->interval - chosen.first;
        chosen.runs = chosen.every = 1;
    }
    part->top = top * it->mcu_height;
    part->left = left * it->mcu_width;
    part->height = (bottom < it->rows ? bottom * it->mcu_height : it->height) - part->top;
    part->width = (right < it->columns ? right * it->mcu_width : it->width) - part->left;
    return chosen;
}

/* Copies what decoders need of the header: no metadata. Returns the end of the copy. */
static uint8_t *copy_header(const Part *part, const Layout *it, const uint8_t *data, uint8_t *out) {
    *out++ = 0xff;
    *out++ = SOI;
    for (int64_t at = 2; at < it->scan; at += word(data + at)) {
        at = marker_at(data, it->scan, at);
        int code = data[at - 1];
        if ((code > APP0 && code <= APP15 && code != APP14) || code == COM) continue;
        out[0] = 0xff;
        out[1] = (uint8_t)code;
        memcpy(out + 2, data + at, (size_t)word(data + at));
        if (at == it->frame) {
            put_word(out + 5, part->height);
            put_word(out + 7, part->width);
        }
        out += 2 + word(data + at);
    }
    return out;
}

int part_is_possible(const uint8_t *data, int64_t size) {
    Layout it;
    return read_layout(&it, data, size);
}

int part_take(Part *part, const uint8_t *data, int64_t size, const int32_t *image, Region region) {
    Layout it;
    if (!read_layout(&it, data, size) || it.height != image[0] || it.width != image[1]) return 0;
    int64_t blocks = (int64_t)it.rows * it.columns, count = (blocks + it.interval - 1) / it.interval;
    Segments chosen = choose(part, &it, region);
    if (count > size || chosen.runs * chosen.length * WORTH > count * (WORTH - 1)) return 0; /* it saves too little */
    int64_t *starts = scratch_take(&part->starts, (size_t)(count + 1) * sizeof *starts);
    if (!starts || !find_segments(data, size, it.scan, count, starts)) return 0;
    int64_t bytes = it.scan + 2;
    for (int64_t run = 0, first = chosen.first; run < chosen.runs; run++, first += chosen.every)
        bytes += starts[first + chosen.length] - starts[first];
    uint8_t *out = scratch_take(&part->memory, (size_t)bytes);
    if (!out) return 0;
    part->data = out;
    out = copy_header(part, &it, data, out);
    int64_t number = 0;
    for (int64_t run = 0, first = chosen.first; run < chosen.runs; run++, first += chosen.every)
        for (int64_t i = first; i < first + chosen.length; i++) {
            size_t length = (size_t)(starts[i + 1] - starts[i]);
            memcpy(out, data + starts[i], length);
            out += length;
            out[-1] = (uint8_t)(RST0 | (number++ & 7));
        }
    out[-1] = EOI;
    part->size = out - part->data;
    return 1;
}
