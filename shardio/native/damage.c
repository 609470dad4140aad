/* Finds damage in a JPEG file by what libjpeg warns of while it reads all of it. */
#include "image.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h> /* depends on the definitions of jpeglib.h */

enum {
    /* libjpeg reads MCUs by code that passes over bad Huffman codes in silence where so much of the file lies ahead:
     * 512 bytes for each block. */
    PIECE = 500,
    /* Cameras leave up to 8 bytes between the last code and the next marker; where damage ends the codes too early,
     * mostly more are left. */
    MOST_PADDING = 8
};

enum { WHOLE, DAMAGED, UNKNOWN };

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    char *text; /* what is wrong; empty if nothing is */
} Errors;

typedef struct {
    struct jpeg_source_mgr base;
    const uint8_t *next, *end;
} File;

static const JOCTET end_marker[] = {0xff, JPEG_EOI};

static void escape(j_common_ptr info) { longjmp(((Errors *)info->err)->escape, 1); }

/* Ends the reading at the first warning that tells of lost or senseless data. Others tell of headers that make no
 * difference to the pixels, such as JFIF's version. */
static void note_warning(j_common_ptr info, int level) {
    Errors *errors = (Errors *)info->err;
    if (level >= 0) return;
    switch (errors->base.msg_code) {
    case JWRN_EXTRANEOUS_DATA:
        /* Between the segments of a header stray bytes cost no pixels. */
        if (errors->base.msg_parm.i[0] <= MOST_PADDING || !((j_decompress_ptr)info)->input_scan_number) return;
        break;
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC: break;
    default: return;
    }
    errors->base.format_message(info, errors->text);
    escape(info);
}

static void nothing(j_decompress_ptr info) { (void)info; }

static boolean next_piece(j_decompress_ptr info) {
    File *file = (File *)info->src;
    size_t left = (size_t)(file->end - file->next), size = left < PIECE ? left : PIECE;
    if (!size) WARNMS(info, JWRN_JPEG_EOF);
    file->base.next_input_byte = size ? file->next : end_marker;
    file->base.bytes_in_buffer = size ? size : sizeof end_marker;
    file->next += size;
    return TRUE;
}

static void skip(j_decompress_ptr info, long count) {
    struct jpeg_source_mgr *source = info->src;
    for (; count > (long)source->bytes_in_buffer; next_piece(info)) count -= (long)source->bytes_in_buffer;
    source->next_input_byte += count > 0 ? count : 0;
    source->bytes_in_buffer -= (size_t)(count > 0 ? count : 0);
}

/* Reads every coefficient of the file, of which it makes as few pixels as libjpeg can. */
static void read_all(struct jpeg_decompress_struct *info, int64_t height, int64_t width, int64_t most) {
    jpeg_read_header(info, TRUE);
    if (info->image_height != height || info->image_width != width) escape((j_common_ptr)info);
    /* Of what comes in several scans, libjpeg holds all coefficients. */
    if (height * width > most && (jpeg_has_multiple_scans(info) || info->arith_code)) escape((j_common_ptr)info);
    info->out_color_space = info->jpeg_color_space;
    info->scale_denom = DCTSIZE;
    info->do_block_smoothing = FALSE;
    jpeg_start_decompress(info);
    JDIMENSION samples = info->output_width * (JDIMENSION)info->output_components;
    JSAMPARRAY row = info->mem->alloc_sarray((j_common_ptr)info, JPOOL_IMAGE, samples, 1);
    while (info->output_scanline < info->output_height) jpeg_read_scanlines(info, row, 1);
    jpeg_finish_decompress(info); /* which goes on to the end marker */
}

/* Returns WHOLE; DAMAGED, with libjpeg's words for it in `text`, which has room for JMSG_LENGTH_MAX bytes; or UNKNOWN
 * for a file that libjpeg refuses, that has not this height and width, or of which it must hold more than `most`
 * pixels. */
int shardio_jpeg_damage(const uint8_t *data, int64_t size, int64_t height, int64_t width, int64_t most, char *text) {
    struct jpeg_decompress_struct info;
    Errors errors;
    File file = {{NULL, 0, nothing, next_piece, skip, jpeg_resync_to_restart, nothing}, data, data + size};
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = escape;
    errors.base.emit_message = note_warning;
    errors.text = text;
    text[0] = 0;
    if (setjmp(errors.escape)) {
        jpeg_destroy_decompress(&info);
        return text[0] ? DAMAGED : UNKNOWN;
    }
    jpeg_create_decompress(&info);
    info.mem->max_memory_to_use = JPEG_MEMORY;
    info.src = &file.base;
    read_all(&info, height, width, most);
    jpeg_destroy_decompress(&info);
    return WHOLE;
}
