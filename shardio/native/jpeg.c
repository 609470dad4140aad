/* Resized crops of many images in one call: of JPEG files, of which libjpeg-turbo decodes only the region that a crop
 * shows, or of pixels. Rows are resized while they are decoded.
 *
 * Anything unusual (a warning, CMYK, a box outside the image) is left to the caller, image by image. */
#include "image.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

enum { ROWS_PER_CALL = 16, MOST_SHRINK = 8, LEAST_COLUMNS = 6, MARGIN = 2, LINE = 64, UNALIGNED = 8 };

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    int warned;
} Errors;

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    Scratch pixels, region;
    Part part;
    Resampler resampler;
} Decoder;

#define TEXT_OF(macro) TEXT(macro)
#define TEXT(words) #words

/* The version of the libjpeg-turbo whose headers this was compiled with. */
const char *shardio_jpeg_version(void) { return TEXT_OF(LIBJPEG_TURBO_VERSION); }

static void escape(j_common_ptr info) { longjmp(((Errors *)info->err)->escape, 1); }

static void note_warning(j_common_ptr info, int level) {
    if (level < 0) ((Errors *)info->err)->warned = 1;
}

Decoder *shardio_decoder_new(void) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder) return NULL;
    decoder->info.err = jpeg_std_error(&decoder->errors.base);
    decoder->errors.base.error_exit = escape;
    decoder->errors.base.emit_message = note_warning;
    return decoder;
}

void shardio_decoder_free(Decoder *decoder) {
    free(decoder->pixels.memory);
    free(decoder->region.memory);
    free(decoder->part.memory.memory);
    free(decoder->part.starts.memory);
    resampler_free(&decoder->resampler);
    free(decoder);
}

/* One image of a batch. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    const int32_t *image, *box, *scaled, *window;
    int flip, turn;
    uint8_t *out;
} Image;

/* The axis of the stored image that an axis of the upright one comes from: 0 for rows, 1 for columns. */
static int stored_axis(const Image *it, int axis) { return it->turn & TURN_SWAP ? 1 - axis : axis; }

static int is_mirrored(const Image *it, int stored) { return (it->turn & (stored ? TURN_COLUMNS : TURN_ROWS)) != 0; }

static int32_t shrunk(int32_t size, int shrink) { return (size + shrink - 1) / shrink; }

/* Begins to resize the region of an image that is decoded at 1 / `shrink` of its size. `top` and `left` are those of the
 * region in the upright image. Returns -1 if memory is exhausted. */
static int begin(Decoder *decoder, const ImageBatch *work, const Image *it, int shrink, int32_t *top, int32_t *left) {
    Extent axes[2];
    const int32_t wanted[2] = {work->height, work->width};
    size_t offsets[2];
    int whole = 1;
    for (int axis = 0; axis < 2; axis++) {
        /* What the window shows of the resized region. */
        int32_t first = it->window[axis] > 0 ? it->window[axis] : 0;
        int32_t end = it->window[axis] + wanted[axis] < it->scaled[axis] ? it->window[axis] + wanted[axis]
                                                                         : it->scaled[axis];
        int32_t before = first - it->window[axis], after = it->window[axis] + wanted[axis] - end;
        offsets[axis] = (size_t)(axis && it->flip ? after : before);
        whole &= before + after == 0;
        double low = (double)it->box[axis] / shrink, high = (double)(it->box[axis] + it->box[2 + axis]) / shrink;
        int stored = stored_axis(it, axis);
        if (is_mirrored(it, stored)) { /* a part of a pixel that the decoder adds at the end is at the beginning then */
            double part = shrunk(it->image[stored], shrink) - (double)it->image[stored] / shrink;
            low += part;
            high += part;
        }
        int32_t from = (int32_t)low;
        *(axis ? left : top) = from;
        axes[axis] = (Extent){low - from, high - from, (int32_t)ceil(high) - from, it->scaled[axis], first,
                              end - first};
    }
    const size_t pitch = (size_t)work->width, pixel = work->normalize ? sizeof(float) : (size_t)work->channels;
    Output output = {it->out, work->normalize, pitch, (size_t)work->height * pitch, work->channels, it->flip};
    if (!whole) make_black(output, work->height, work->width);
    output.out = it->out + (offsets[0] * pitch + offsets[1]) * pixel;
    return resample_begin(&decoder->resampler, work->filter, axes[0], axes[1], output);
}

/* How far the decoder itself may shrink an image: a crop must stay as large as its target in both directions. */
static int shrink_of(const ImageBatch *work, const Image *it) {
    int64_t shrink = 1;
    while (work->fast && shrink < MOST_SHRINK && it->box[2] >= 2 * shrink * it->scaled[0] &&
           it->box[3] >= 2 * shrink * it->scaled[1])
        shrink *= 2;
    return (int)shrink;
}

/* Pillow's luma of RGB pixels, in their place. */
static void to_grey(uint8_t *row, size_t count) {
    for (size_t i = 0; i < count; i++)
        row[i] = (uint8_t)((row[3 * i] * 19595 + row[3 * i + 1] * 38470 + row[3 * i + 2] * 7471 + 0x8000) >> 16);
}

/* Resizes a region of a stored image, of `rows` and `columns`, which is turned upright. */
static void resample_turned(Resampler *resampler, const Image *it, const uint8_t *region, uint8_t *line, int32_t rows,
                            int32_t columns, size_t channels) {
    int swap = it->turn & TURN_SWAP;
    int32_t height = swap ? columns : rows, width = swap ? rows : columns;
    ptrdiff_t stride = columns * (ptrdiff_t)channels, pixel = (ptrdiff_t)channels;
    const uint8_t *first = region;
    ptrdiff_t down = swap ? pixel : stride, across = swap ? stride : pixel;
    if (is_mirrored(it, 0)) first += stride * (rows - 1);
    if (is_mirrored(it, 1)) first += pixel * (columns - 1);
    if (is_mirrored(it, stored_axis(it, 0))) down = -down;
    if (is_mirrored(it, stored_axis(it, 1))) across = -across;
    for (int32_t row = 0; row < height; row++, first += down) {
        const uint8_t *from = first;
        for (size_t i = 0; i < (size_t)width; i++, from += across)
            for (size_t c = 0; c < channels; c++) line[i * channels + c] = from[c];
        resample_row(resampler, line);
    }
}

/* The pixels of the file that a region of the shrunken image needs: chroma is interpolated from neighbours, by code that
 * needs LEAST_COLUMNS. */
static Region with_margin(const Image *it, int shrink, int32_t top, int32_t left, int32_t rows, int32_t columns) {
    int32_t aside = columns < LEAST_COLUMNS ? LEAST_COLUMNS : MARGIN;
    int64_t bottom = ((int64_t)top + rows + MARGIN) * shrink, right = ((int64_t)left + columns + aside) * shrink;
    return (Region){top > MARGIN ? (top - MARGIN) * shrink : 0, left > aside ? (left - aside) * shrink : 0,
                    bottom < it->image[0] ? (int32_t)bottom : it->image[0],
                    right < it->image[1] ? (int32_t)right : it->image[1]};
}

/* Makes the result of a JPEG file. Returns 0 if the result cannot be trusted.
 *
 * Each file gets a new decompressor: libjpeg would use the last file's tables for one that lacks them. */
static int make_jpeg(Decoder *decoder, const ImageBatch *work, const Image *it) {
    struct jpeg_decompress_struct *info = &decoder->info;
    Resampler *resampler = &decoder->resampler;
    int32_t top, left;
    int shrink = shrink_of(work, it);
    if (it->image[0] > JPEG_MAX_DIMENSION || it->image[1] > JPEG_MAX_DIMENSION) return 0; /* before it costs memory */
    decoder->errors.warned = 0;
    if (setjmp(decoder->errors.escape)) {
        jpeg_destroy_decompress(info);
        return 0;
    }
    jpeg_create_decompress(info);
    info->mem->max_memory_to_use = JPEG_MEMORY;
    if (begin(decoder, work, it, shrink, &top, &left)) escape((j_common_ptr)info);
    int32_t starts[2] = {top + resampler->y.from, left + resampler->x.from};
    const int32_t counts[2] = {resampler->y.to - resampler->y.from, resampler->x.to - resampler->x.from};
    int32_t sides[2];
    for (int axis = 0; axis < 2; axis++) { /* of the upright image; the decoder has the stored one */
        int stored = stored_axis(it, axis);
        sides[stored] = counts[axis];
        *(stored ? &left : &top) = is_mirrored(it, stored)
                                       ? shrunk(it->image[stored], shrink) - starts[axis] - counts[axis]
                                       : starts[axis];
    }
    const int32_t rows = sides[0], columns = sides[1];
    Part source = {.data = it->data, .size = it->size, .height = it->image[0], .width = it->image[1]};
    Region wanted = with_margin(it, shrink, top, left, rows, columns);
    if (part_take(&decoder->part, it->data, it->size, it->image, wanted))
        source = decoder->part;
    top -= source.top / shrink;
    left -= source.left / shrink;
    jpeg_mem_src(info, (unsigned char *)source.data, (unsigned long)source.size);
    jpeg_read_header(info, TRUE);
    int known = info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_GRAYSCALE ||
                info->jpeg_color_space == JCS_RGB;
    if (!known || info->image_height != (JDIMENSION)source.height || info->image_width != (JDIMENSION)source.width)
        escape((j_common_ptr)info);
    /* Of what comes in several scans, libjpeg holds all coefficients. */
    int64_t all = (int64_t)it->image[0] * it->image[1];
    if (all > work->most && (jpeg_has_multiple_scans(info) || info->arith_code || (int64_t)rows * columns > work->most))
        escape((j_common_ptr)info);
    /* Pillow makes grey from RGB; libjpeg's luma differs from that. */
    int recolour = work->channels == 1 && info->jpeg_color_space != JCS_GRAYSCALE && !work->fast;
    int channels = recolour ? 3 : work->channels;
    info->out_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    info->do_fancy_upsampling = !work->fast; /* else it repeats chroma samples */
    info->scale_num = 1;
    info->scale_denom = (unsigned)shrink;
    jpeg_start_decompress(info);
    /* A column more on each side: chroma is interpolated from both neighbours, of which the crop's edge has one only. The
     * code that does it needs three samples. */
    int32_t whole = (int32_t)info->output_width, end = left + columns + 1 < whole ? left + columns + 1 : whole;
    int32_t begin_at = left ? left - 1 : 0;
    if (end - begin_at < LEAST_COLUMNS) end = begin_at + LEAST_COLUMNS < whole ? begin_at + LEAST_COLUMNS : whole;
    if (end - begin_at < LEAST_COLUMNS) begin_at = end > LEAST_COLUMNS ? end - LEAST_COLUMNS : 0;
    JDIMENSION from = (JDIMENSION)begin_at, width = (JDIMENSION)(end - begin_at);
    jpeg_crop_scanline(info, &from, &width); /* widens the crop to whole blocks */
    if (top) jpeg_skip_scanlines(info, (JDIMENSION)top);
    /* libjpeg's vector code writes aligned lines past the cache, and they are read at once: no line is aligned. */
    size_t stride = ((size_t)width * (size_t)channels + LINE - 1) / LINE * LINE;
    uint8_t *pixels = scratch_take(&decoder->pixels, 2 * LINE + stride * ROWS_PER_CALL + READ_BEYOND);
    size_t used = (size_t)columns * (size_t)work->channels, longer = (size_t)(rows > columns ? rows : columns);
    uint8_t *region = NULL;
    if (it->turn) { /* and a line of the upright image */
        size_t line = longer * (size_t)work->channels + READ_BEYOND;
        region = scratch_take(&decoder->region, used * (size_t)rows + line);
    }
    if (!pixels || (it->turn && !region)) escape((j_common_ptr)info);
    /* Several rows per call: libjpeg decodes two at once, and would copy the second for a caller who takes one. */
    JSAMPROW lines[ROWS_PER_CALL];
    uint8_t *first = pixels + (LINE - (uintptr_t)pixels % LINE) % LINE + UNALIGNED;
    for (int i = 0; i < ROWS_PER_CALL; i++) lines[i] = first + stride * (size_t)i;
    for (JDIMENSION row = 0; row < (JDIMENSION)rows;) {
        JDIMENSION ask = (JDIMENSION)rows - row < ROWS_PER_CALL ? (JDIMENSION)rows - row : ROWS_PER_CALL;
        JDIMENSION got = jpeg_read_scanlines(info, lines, ask);
        if (!got) escape((j_common_ptr)info);
        for (JDIMENSION i = 0; i < got; i++) {
            uint8_t *line = lines[i] + ((size_t)left - from) * (size_t)channels;
            if (recolour) to_grey(line, (size_t)columns);
            if (region) memcpy(region + (row + i) * used, line, used);
            else resample_row(resampler, line);
        }
        row += got;
    }
    jpeg_destroy_decompress(info);
    if (region)
        resample_turned(resampler, it, region, region + used * (size_t)rows, rows, columns, (size_t)work->channels);
    return !decoder->errors.warned;
}

/* Makes the result of an image whose pixels, bytes with channels last, are there. */
static int make_pixels(Decoder *decoder, const ImageBatch *work, const Image *it) {
    Resampler *resampler = &decoder->resampler;
    int32_t top, left;
    size_t channels = (size_t)work->channels, stride = (size_t)it->image[1] * channels;
    if (it->size != (int64_t)stride * it->image[0] || begin(decoder, work, it, 1, &top, &left)) return 0;
    size_t columns = (size_t)(resampler->x.to - resampler->x.from) * channels;
    uint8_t *last = scratch_take(&decoder->pixels, columns + READ_BEYOND);
    if (!last) return 0;
    const uint8_t *row = it->data + (size_t)(top + resampler->y.from) * stride +
                         (size_t)(left + resampler->x.from) * channels;
    for (int32_t i = resampler->y.from; i < resampler->y.to; i++, row += stride) {
        int ends = row + columns + READ_BEYOND > it->data + it->size; /* nothing may be read behind the pixels */
        if (ends) memcpy(last, row, columns);
        resample_row(resampler, ends ? last : row);
    }
    return 1;
}

/* Whether a window shows something of a resized region. */
static int shows(int32_t window, int32_t wanted, int32_t scaled) {
    return scaled >= 1 && window < scaled && (int64_t)window + wanted >= 1 && (int64_t)window + wanted <= INT32_MAX;
}

static int inside(const ImageBatch *work, const Image *it) {
    const int32_t *box = it->box, height = it->image[stored_axis(it, 0)], width = it->image[stored_axis(it, 1)];
    return box[0] >= 0 && box[1] >= 0 && box[2] >= 1 && box[3] >= 1 && (int64_t)box[0] + box[2] <= height &&
           (int64_t)box[1] + box[3] <= width && shows(it->window[0], work->height, it->scaled[0]) &&
           shows(it->window[1], work->width, it->scaled[1]);
}

/* Makes the results of a batch; returns the number of images that are left to the caller. */
int64_t shardio_make_images(Decoder *decoder, const ImageBatch *work) {
    int64_t bad = 0;
    for (int64_t i = 0; i < work->count; i++) {
        const Image it = {work->data[i],       work->sizes[i],        work->images + 2 * i,
                          work->boxes + 4 * i, work->scaled + 2 * i,  work->windows + 2 * i,
                          work->flips[i],      work->turns ? work->turns[i] : 0, work->out + i * work->out_bytes};
        int made = inside(work, &it) && (work->encoded ? make_jpeg : make_pixels)(decoder, work, &it);
        work->failed[i] = !made;
        bad += !made;
    }
    return bad;
}
