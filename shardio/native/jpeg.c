/* Resized crops of many images in one call: of JPEG files, of which libjpeg-turbo decodes only the region that a crop
 * shows, of pixels, or of frames of videos. Rows are resized while they are decoded.
 *
 * Anything unusual (a warning, CMYK, a box outside the image) is left to the caller, image by image. */
#include "image.h"
#include "stop.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

enum { CALLS_PER_LOOK = 64, ROWS_PER_CALL = 16, MOST_SHRINK = 8, LEAST_COLUMNS = 6, MARGIN = 2, LINE = 64, UNALIGNED = 8 };

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    int warned;
} Errors;

/* What libjpeg calls for every few rows of pixels, and of each scan's coefficients. */
typedef struct {
    struct jpeg_progress_mgr base;
    double due; /* when the image has taken too long, by this thread's processor time */
    int calls, late;
} Watch;

/* One image of a batch, and how it is made. */
typedef struct {
    const ImageBatch *work;
    const uint8_t *data;
    int64_t size;
    const int32_t *image, *box, *scaled, *window;
    int flip, turn, shrink;
    enum { LEFT, TO_BEGIN, BEGUN, MADE } state;
    uint8_t *out;
    int32_t top, left, rows, columns; /* what it shows of the stored image, once that is shrunk */
    Resampler resampler;
    Scratch region; /* its pixels, if they have to be turned */
} Crop;

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    Watch watch;
    Scratch pixels;
    Part part;
    Crop *crops, **together; /* of one file */
    int count;
} Decoder;

#define TEXT_OF(macro) TEXT(macro)
#define TEXT(words) #words

/* The version of the libjpeg-turbo whose headers this was compiled with. */
const char *shardio_jpeg_version(void) { return TEXT_OF(LIBJPEG_TURBO_VERSION); }

static void escape(j_common_ptr info) { longjmp(((Errors *)info->err)->escape, 1); }

static void note_warning(j_common_ptr info, int level) {
    if (level < 0) ((Errors *)info->err)->warned = 1;
}

/* Processor time, so that no image becomes a bad sample because others keep the machine busy, or suspend the job. */
static double processor_time(void) {
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) ? 0 : (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Ends the decoding of an image that takes too long, or that nobody waits for any more. It asks for the time once in
 * CALLS_PER_LOOK calls: that is a system call. */
static void look(j_common_ptr info) {
    Watch *watch = (Watch *)info->progress;
    if (++watch->calls % CALLS_PER_LOOK) return;
    watch->late = processor_time() > watch->due;
    if (watch->late || stopped()) escape(info);
}

Decoder *shardio_decoder_new(void) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder) return NULL;
    decoder->info.err = jpeg_std_error(&decoder->errors.base);
    decoder->errors.base.error_exit = escape;
    decoder->errors.base.emit_message = note_warning;
    decoder->watch.base.progress_monitor = look;
    return decoder;
}

void shardio_decoder_free(Decoder *decoder) {
    for (int i = 0; i < decoder->count; i++) {
        resampler_free(&decoder->crops[i].resampler);
        free(decoder->crops[i].region.memory);
    }
    free(decoder->crops);
    free(decoder->together);
    free(decoder->pixels.memory);
    free(decoder->part.memory.memory);
    free(decoder->part.starts.memory);
    free(decoder);
}

/* Makes room for so many crops of one file. Returns -1 if memory is exhausted. */
static int take_crops(Decoder *decoder, int count) {
    if (count <= decoder->count) return 0;
    Crop **together = realloc(decoder->together, (size_t)count * sizeof *together);
    if (!together) return -1;
    decoder->together = together;
    Crop *crops = realloc(decoder->crops, (size_t)count * sizeof *crops);
    if (!crops) return -1;
    memset(crops + decoder->count, 0, (size_t)(count - decoder->count) * sizeof *crops);
    decoder->crops = crops;
    decoder->count = count;
    return 0;
}

/* The axis of the stored image that an axis of the upright one comes from: 0 for rows, 1 for columns. */
static int stored_axis(const Crop *it, int axis) { return it->turn & TURN_SWAP ? 1 - axis : axis; }

static int is_mirrored(const Crop *it, int stored) { return (it->turn & (stored ? TURN_COLUMNS : TURN_ROWS)) != 0; }

static int32_t shrunk(int32_t size, int shrink) { return (size + shrink - 1) / shrink; }

static Output output_of(const Crop *it) {
    const ImageBatch *work = it->work;
    const ptrdiff_t pitch = work->width;
    return (Output){it->out, work->normalize, pitch, (size_t)(work->height * pitch), work->channels, it->flip & FLIP_COLUMNS};
}

/* Begins to resize a crop, and finds what it shows. Returns -1 if memory is exhausted. */
static int begin(Crop *it) {
    const ImageBatch *work = it->work;
    int shrink = it->shrink;
    Extent axes[2];
    int32_t starts[2];
    const int32_t wanted[2] = {work->height, work->width};
    ptrdiff_t offsets[2];
    int whole = 1;
    for (int axis = 0; axis < 2; axis++) {
        /* What the window shows of the resized region. */
        int32_t first = it->window[axis] > 0 ? it->window[axis] : 0;
        int32_t end = it->window[axis] + wanted[axis] < it->scaled[axis] ? it->window[axis] + wanted[axis]
                                                                         : it->scaled[axis];
        int32_t before = first - it->window[axis], after = it->window[axis] + wanted[axis] - end;
        offsets[axis] = it->flip & (axis ? FLIP_COLUMNS : FLIP_ROWS) ? after : before;
        whole &= before + after == 0;
        double low = (double)it->box[axis] / shrink, high = (double)(it->box[axis] + it->box[2 + axis]) / shrink;
        int stored = stored_axis(it, axis);
        if (is_mirrored(it, stored)) { /* a part of a pixel that the decoder adds at the end is at the beginning then */
            double part = shrunk(it->image[stored], shrink) - (double)it->image[stored] / shrink;
            low += part;
            high += part;
        }
        int32_t from = (int32_t)low;
        starts[axis] = from;
        axes[axis] = (Extent){low - from, high - from, (int32_t)ceil(high) - from, it->scaled[axis], first,
                              end - first};
    }
    const ptrdiff_t pitch = work->width, pixel = work->normalize ? (ptrdiff_t)sizeof(float) : work->channels;
    Output output = output_of(it);
    if (!whole) fill_pixels(output, work->height, work->width, work->fill);
    if (it->flip & FLIP_ROWS) {
        offsets[0] += axes[0].count - 1;
        output.pitch = -pitch;
    }
    output.out = it->out + (offsets[0] * pitch + offsets[1]) * pixel;
    Resampler *resampler = &it->resampler;
    if (resample_begin(resampler, work->filter, axes[0], axes[1], output)) return -1;
    starts[0] += resampler->y.from;
    starts[1] += resampler->x.from;
    const int32_t counts[2] = {resampler->y.to - resampler->y.from, resampler->x.to - resampler->x.from};
    for (int axis = 0; axis < 2; axis++) { /* of the upright image; the decoder has the stored one */
        int stored = stored_axis(it, axis);
        *(stored ? &it->columns : &it->rows) = counts[axis];
        *(stored ? &it->left : &it->top) = is_mirrored(it, stored)
                                               ? shrunk(it->image[stored], shrink) - starts[axis] - counts[axis]
                                               : starts[axis];
    }
    return 0;
}

/* How far the decoder itself may shrink an image: a crop must stay as large as its target in both directions. */
static int shrink_of(const Crop *it) {
    int64_t shrink = 1;
    while (it->work->fast && shrink < MOST_SHRINK && it->box[2] >= 2 * shrink * it->scaled[0] &&
           it->box[3] >= 2 * shrink * it->scaled[1])
        shrink *= 2;
    return (int)shrink;
}

/* Pillow's luma of RGB pixels, in their place. */
static void to_grey(uint8_t *row, size_t count) {
    for (size_t i = 0; i < count; i++)
        row[i] = (uint8_t)((row[3 * i] * 19595 + row[3 * i + 1] * 38470 + row[3 * i + 2] * 7471 + 0x8000) >> 16);
}

/* Makes room for the pixels of a crop that has to be turned, and for a line of the upright image. */
static int take_region(Crop *it) {
    size_t pixel = (size_t)it->work->channels, rows = (size_t)it->rows, columns = (size_t)it->columns;
    size_t line = (rows > columns ? rows : columns) * pixel + READ_BEYOND;
    return !it->turn || scratch_take(&it->region, rows * columns * pixel + line) ? 0 : -1;
}

/* Takes row `row` of a decoded region, whose first column is `left`. */
static void take_row(Crop *it, const uint8_t *line, int32_t row, int32_t left) {
    size_t pixel = (size_t)it->work->channels, used = (size_t)it->columns * pixel;
    if (row < it->top || row >= it->top + it->rows) return;
    line += (size_t)(it->left - left) * pixel;
    if (it->turn) memcpy((uint8_t *)it->region.memory + (size_t)(row - it->top) * used, line, used);
    else resample_row(&it->resampler, line);
}

/* Resizes the region of a crop that has to be turned. */
static void resample_turned(Crop *it) {
    int swap = it->turn & TURN_SWAP;
    int32_t height = swap ? it->columns : it->rows, width = swap ? it->rows : it->columns;
    size_t channels = (size_t)it->work->channels;
    ptrdiff_t stride = it->columns * (ptrdiff_t)channels, pixel = (ptrdiff_t)channels;
    const uint8_t *first = it->region.memory;
    uint8_t *line = (uint8_t *)it->region.memory + stride * it->rows;
    ptrdiff_t down = swap ? pixel : stride, across = swap ? stride : pixel;
    if (is_mirrored(it, 0)) first += stride * (it->rows - 1);
    if (is_mirrored(it, 1)) first += pixel * (it->columns - 1);
    if (is_mirrored(it, stored_axis(it, 0))) down = -down;
    if (is_mirrored(it, stored_axis(it, 1))) across = -across;
    for (int32_t row = 0; row < height; row++, first += down) {
        const uint8_t *from = first;
        for (size_t i = 0; i < (size_t)width; i++, from += across)
            for (size_t c = 0; c < channels; c++) line[i * channels + c] = from[c];
        resample_row(&it->resampler, line);
    }
}

/* The region of the shrunken image that shows all of some crops. */
static Region around(Crop *const *crops, int count) {
    const Crop *it = *crops;
    Region all = {it->top, it->left, it->top + it->rows, it->left + it->columns};
    for (int i = 1; i < count; i++) {
        it = crops[i];
        all.top = it->top < all.top ? it->top : all.top;
        all.left = it->left < all.left ? it->left : all.left;
        all.bottom = it->top + it->rows > all.bottom ? it->top + it->rows : all.bottom;
        all.right = it->left + it->columns > all.right ? it->left + it->columns : all.right;
    }
    return all;
}

/* The pixels of the file that a region of the shrunken image needs: chroma is interpolated from neighbours, by code that
 * needs LEAST_COLUMNS. */
static Region with_margin(const Crop *it, Region shown) {
    int shrink = it->shrink, aside = shown.right - shown.left < LEAST_COLUMNS ? LEAST_COLUMNS : MARGIN;
    int64_t bottom = ((int64_t)shown.bottom + MARGIN) * shrink, right = ((int64_t)shown.right + aside) * shrink;
    return (Region){shown.top > MARGIN ? (shown.top - MARGIN) * shrink : 0,
                    shown.left > aside ? (shown.left - aside) * shrink : 0,
                    bottom < it->image[0] ? (int32_t)bottom : it->image[0],
                    right < it->image[1] ? (int32_t)right : it->image[1]};
}

/* Makes crops of one JPEG file that are shrunk alike, for which it is decoded once. Returns 0 if the results cannot be
 * trusted.
 *
 * Each file gets a new decompressor: libjpeg would use the last file's tables for one that lacks them. */
static int make_jpeg(Decoder *decoder, Crop *const *crops, int count) {
    struct jpeg_decompress_struct *info = &decoder->info;
    const Crop *it = *crops; /* what they have in common */
    const ImageBatch *work = it->work;
    const int32_t *image = it->image;
    const int shrink = it->shrink;
    decoder->errors.warned = 0;
    if (setjmp(decoder->errors.escape)) {
        jpeg_destroy_decompress(info);
        return 0;
    }
    jpeg_create_decompress(info);
    info->mem->max_memory_to_use = JPEG_MEMORY;
    info->progress = &decoder->watch.base;
    Region shown = around(crops, count);
    Part source = {.data = it->data, .size = it->size, .height = image[0], .width = image[1]};
    if (part_take(&decoder->part, it->data, it->size, image, with_margin(it, shown))) source = decoder->part;
    const int32_t top = shown.top - source.top / shrink, left = shown.left - source.left / shrink;
    const int32_t rows = shown.bottom - shown.top, columns = shown.right - shown.left;
    jpeg_mem_src(info, (unsigned char *)source.data, (unsigned long)source.size);
    jpeg_read_header(info, TRUE);
    int known = info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_GRAYSCALE ||
                info->jpeg_color_space == JCS_RGB;
    if (!known || info->image_height != (JDIMENSION)source.height || info->image_width != (JDIMENSION)source.width)
        escape((j_common_ptr)info);
    if (jpeg_has_multiple_scans(info) && has_many_scans(info->src->next_input_byte, (int64_t)info->src->bytes_in_buffer))
        escape((j_common_ptr)info);
    /* Of what comes in several scans, libjpeg holds all coefficients. */
    int64_t all = (int64_t)image[0] * image[1];
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
    if (!pixels) escape((j_common_ptr)info);
    for (int i = 0; i < count; i++)
        if (take_region(crops[i])) escape((j_common_ptr)info);
    /* Several rows per call: libjpeg decodes two at once, and would copy the second for a caller who takes one. */
    JSAMPROW lines[ROWS_PER_CALL];
    uint8_t *first = pixels + (LINE - (uintptr_t)pixels % LINE) % LINE + UNALIGNED;
    for (int i = 0; i < ROWS_PER_CALL; i++) lines[i] = first + stride * (size_t)i;
    for (int32_t row = 0; row < rows;) {
        JDIMENSION ask = rows - row < ROWS_PER_CALL ? (JDIMENSION)(rows - row) : ROWS_PER_CALL;
        JDIMENSION got = jpeg_read_scanlines(info, lines, ask);
        if (!got) escape((j_common_ptr)info);
        for (JDIMENSION i = 0; i < got; i++, row++) {
            uint8_t *line = lines[i] + ((size_t)left - from) * (size_t)channels;
            if (recolour) to_grey(line, (size_t)columns);
            for (int c = 0; c < count; c++) take_row(crops[c], line, shown.top + row, shown.left);
        }
    }
    jpeg_destroy_decompress(info);
    for (int c = 0; c < count; c++)
        if (crops[c]->turn) resample_turned(crops[c]);
    return !decoder->errors.warned;
}

/* Makes the result of an image whose pixels, bytes with channels last, are there. */
static int make_pixels(Decoder *decoder, Crop *it) {
    size_t channels = (size_t)it->work->channels, stride = (size_t)it->image[1] * channels;
    if (it->size != (int64_t)stride * it->image[0]) return 0;
    size_t columns = (size_t)it->columns * channels;
    uint8_t *last = scratch_take(&decoder->pixels, columns + READ_BEYOND);
    if (!last) return 0;
    const uint8_t *row = it->data + (size_t)it->top * stride + (size_t)it->left * channels;
    for (int32_t i = 0; i < it->rows; i++, row += stride) {
        int ends = row + columns + READ_BEYOND > it->data + it->size; /* nothing may be read behind the pixels */
        if (ends) memcpy(last, row, columns);
        resample_row(&it->resampler, ends ? last : row);
    }
    return 1;
}

/* Makes the result of a frame of a video, whose rows become RGB one by one. */
static int make_frame(Decoder *decoder, Crop *it) {
    const Frame *frame = (const Frame *)it->data;
    if (it->work->channels != 3 || frame->height != it->image[0] || frame->width != it->image[1]) return 0;
    uint8_t *row = scratch_take(&decoder->pixels, 3 * (size_t)it->columns + READ_BEYOND);
    if (!row || take_region(it)) return 0;
    for (int32_t i = 0; i < it->rows; i++) {
        frame_row(frame, it->top + i, it->left, it->columns, row);
        take_row(it, row, it->top + i, it->left);
    }
    if (it->turn) resample_turned(it);
    return 1;
}

/* Whether a window shows something of a resized region. */
static int shows(int32_t window, int32_t wanted, int32_t scaled) {
    return window < scaled && (int64_t)window + wanted >= 1;
}

static int is_possible(const Crop *it) {
    const int32_t *box = it->box, height = it->image[stored_axis(it, 0)], width = it->image[stored_axis(it, 1)];
    return box[0] >= 0 && box[1] >= 0 && box[2] >= 1 && box[3] >= 1 && (int64_t)box[0] + box[2] <= height &&
           (int64_t)box[1] + box[3] <= width && it->scaled[0] >= 1 && it->scaled[1] >= 1 &&
           (int64_t)it->window[0] + it->work->height <= INT32_MAX &&
           (int64_t)it->window[1] + it->work->width <= INT32_MAX;
}

/* Begins the crop of image `i` that a batch wants, unless it is left to the caller. */
static void start(Crop *it, const ImageBatch *work, int64_t i) {
    it->work = work;
    it->data = work->data[i];
    it->size = work->sizes[i];
    it->image = work->images + 2 * i;
    it->box = work->boxes + 4 * i;
    it->scaled = work->scaled + 2 * i;
    it->window = work->windows + 2 * i;
    it->flip = work->flips[i];
    it->turn = work->turns ? work->turns[i] : 0;
    it->out = work->out + i * work->out_bytes;
    it->state = LEFT;
    int is_too_large = it->image[0] > JPEG_MAX_DIMENSION || it->image[1] > JPEG_MAX_DIMENSION;
    if (!is_possible(it) || (work->encoded && is_too_large)) return; /* before it costs memory */
    if (!shows(it->window[0], work->height, it->scaled[0]) || !shows(it->window[1], work->width, it->scaled[1])) {
        fill_pixels(output_of(it), work->height, work->width, work->fill);
        it->state = MADE;
        return;
    }
    it->shrink = work->encoded ? shrink_of(it) : 1;
    if (begin(it) == 0) it->state = BEGUN;
}

/* What decoding a region costs, in units of a pixel: without restart markers, the codes of all that is above and beside it
 * have to be read, too. */
static int64_t cost(const Crop *it, Region shown, int marked) {
    int64_t area = (int64_t)(shown.bottom - shown.top) * (shown.right - shown.left);
    return area + (marked ? area : (int64_t)shown.bottom * shrunk(it->image[1], it->shrink));
}

/* Whether it costs less to decode the region around some crops than each by itself. */
static int are_near(Crop *const *crops, int count) {
    int marked = part_is_possible(crops[0]->data, crops[0]->size);
    int64_t each = 0;
    for (int i = 0; i < count; i++) each += cost(crops[i], around(crops + i, 1), marked);
    return each > cost(crops[0], around(crops, count), marked);
}

static int make_one(Decoder *decoder, Crop *it) {
    if (it->work->encoded) return make_jpeg(decoder, &it, 1);
    return it->work->frames ? make_frame(decoder, it) : make_pixels(decoder, it);
}

/* Makes those crops of a file that are shrunk alike, for which decoding once costs less. */
static void make_together(Decoder *decoder, int batches, int shrink) {
    int count = 0;
    for (int b = 0; b < batches; b++)
        if (decoder->crops[b].state == BEGUN && decoder->crops[b].shrink == shrink)
            decoder->together[count++] = decoder->crops + b;
    if (count < 2 || !are_near(decoder->together, count)) return;
    int made = make_jpeg(decoder, decoder->together, count);
    for (int i = 0; i < count; i++) decoder->together[i]->state = made ? MADE : TO_BEGIN;
}

#ifdef SHARDIO_SLEEP_US
/* A build for benchmarks/many_cores.py, never for users: each image takes so many microseconds of sleep and has no pixels,
 * so that a few processors stand for many. It sleeps for several images at once, because to wake up takes a processor. */
static int64_t sleep_for_images(const ImageBatch *works, int32_t batches) {
    enum { TOGETHER = 16, SECOND = 1000000000 };
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    for (int64_t i = 0; i < works->count; i++) {
        due.tv_nsec += SHARDIO_SLEEP_US * 1000L;
        due.tv_sec += due.tv_nsec / SECOND;
        due.tv_nsec %= SECOND;
        for (int b = 0; b < batches; b++) works[b].failed[i] = 0;
        if (i % TOGETHER == TOGETHER - 1 || i == works->count - 1)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        if (stopped()) return STOPPED;
    }
    return 0;
}
#endif

/* Makes what `batches` batches want of the same images; returns the number of results that are left to the caller or have
 * taken too long, or STOPPED. */
int64_t shardio_make_images(Decoder *decoder, const ImageBatch *works, int32_t batches) {
#ifdef SHARDIO_SLEEP_US
    return sleep_for_images(works, batches);
#endif
    int64_t bad = 0;
    int room = take_crops(decoder, batches) == 0;
    for (int64_t i = 0; i < works->count; i++) {
        if (stopped()) return STOPPED;
        decoder->watch.late = 0;
        decoder->watch.due = works->encoded ? processor_time() + works->seconds : 0;
        for (int b = 0; b < batches && room; b++) start(decoder->crops + b, works + b, i);
        for (int shrink = 1; shrink <= MOST_SHRINK && batches > 1 && room && works->encoded; shrink *= 2)
            make_together(decoder, batches, shrink);
        for (int b = 0; b < batches; b++) {
            Crop *it = decoder->crops + b;
            int late = decoder->watch.late;
            if (room && !late && it->state == TO_BEGIN) start(it, works + b, i);
            int made = room && (it->state == MADE || (!late && it->state == BEGUN && make_one(decoder, it)));
            works[b].failed[i] = made ? 0 : decoder->watch.late ? FAILED_LATE : FAILED;
            bad += !made;
        }
    }
    return bad;
}
