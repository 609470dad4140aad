/* JPEG files to smaller or baseline ones, without conversion to RGB: the luma and chroma planes are averaged while they
 * are decoded, and then encoded; progressive files become baseline files with the same coefficients.
 *
 * Anything unusual (CMYK, RGB, 12 bits, odd sampling) is left to the caller. */
#include "image.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h> /* depends on the definitions of jpeglib.h */

#if JPEG_LIB_VERSION >= 70 /* as Ubuntu builds libjpeg-turbo: both directions have the same size there, too */
#define DCT_scaled_size DCT_h_scaled_size
#define min_DCT_scaled_size min_DCT_h_scaled_size
#endif

enum { PLANES = 3, ALIGN = 32, FIRST_ROOM = 1 << 16, LEAST_UNITS = 4, MARKER_BYTES = 0xffff };

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    char damage[JMSG_LENGTH_MAX]; /* the reason why the file counts as damaged; empty if it does not */
} Errors;

typedef struct {
    struct jpeg_destination_mgr base;
    uint8_t *bytes;
    size_t room;
} File;

typedef struct {
    struct jpeg_decompress_struct in, again; /* the second reads what was written */
    struct jpeg_compress_struct out;
    Errors errors;
    File file;
    Scratch lines[PLANES];  /* the rows that one call of libjpeg decodes */
    Scratch made[PLANES];   /* the planes of the result */
    Scratch turned[PLANES]; /* the same before transposing */
    Area areas[PLANES];
} Recoder;

/* How to orient the picture: mirror it first, then transpose it. */
enum { ROWS_MIRRORED = 1, COLUMNS_MIRRORED = 2, SWAPPED = 4 };

/* A file, and the result wanted of it: height and width, orientation (ROWS_MIRRORED etc.), quality; whether metadata goes. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    int32_t height, width, turn, quality, strip;
} Work;

static void escape(j_common_ptr info) { longjmp(((Errors *)info->err)->escape, 1); }

/* Treats the warnings by which libjpeg invents pixels for missing or senseless data as damage; others are harmless. */
static void note_warning(j_common_ptr info, int level) {
    Errors *errors = (Errors *)info->err;
    if (level >= 0) return;
    switch (errors->base.msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
        errors->base.format_message(info, errors->damage);
        escape(info);
    }
}

static void file_begin(j_compress_ptr info) {
    File *file = (File *)info->dest;
    file->base.next_output_byte = file->bytes;
    file->base.free_in_buffer = file->room;
}

static boolean file_grow(j_compress_ptr info) {
    File *file = (File *)info->dest;
    uint8_t *grown = realloc(file->bytes, 2 * file->room);
    if (!grown) escape((j_common_ptr)info);
    file->base.next_output_byte = grown + file->room;
    file->base.free_in_buffer = file->room;
    file->bytes = grown;
    file->room *= 2;
    return TRUE;
}

static void file_end(j_compress_ptr info) { (void)info; }

Recoder *shardio_recoder_new(void) {
    Recoder *recoder = calloc(1, sizeof *recoder);
    if (!recoder || !(recoder->file.bytes = malloc(FIRST_ROOM))) {
        free(recoder);
        return NULL;
    }
    recoder->file.room = FIRST_ROOM;
    recoder->file.base.init_destination = file_begin;
    recoder->file.base.empty_output_buffer = file_grow;
    recoder->file.base.term_destination = file_end;
    recoder->in.err = recoder->again.err = recoder->out.err = jpeg_std_error(&recoder->errors.base);
    recoder->errors.base.error_exit = escape;
    recoder->errors.base.emit_message = note_warning;
    return recoder;
}

void shardio_recoder_free(Recoder *recoder) {
    for (int c = 0; c < PLANES; c++) {
        free(recoder->lines[c].memory);
        free(recoder->made[c].memory);
        free(recoder->turned[c].memory);
        free(recoder->areas[c].memory.memory);
    }
    free(recoder->file.bytes);
    free(recoder);
}

static void need(Recoder *recoder, int condition) { if (!condition) escape((j_common_ptr)&recoder->in); }

static void read_header(Recoder *recoder) {
    struct jpeg_decompress_struct *in = &recoder->in;
    jpeg_read_header(in, TRUE);
    int colors = in->jpeg_color_space == JCS_YCbCr && in->num_components == 3;
    int grey = in->jpeg_color_space == JCS_GRAYSCALE && in->num_components == 1;
    need(recoder, (colors || grey) && in->data_precision == 8);
}

static size_t aligned(size_t size) { return (size + ALIGN - 1) / ALIGN * ALIGN; }

static uint8_t *take(Recoder *recoder, Scratch *scratch, size_t size) {
    uint8_t *memory = scratch_take(scratch, size);
    need(recoder, memory != NULL);
    return memory;
}

/* Starts decoding. The inverse transform scales by 1/2, 1/4 and 1/8 at no cost, but its results are sharper than
 * averages: so it leaves at least twice the result's pixels in each direction to average. `height` and `width` are the
 * result's before transposing. */
static void start_reading(Recoder *recoder, int height, int width) {
    struct jpeg_decompress_struct *in = &recoder->in;
    need(recoder, height >= 1 && (unsigned)height <= in->image_height);
    need(recoder, width >= 1 && (unsigned)width <= in->image_width);
    need(recoder, in->comp_info->h_samp_factor == in->max_h_samp_factor &&
                      in->comp_info->v_samp_factor == in->max_v_samp_factor);
    unsigned scale = DCTSIZE;
    while (scale > 1 && in->image_height * scale >= (unsigned)height * 4 * DCTSIZE &&
           in->image_width * scale >= (unsigned)width * 4 * DCTSIZE)
        scale /= 2;
    in->scale_num = scale;
    in->scale_denom = DCTSIZE;
    in->raw_data_out = TRUE;
    in->out_color_space = in->jpeg_color_space;
    jpeg_start_decompress(in);
}

/* Decodes all planes row by row into the results of their areas. */
static void read_planes(Recoder *recoder) {
    struct jpeg_decompress_struct *in = &recoder->in;
    JSAMPROW rows[PLANES][MAX_SAMP_FACTOR * DCTSIZE];
    JSAMPARRAY planes[PLANES] = {rows[0], rows[1], rows[2]};
    int counts[PLANES];
    for (int c = 0; c < in->num_components; c++) {
        const jpeg_component_info *info = in->comp_info + c;
        counts[c] = info->v_samp_factor * info->DCT_scaled_size;
        size_t stride = aligned((info->width_in_blocks + MAX_SAMP_FACTOR) * (size_t)info->DCT_scaled_size);
        uint8_t *lines = take(recoder, &recoder->lines[c], stride * (size_t)counts[c]);
        for (int i = 0; i < counts[c]; i++) rows[c][i] = lines + stride * (size_t)i;
    }
    JDIMENSION step = (JDIMENSION)(in->max_v_samp_factor * in->min_DCT_scaled_size);
    while (in->output_scanline < in->output_height) {
        need(recoder, jpeg_read_raw_data(in, planes, step) == step);
        for (int c = 0; c < in->num_components; c++)
            for (int i = 0; i < counts[c]; i++) area_row(&recoder->areas[c], rows[c][i]);
    }
}

/* Makes the planes of the result in its size and orientation, each row padded to whole blocks. Returns their number. */
static int make_planes(Recoder *recoder, const Work *work, Plane *planes) {
    struct jpeg_decompress_struct *in = &recoder->in;
    int swapped = work->turn & SWAPPED, count = in->num_components;
    int height = swapped ? work->width : work->height, width = swapped ? work->height : work->width;
    start_reading(recoder, height, width);
    for (int c = 0; c < count; c++) {
        const jpeg_component_info *info = in->comp_info + c;
        int every = c ? 2 : 1, size = info->DCT_scaled_size;
        Plane *plane = planes + c;
        plane->height = (work->height + every - 1) / every;
        plane->width = (work->width + every - 1) / every;
        plane->stride = aligned((size_t)plane->width);
        plane->pixels = take(recoder, &recoder->made[c], plane->stride * (size_t)plane->height);
        size_t stride = swapped ? aligned((size_t)plane->height) : plane->stride;
        uint8_t *out = swapped ? take(recoder, &recoder->turned[c], stride * (size_t)plane->width) : plane->pixels;
        int64_t rows = (int64_t)in->image_height * info->v_samp_factor * size;
        int64_t columns = (int64_t)in->image_width * info->h_samp_factor * size;
        Lengths y = {rows, in->max_v_samp_factor * DCTSIZE, height, every, work->turn & ROWS_MIRRORED};
        Lengths x = {columns, in->max_h_samp_factor * DCTSIZE, width, every, work->turn & COLUMNS_MIRRORED};
        need(recoder, !area_begin(&recoder->areas[c], y, x, (int)info->downsampled_width, out, stride));
    }
    read_planes(recoder);
    for (int c = 0; c < count; c++) {
        Plane plane = planes[c];
        if (swapped) plane_swap(recoder->areas[c].out, recoder->areas[c].stride, plane);
        for (int y = 0; y < plane.height; y++) {
            uint8_t *row = plane.pixels + plane.stride * (size_t)y;
            memset(row + plane.width, row[plane.width - 1], plane.stride - (size_t)plane.width);
        }
    }
    return count;
}

/* Encodes planes whose chroma has half the height and width of the luma. Rows below the last one repeat it. */
static void write_planes(Recoder *recoder, const Plane *planes, int count, int quality) {
    struct jpeg_compress_struct *out = &recoder->out;
    out->image_height = (JDIMENSION)planes->height;
    out->image_width = (JDIMENSION)planes->width;
    out->input_components = count;
    out->in_color_space = count == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
    jpeg_set_defaults(out);
    jpeg_set_quality(out, quality, TRUE);
    out->raw_data_in = TRUE;
    jpeg_start_compress(out, TRUE);
    JSAMPROW rows[PLANES][2 * DCTSIZE];
    JSAMPARRAY all[PLANES] = {rows[0], rows[1], rows[2]};
    int step = out->max_v_samp_factor * DCTSIZE;
    while (out->next_scanline < out->image_height) {
        for (int c = 0; c < count; c++) {
            int every = c ? 2 : 1, first = (int)out->next_scanline / every, last = planes[c].height - 1;
            for (int i = 0; i < step / every; i++) {
                int y = first + i < last ? first + i : last;
                rows[c][i] = planes[c].pixels + planes[c].stride * (size_t)y;
            }
        }
        jpeg_write_raw_data(out, all, (JDIMENSION)step);
    }
    jpeg_finish_compress(out);
}

static void recode(Recoder *recoder, const Work *work) {
    Plane planes[PLANES];
    read_header(recoder);
    int count = make_planes(recoder, work, planes);
    write_planes(recoder, planes, count, work->quality);
}

/* Decoders make up what a progressive file leaves unsent, and those of another coding know nothing of it. */
static void need_all_bits(Recoder *recoder) {
    struct jpeg_decompress_struct *in = &recoder->in;
    for (int c = 0; in->progressive_mode && c < in->num_components; c++)
        for (int k = 0; k < DCTSIZE2; k++) need(recoder, in->coef_bits[c][k] == 0);
}

/* Writes the same coefficients in one scan. */
static void transcode(Recoder *recoder, const Work *work) {
    (void)work;
    struct jpeg_decompress_struct *in = &recoder->in;
    struct jpeg_compress_struct *out = &recoder->out;
    read_header(recoder);
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(in);
    need_all_bits(recoder);
    for (int c = 0; c < in->num_components; c++) {
        const JQUANT_TBL *steps = in->comp_info[c].quant_table;
        need(recoder, steps != NULL); /* the component occurred in a scan */
        for (int k = 0; k < DCTSIZE2; k++) need(recoder, steps->quantval[k] < 256); /* the limit of baseline files */
    }
    jpeg_copy_critical_parameters(in, out);
    out->arith_code = FALSE;
    out->optimize_coding = TRUE;
    jpeg_write_coefficients(out, coefficients);
    jpeg_finish_compress(out);
}

/* The units that are coded between restart markers: the fewest that divide a row, but at least LEAST_UNITS. */
static unsigned interval(unsigned columns) {
    for (unsigned units = LEAST_UNITS; units < columns; units++)
        if (columns % units == 0) return units;
    return columns;
}

/* Compares the blocks of both files, which libjpeg holds, and lets `work` fail where any differs. */
static void need_same_blocks(Recoder *recoder, jvirt_barray_ptr *ours, jvirt_barray_ptr *theirs) {
    struct jpeg_decompress_struct *in = &recoder->in, *again = &recoder->again;
    need(recoder, again->num_components == in->num_components && again->jpeg_color_space == in->jpeg_color_space);
    for (int c = 0; c < in->num_components; c++) {
        const jpeg_component_info *info = in->comp_info + c, *other = again->comp_info + c;
        need(recoder, info->width_in_blocks == other->width_in_blocks &&
                          info->height_in_blocks == other->height_in_blocks &&
                          memcmp(info->quant_table->quantval, other->quant_table->quantval,
                                 sizeof info->quant_table->quantval) == 0);
        for (JDIMENSION y = 0; y < info->height_in_blocks; y++) {
            JBLOCKARRAY one = in->mem->access_virt_barray((j_common_ptr)in, ours[c], y, 1, FALSE);
            JBLOCKARRAY two = again->mem->access_virt_barray((j_common_ptr)again, theirs[c], y, 1, FALSE);
            need(recoder, memcmp(one[0], two[0], info->width_in_blocks * sizeof one[0][0]) == 0);
        }
    }
}

static void append(Recoder *recoder, const uint8_t *bytes, size_t count) {
    struct jpeg_destination_mgr *file = &recoder->file.base;
    while (file->free_in_buffer < count) {
        size_t used = recoder->file.room - file->free_in_buffer;
        file_grow(&recoder->out); /* which takes the buffer for full */
        file->next_output_byte = recoder->file.bytes + used;
        file->free_in_buffer = recoder->file.room - used;
    }
    memcpy(file->next_output_byte, bytes, count);
    file->next_output_byte += count;
    file->free_in_buffer -= count;
}

/* Writes the same coefficients in one scan with restart markers, and all else of the file unless `work->strip`. */
static void restart(Recoder *recoder, const Work *work) {
    struct jpeg_decompress_struct *in = &recoder->in, *again = &recoder->again;
    struct jpeg_compress_struct *out = &recoder->out;
    jpeg_saved_marker_ptr *end = &in->marker_list;
    in->mem->max_memory_to_use = again->mem->max_memory_to_use = JPEG_MEMORY / 2; /* both hold all coefficients */
    jpeg_save_markers(in, JPEG_COM, MARKER_BYTES);
    for (int code = JPEG_APP0; code < JPEG_APP0 + 16; code++) jpeg_save_markers(in, code, MARKER_BYTES);
    jpeg_read_header(in, TRUE);
    int known = in->jpeg_color_space == JCS_YCbCr || in->jpeg_color_space == JCS_GRAYSCALE ||
                in->jpeg_color_space == JCS_RGB;
    need(recoder, known && in->data_precision == 8 && !in->arith_code);
    need(recoder, shardio_jpeg_damage(work->data, work->size, in->image_height, in->image_width, INT64_MAX,
                                      recoder->errors.damage) == 0); /* libjpeg passes over some in silence */
    while (*end) end = &(*end)->next;
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(in);
    need(recoder, !*end); /* markers after the first scan: in front of it they would come to mean something */
    need_all_bits(recoder);
    for (int c = 0; c < in->num_components; c++) need(recoder, in->comp_info[c].quant_table != NULL);
    jpeg_copy_critical_parameters(in, out);
    out->write_JFIF_header = out->write_Adobe_marker = FALSE; /* they are among the markers that were saved */
    out->arith_code = FALSE;
    out->optimize_coding = TRUE;
    unsigned unit = in->num_components == 1 ? DCTSIZE : DCTSIZE * (unsigned)in->max_h_samp_factor;
    out->restart_interval = interval((in->image_width + unit - 1) / unit);
    jpeg_write_coefficients(out, coefficients);
    for (jpeg_saved_marker_ptr marker = in->marker_list; marker; marker = marker->next) {
        int needed = marker->marker == JPEG_APP0 || marker->marker == JPEG_APP0 + 14;
        int places = marker->marker == JPEG_APP0 + 2 && marker->data_length >= 4 && !memcmp(marker->data, "MPF", 4);
        need(recoder, work->strip || !places); /* of other pictures behind this one, which moves */
        if (!work->strip || needed) jpeg_write_marker(out, marker->marker, marker->data, marker->data_length);
    }
    jpeg_finish_compress(out);
    if (!work->strip) append(recoder, in->src->next_input_byte, in->src->bytes_in_buffer); /* what follows the end marker */
    jpeg_mem_src(again, recoder->file.bytes, (unsigned long)(recoder->file.room - recoder->file.base.free_in_buffer));
    jpeg_read_header(again, TRUE);
    need_same_blocks(recoder, coefficients, jpeg_read_coefficients(again));
}

static void end(Recoder *recoder) {
    jpeg_destroy_decompress(&recoder->in);
    jpeg_destroy_decompress(&recoder->again);
    jpeg_destroy_compress(&recoder->out);
}

/* Each file gets a new decompressor: libjpeg would use the last file's Huffman tables for one that lacks them. */
static int64_t run(Recoder *recoder, const Work *work, void (*make)(Recoder *, const Work *), const void **result) {
    recoder->errors.damage[0] = 0;
    if (setjmp(recoder->errors.escape)) {
        end(recoder);
        *result = recoder->errors.damage;
        return -(int64_t)strlen(recoder->errors.damage);
    }
    jpeg_create_decompress(&recoder->in);
    jpeg_create_decompress(&recoder->again);
    jpeg_create_compress(&recoder->out);
    recoder->in.mem->max_memory_to_use = recoder->again.mem->max_memory_to_use = JPEG_MEMORY;
    recoder->out.dest = &recoder->file.base;
    jpeg_mem_src(&recoder->in, (unsigned char *)work->data, (unsigned long)work->size);
    make(recoder, work);
    end(recoder);
    *result = recoder->file.bytes;
    return (int64_t)(recoder->file.room - recoder->file.base.free_in_buffer);
}

/* Encodes the file anew as a baseline JPEG of `height` x `width` pixels in orientation `turn`.
 *
 * Returns the size of the new file, and points `result` to its bytes, valid until the next call. Returns 0 if this
 * code does not handle the file. If the file is damaged, returns minus the length of the reason, a text to which
 * `result` then points. */
int64_t shardio_recode(Recoder *recoder, const uint8_t *data, int64_t size, int32_t height, int32_t width,
                       int32_t turn, int32_t quality, const void **result) {
    Work work = {data, size, height, width, turn, quality, 0};
    return run(recoder, &work, recode, result);
}

/* Converts the file to a baseline JPEG with the same pixels. Returns what `shardio_recode` returns. */
int64_t shardio_transcode(Recoder *recoder, const uint8_t *data, int64_t size, const void **result) {
    Work work = {.data = data, .size = size};
    return run(recoder, &work, transcode, result);
}

/* Converts the file to a baseline JPEG with restart markers, the same coefficients and, unless `strip`, the same metadata,
 * which it reads again and compares. Returns what `shardio_recode` returns. */
int64_t shardio_restart(Recoder *recoder, const uint8_t *data, int64_t size, int32_t strip, const void **result) {
    Work work = {.data = data, .size = size, .strip = strip};
    return run(recoder, &work, restart, result);
}
