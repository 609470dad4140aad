/* Resized crops of many JPEG files in one call: libjpeg-turbo decodes only the region that a crop shows.
 *
 * Anything unusual (a warning, CMYK, a box outside the image) is left to the caller, image by image. */
#include "image.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

enum { ROWS_PER_CALL = 16 };

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    int warned;
} Errors;

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    Scratch pixels, axes;
    Resizer resizer;
} Decoder;

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
    Scratch *all[] = {&decoder->pixels, &decoder->axes, &decoder->resizer.pairs, &decoder->resizer.rows,
                      &decoder->resizer.bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    free(decoder);
}

/* Decodes `box` (top, left, height, width) of an image. Returns 0 if the result cannot be trusted.
 *
 * Each file gets a new decompressor: libjpeg would use the last file's tables for one that lacks them. */
static int decode(Decoder *decoder, const uint8_t *data, int64_t size, const int32_t *image, const int32_t *box,
                  int channels, int64_t most, Picture *picture) {
    struct jpeg_decompress_struct *info = &decoder->info;
    decoder->errors.warned = 0;
    if (setjmp(decoder->errors.escape)) {
        jpeg_destroy_decompress(info);
        return 0;
    }
    jpeg_create_decompress(info);
    info->mem->max_memory_to_use = JPEG_MEMORY;
    jpeg_mem_src(info, (unsigned char *)data, (unsigned long)size);
    jpeg_read_header(info, TRUE);
    int known = info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_GRAYSCALE ||
                info->jpeg_color_space == JCS_RGB;
    if (!known || info->image_height != (JDIMENSION)image[0] || info->image_width != (JDIMENSION)image[1])
        escape((j_common_ptr)info);
    /* Of what comes in several scans, libjpeg holds all coefficients. */
    int64_t all = (int64_t)image[0] * image[1];
    if (all > most && (jpeg_has_multiple_scans(info) || info->arith_code || (int64_t)box[2] * box[3] > most))
        escape((j_common_ptr)info);
    info->out_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    info->do_fancy_upsampling = FALSE; /* repeat chroma samples, as fast loaders do: a fifth faster */
    jpeg_start_decompress(info);
    JDIMENSION left = (JDIMENSION)box[1], width = (JDIMENSION)box[3];
    jpeg_crop_scanline(info, &left, &width); /* widens the crop to whole blocks */
    if (box[0]) jpeg_skip_scanlines(info, (JDIMENSION)box[0]);
    size_t stride = (size_t)width * (size_t)channels;
    uint8_t *pixels = scratch_take(&decoder->pixels, stride * (size_t)box[2] + READ_BEYOND);
    if (!pixels) escape((j_common_ptr)info);
    /* Several rows per call: libjpeg decodes two at once, and would copy the second for a caller who takes one. */
    for (JDIMENSION row = 0; row < (JDIMENSION)box[2];) {
        JSAMPROW rows[ROWS_PER_CALL];
        JDIMENSION ask = (JDIMENSION)box[2] - row < ROWS_PER_CALL ? (JDIMENSION)box[2] - row : ROWS_PER_CALL;
        for (JDIMENSION i = 0; i < ask; i++) rows[i] = pixels + stride * (row + i);
        JDIMENSION got = jpeg_read_scanlines(info, rows, ask);
        if (!got) escape((j_common_ptr)info);
        row += got;
    }
    jpeg_destroy_decompress(info);
    picture->pixels = pixels + ((size_t)box[1] - left) * (size_t)channels;
    picture->stride = stride;
    return !decoder->errors.warned;
}

static int make_one(Decoder *decoder, const JpegBatch *work, int64_t i) {
    const int32_t *image = work->images + 2 * i, *box = work->boxes + 4 * i;
    const int32_t *scaled = work->scaled + 2 * i, *window = work->windows + 2 * i;
    int height = work->height, width = work->width;
    if (box[0] < 0 || box[1] < 0 || box[2] < 1 || box[3] < 1 || (int64_t)box[0] + box[2] > image[0] ||
        (int64_t)box[1] + box[3] > image[1] || window[0] < 0 || window[1] < 0 || (int64_t)window[0] + height > scaled[0] ||
        (int64_t)window[1] + width > scaled[1])
        return 0;
    size_t count = (size_t)height + (size_t)width;
    int32_t *at = scratch_take(&decoder->axes, count * (sizeof *at + 2 * sizeof(int16_t)));
    if (!at) return 0;
    int16_t *weights = (int16_t *)(at + count);
    Axis y = {at, weights}, x = {at + height, weights + 2 * height};
    axis_fill(y, box[2], scaled[0], window[0], height);
    axis_fill(x, box[3], scaled[1], window[1], width);
    /* Decode only the part of the region that the window shows. */
    int32_t top = y.at[0], left = x.at[0];
    int32_t rows = y.at[height - 1] + 1 + (box[2] > 1) - top, columns = x.at[width - 1] + 1 + (box[3] > 1) - left;
    for (int k = 0; k < height; k++) y.at[k] -= top;
    for (int k = 0; k < width; k++) x.at[k] -= left;
    const int32_t shown[4] = {box[0] + top, box[1] + left, rows, columns};
    Picture picture;
    if (!decode(decoder, work->data[i], work->sizes[i], image, shown, work->channels, work->most, &picture)) return 0;
    return !resize(&decoder->resizer, picture, y, x, height, width, work->channels, work->flips[i], work->affine,
                   work->out + i * work->out_bytes);
}

/* Returns the number of files that are left to the caller. */
int64_t shardio_decode(Decoder *decoder, const JpegBatch *work) {
    int64_t bad = 0;
    for (int64_t i = 0; i < work->count; i++) {
        work->failed[i] = !make_one(decoder, work, i);
        bad += work->failed[i];
    }
    return bad;
}
