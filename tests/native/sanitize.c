/* Feeds damaged inputs to the C part, which `scripts/sanitize` compiles with it under AddressSanitizer and
 * UndefinedBehaviorSanitizer.
 *
 *     sanitize SEEDS [--minutes N] [--seed N] [--target NAME]... [--save FILE] [--input FILE]
 *
 * SEEDS holds a folder of whole inputs for each target (`sanitize_seeds.py` writes them); their damaged copies take
 * turns among the targets. An input begins with PARAMETERS int32 numbers, its target's arguments, which are damaged
 * like the rest; then comes a file or a table. It stands at the end of memory of its exact size, so that a read beyond
 * it is found. The first finding ends the program with an error, after the input is written to FILE; `--input` repeats
 * such a file. */
#define _GNU_SOURCE
#include "steps.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <sanitizer/lsan_interface.h>

enum {
    PARAMETERS = 32,
    MOST_SIDE = 96,         /* pixels of a result */
    MOST_PIXELS = 1 << 20,  /* that a JPEG may claim: larger ones cost only time */
    MARGIN = 64,            /* bytes around results, which must stay as they are: libjpeg itself is not instrumented */
    MOST_BYTES = 1 << 20,   /* of an input */
    SLICE = 64,             /* inputs of one target before the next one's turn */
    LEAK_CHECK = 1 << 14,   /* inputs between two searches for leaks */
    PATIENCE = 20,          /* seconds of processor time for one input */
    SAVED = 77,
};

/* What the C part exports; its callers in Python declare it in the same way. */
void *shardio_decoder_new(void);
void shardio_decoder_free(void *decoder);
int64_t shardio_make_images(void *decoder, const ImageBatch *works, int32_t batches);
void *shardio_recoder_new(void);
void shardio_recoder_free(void *recoder);
int64_t shardio_recode(void *recoder, const uint8_t *data, int64_t size, int32_t height, int32_t width, int32_t turn,
                       int32_t quality, const void **result);
int64_t shardio_transcode(void *recoder, const uint8_t *data, int64_t size, const void **result);
int64_t shardio_restart(void *recoder, const uint8_t *data, int64_t size, int32_t strip, const void **result);
void shardio_orientations(int64_t count, const uint8_t *const *data, const int64_t *sizes, uint8_t *found);
void shardio_plain_jpegs(int64_t count, const uint8_t *const *data, const int64_t *sizes, const int32_t *images,
                         uint8_t *found);
int64_t shardio_lmdb_find(int64_t count, const uint8_t *const *maps, const int64_t *sizes, const uint8_t *keys,
                          int64_t key_size, int64_t *places);
int64_t shardio_gather(int64_t count, const uint8_t *const *addresses, int64_t size, uint8_t *out);
int64_t shardio_copy(int64_t count, const uint8_t *const *addresses, uint8_t *const *seen, const int32_t *files,
                     const int64_t *ends, int64_t size, uint8_t *out);
int64_t shardio_read(int64_t count, int64_t steps, const int64_t *step, const int64_t *file_of, const int32_t *files,
                     const uint8_t *const *maps, const int64_t *most, uint8_t *const *seen, const int64_t *offsets,
                     const int64_t *sizes, const int64_t *places, uint8_t *out);
void shardio_read_files(int64_t count, const char *const *paths, const int64_t *rooms, uint8_t *to, int64_t *got);
int32_t shardio_unfilter(int64_t height, int64_t width, int64_t channels, const uint8_t *rows, uint8_t *pixels);
int32_t shardio_unshuffle(int64_t width, int64_t count, const uint8_t *apart, uint8_t *joined);
void shardio_permute(int64_t count, uint64_t *numbers, uint64_t n, int32_t high, int32_t low, int32_t rounds,
                     const uint64_t *keys);
int64_t shardio_set_bits(int64_t count, int64_t *numbers, const uint8_t *bits, const int64_t *counts, int64_t blocks);

/* The input that is tried, kept for `save`. */
static uint8_t current[MOST_BYTES];
static size_t current_size;
static const char *current_target = "none", *save_to = "finding.bin";

static void save(void) {
    FILE *file = fopen(save_to, "wb");
    if (!file) return;
    fwrite(current, 1, current_size, file);
    fclose(file);
    fprintf(stderr, "%s: this input is in %s\n", current_target, save_to);
}

static void fail(const char *reason) {
    fprintf(stderr, "%s: %s\n", current_target, reason);
    save();
    _exit(SAVED);
}

static void allow(int seconds) { setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = seconds}}, NULL); }

static void out_of_time(int number) {
    (void)number;
    fail("still at work after the time for one input");
}

static void found(int number) {
    (void)number;
    save();
    _exit(SAVED);
}

static void require(int condition, const char *rule) {
    if (!condition) fail(rule);
}

/* What a target is given: its parameters, and the rest of the input in memory of its own. */
typedef struct {
    int32_t parameters[PARAMETERS];
    uint8_t *data;
    int64_t size;
} Input;

/* Returns parameter i in [low, high], and unchanged if it is there already. */
static int32_t within(const Input *input, int i, int32_t low, int32_t high) {
    int64_t value = input->parameters[i], count = (int64_t)high - low + 1;
    if (value >= low && value <= high) return (int32_t)value;
    return (int32_t)(low + ((value - low) % count + count) % count);
}

/* Memory of `size` bytes between two margins. */
static uint8_t *margined(size_t size) {
    uint8_t *memory = malloc(size + 2 * MARGIN);
    memset(memory, 0x5a, size + 2 * MARGIN);
    return memory + MARGIN;
}

static void check_margins(uint8_t *memory, size_t size) {
    for (size_t i = 0; i < MARGIN; i++)
        require(memory[-1 - (ptrdiff_t)i] == 0x5a && memory[size + i] == 0x5a, "wrote outside of the result");
    free(memory - MARGIN);
}

/* Whether something in these bytes claims to be a picture of many pixels. */
static int claims_much(const uint8_t *data, int64_t size) {
    for (int64_t i = 0; i + 8 < size; i++)
        if (data[i] == 0xff && data[i + 1] >= 0xc0 && data[i + 1] <= 0xcf &&
            (int64_t)(data[i + 5] << 8 | data[i + 6]) * (data[i + 7] << 8 | data[i + 8]) > MOST_PIXELS)
            return 1;
    return 0;
}

static void *decoder, *recoder;

enum { MOST_CROPS = 2, PARAMETERS_OF_CROP = 14 };

/* Has `count` crops made of a JPEG file or of pixels. All but the sizes of the results may be anything. Sets checksums of
 * the results, or 0 where there is none. */
static void make(const Input *input, const uint8_t *data, int64_t size, int encoded, int count, uint64_t *sums) {
    const int32_t *all = input->parameters;
    int32_t height = within(input, 10, 1, MOST_SIDE), width = within(input, 11, 1, MOST_SIDE);
    int32_t channels = all[12] & 1 ? 3 : 1;
    uint8_t flip = all[13] & 3, turn = all[13] >> 2 & 7, failed[MOST_CROPS] = {0}, fill = all[13] >> 5 & 255;
    const float normalize[] = {0.5f, 0.25f, 0.4f, 0.2f, 0, 1};
    int floats = all[14] & 1;
    size_t bytes = (size_t)height * (size_t)width * (size_t)channels * (floats ? sizeof *normalize : 1);
    ImageBatch works[MOST_CROPS];
    for (int i = 0; i < count; i++) {
        const int32_t *crop = all + PARAMETERS_OF_CROP * i;
        works[i] = (ImageBatch){
            .count = 1, .data = &data, .sizes = &size, .images = all, .boxes = crop + 2, .scaled = crop + 6,
            .windows = crop + 8, .flips = &flip, .turns = encoded ? &turn : NULL,
            .normalize = floats ? normalize : NULL, .out = margined(bytes), .out_bytes = (int64_t)bytes,
            .height = height, .width = width, .channels = channels,
            .filter = within(input, 15, FILTER_NEAREST, FILTER_BICUBIC_POINTS), .encoded = encoded,
            .fast = all[14] >> 1 & 1, .most = MOST_PIXELS, .seconds = 1e9, .failed = failed + i,
            .fill = {fill, 255 - fill, 7},
        };
    }
    require(shardio_make_images(decoder, works, count) == failed[0] + failed[1], "counts its failures wrong");
    for (int i = 0; i < count; i++) {
        uint64_t sum = 1;
        for (size_t k = 0; k < bytes; k++) sum = sum * 0x100000001b3ull + works[i].out[k];
        sums[i] = failed[i] ? 0 : sum | 1;
        check_margins(works[i].out, bytes);
    }
}

/* Decodes a crop with another one of its file, by itself, and from the front, as a file without its end marker is. */
static void jpeg(const Input *input) {
    const uint8_t *data = input->data;
    int64_t size = input->size;
    uint64_t both[MOST_CROPS], made, front;
    if (claims_much(data, size)) return;
    make(input, data, size, 1, MOST_CROPS, both);
    make(input, data, size, 1, 1, &made);
    require(!made || !both[0] || made == both[0], "other pixels together with another crop");
    while (made && size > 1 && !(data[size - 2] == 0xff && data[size - 1] == 0xd9)) size--;
    if (!made || size < 2) return;
    make(input, data, size - 2, 1, 1, &front);
    require(!front || front == made, "other pixels from segments than from the front");
}

static void recode(const Input *input) {
    if (claims_much(input->data, input->size)) return;
    const int32_t *all = input->parameters;
    const void *result = NULL;
    int64_t size = all[4] & 1 ? shardio_transcode(recoder, input->data, input->size, &result)
                              : shardio_recode(recoder, input->data, input->size, all[0], all[1], all[2] & 7,
                                               within(input, 3, 1, 100), &result);
    volatile uint8_t sum = 0;
    for (int64_t i = 0; i < (size < 0 ? -size : size); i++) sum = (uint8_t)(sum + ((const uint8_t *)result)[i]);
}

/* What was transcoded must be whole, and stay the same when it is transcoded again. */
static void restart(const Input *input) {
    if (claims_much(input->data, input->size)) return;
    const void *result = NULL;
    int32_t strip = input->parameters[0] & 1;
    int64_t size = shardio_restart(recoder, input->data, input->size, strip, &result);
    if (size <= 0) return;
    uint8_t *made = malloc((size_t)size);
    memcpy(made, result, (size_t)size);
    require(shardio_restart(recoder, made, size, strip, &result) == size && memcmp(made, result, (size_t)size) == 0,
            "another file when it is transcoded again");
    free(made);
}

static void warnings(const Input *input) {
    enum { LONGEST_TEXT = 200 };
    if (claims_much(input->data, input->size)) return;
    char *text = (char *)margined(LONGEST_TEXT);
    int found = shardio_jpeg_damage(input->data, input->size, input->parameters[0], input->parameters[1], MOST_PIXELS,
                                    text);
    require(memchr(text, 0, LONGEST_TEXT) != NULL, "words without an end");
    require((found == 1) == (text[0] != 0), "damage without words, or words without damage");
    check_margins((uint8_t *)text, LONGEST_TEXT);
}

static void headers(const Input *input) {
    const uint8_t *data = input->data;
    uint8_t *found = margined(1);
    shardio_plain_jpegs(1, &data, &input->size, input->parameters, found);
    require(*found <= 1, "neither true nor false");
    shardio_orientations(1, &data, &input->size, found);
    require(*found <= 8, "an orientation beyond 8");
    check_margins(found, 1);
}

/* The parameters are keys of up to 16 bytes. */
static void lmdb(const Input *input) {
    enum { KEYS = 6, LONGEST = 16 };
    const uint8_t *maps[KEYS];
    int64_t sizes[KEYS], *places = (int64_t *)margined(2 * KEYS * sizeof *places);
    for (int i = 0; i < KEYS; i++) {
        maps[i] = input->data;
        sizes[i] = input->size;
    }
    int64_t length = within(input, PARAMETERS - 1, 0, LONGEST);
    int64_t done = shardio_lmdb_find(KEYS, maps, sizes, (const uint8_t *)input->parameters, length, places);
    require(done >= 0 && done <= KEYS, "found more keys than there are");
    for (int64_t i = 0; i < done; i++)
        require(places[2 * i] >= 0 && places[2 * i + 1] >= 0 && places[2 * i] <= input->size - places[2 * i + 1],
                "a value outside of the file");
    check_margins((uint8_t *)places, 2 * KEYS * sizeof *places);
}

/* The rest of the input is a file, which the parameters cut short while it is mapped, and a table of int64 numbers:
 * offsets to read at, and ends of rows. */
static void rows(const Input *input) {
    enum { ROWS = 12, NUMBERS = 6 };
    static int file = -1;
    if (file < 0) file = memfd_create("rows", MFD_CLOEXEC);
    int64_t size = input->size, row = within(input, 0, 0, (int32_t)(size / ROWS)), page = sysconf(_SC_PAGESIZE);
    if (!size || ftruncate(file, 0) || pwrite(file, input->data, (size_t)size, 0) != size) return;
    uint8_t *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return;
    if (input->parameters[1] & 1 && ftruncate(file, within(input, 2, 0, (int32_t)size))) return;
    const uint8_t *addresses[ROWS];
    uint8_t flags[ROWS] = {0}, *seen[ROWS];
    int32_t files[ROWS];
    int64_t offsets[ROWS], ends[ROWS], sizes[ROWS], places[ROWS], got[ROWS];
    for (int i = 0; i < ROWS; i++) {
        int64_t at = row ? i * row : 0;
        addresses[i] = map + at;
        seen[i] = flags + i;
        files[i] = i % 3 == 2 && input->parameters[1] & 2 ? -1 : file;
        memcpy(&offsets[i], input->parameters + 4 + 2 * (i % NUMBERS), sizeof offsets[i]);
        memcpy(&ends[i], input->parameters + 16 + 2 * (i % NUMBERS), sizeof ends[i]);
        ends[i] = ends[i] < at + row ? at + row : ends[i]; /* its callers say where a row ends; the file may be shorter */
        sizes[i] = i % 2 ? row : -(int64_t)i;
        places[i] = at;
    }
    size_t bytes = (size_t)(ROWS * row);
    uint8_t *out = margined(bytes);
    int64_t done = shardio_gather(ROWS, addresses, row, out);
    require(done == ROWS || (done == -1 && input->parameters[1] & 1), "neither all rows nor a lost file");
    done = shardio_copy(ROWS, addresses, seen, files, ends, row, out);
    require(done >= -1 && done <= ROWS, "copied more rows than there are");
    int64_t file_of[ROWS], most[ROWS] = {0}, within[ROWS];
    const uint8_t *maps[ROWS] = {0};
    for (int i = 0; i < ROWS; i++) file_of[i] = i;
    int64_t step[] = {0, row / 2};
    done = shardio_read(ROWS, 1, step, file_of, files, maps, most, seen, offsets, sizes, places, out);
    require(done >= 0 && done <= ROWS, "read more rows than there are");
    for (int i = 0; i < ROWS; i++) {
        file_of[i] = i % 4 / 2;
        maps[i] = map;
        most[i] = input->parameters[1] & 4 ? row : 1 << 20;
        within[i] = places[i];
        if (sizes[i] > 0) sizes[i] /= 2; /* each row in two spans */
    }
    done = shardio_read(ROWS, 2, step, file_of, files, maps, most, seen, within, sizes, places, out);
    require(done >= -1 && done <= ROWS, "read more rows than there are");
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    const char *paths[NUMBERS] = {name, "/", "/nonexistent", name, "", "/proc/self/mem"};
    for (int i = 0; i < NUMBERS; i++) sizes[i] = row;
    shardio_read_files(NUMBERS, paths, sizes, out, got);
    for (int i = 0; i < NUMBERS; i++) require(got[i] <= row, "read more than there is room for");
    check_margins(out, bytes);
    munmap(map, (size_t)((size + page - 1) / page * page));
}

/* The rest of the input is the picture; if it is smaller than that, it begins anew. */
static uint8_t *picture(const Input *input, size_t bytes) {
    uint8_t *pixels = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) pixels[i] = input->size ? input->data[i % (size_t)input->size] : 0;
    return pixels;
}

/* The picture has the size that it is said to have, in most cases. */
static void resized(const Input *input) {
    Input it = *input;
    it.parameters[0] = within(input, 0, 1, MOST_SIDE);
    it.parameters[1] = within(input, 1, 1, MOST_SIDE);
    int64_t bytes = (int64_t)it.parameters[0] * it.parameters[1] * (it.parameters[12] & 1 ? 3 : 1);
    uint8_t *pixels = picture(input, (size_t)bytes);
    uint64_t sums[MOST_CROPS];
    make(&it, pixels, bytes - (input->parameters[12] >> 1 & 1), 0, MOST_CROPS, sums);
    free(pixels);
}

static void area(const Input *input) {
    static Area kept;
    int parts = 1 << within(input, 0, 0, 5), every = 1 + (input->parameters[1] & 1);
    int samples = within(input, 2, 1, 4 * MOST_SIDE), lines = within(input, 3, 1, 4 * MOST_SIDE);
    /* A result is at most as large as the picture, whose last sample may be partial: as recode.c has it. */
    int64_t rows = (int64_t)lines * parts - within(input, 4, 0, parts - 1);
    int64_t columns = (int64_t)samples * parts - within(input, 5, 0, parts - 1);
    int64_t to_rows = within(input, 6, 1, (int32_t)((rows - 1) / parts + 1));
    int64_t to_columns = within(input, 7, 1, (int32_t)((columns - 1) / parts + 1));
    Lengths y = {rows, parts, to_rows, every, input->parameters[8] & 1};
    Lengths x = {columns, parts, to_columns, every, input->parameters[9] & 1};
    size_t height = (size_t)((to_rows + every - 1) / every), width = (size_t)((to_columns + every - 1) / every);
    size_t stride = (width + 31) / 32 * 32;
    uint8_t *pixels = picture(input, (size_t)samples), *out = margined(stride * height);
    if (!area_begin(&kept, y, x, samples, out, stride)) {
        for (int i = 0; i < lines + 8; i++) area_row(&kept, pixels);
        uint8_t *turned = margined(width * height);
        plane_swap(out, stride, (Plane){turned, height, (int)width, (int)height});
        check_margins(turned, width * height);
    }
    check_margins(out, stride * height);
    free(pixels);
}

/* A step on a picture. A box lies inside of it, as transforms have it. */
static void steps(const Input *input) {
    enum { MOST_WEIGHTS = 31 };
    const int32_t *all = input->parameters;
    int32_t shape[] = {within(input, 0, 1, MOST_SIDE), within(input, 1, 1, MOST_SIDE), all[2] & 1 ? 3 : 1};
    const uint8_t every = 1, more[] = {0, 1, 2};
    float weights[MOST_WEIGHTS];
    double matrix[6];
    Step step = {.kind = within(input, 3, 0, STEPS - 1), .mask = &every, .values = weights, .more = weights};
    step.rows = 1 + 2 * within(input, 4, 0, MOST_WEIGHTS / 2);
    step.columns = 1 + 2 * within(input, 5, 0, MOST_WEIGHTS / 2);
    step.way = all[6] & 1;
    for (int i = 0; i < MOST_WEIGHTS; i++) weights[i] = (float)all[7 + i % 16] / 65536;
    for (int i = 0; i < 6; i++) matrix[i] = (double)all[7 + i] / 65536;
    int32_t top = within(input, 7, 0, shape[0] - 1), left = within(input, 8, 0, shape[1] - 1);
    int32_t box[] = {top, left, within(input, 9, 0, shape[0] - top), within(input, 10, 0, shape[1] - left)};
    if (step.kind == BLEND) step.more = more + within(input, 8, 0, 2);
    if (step.kind == WARP) step.values = matrix;
    if (step.kind == ERASE) step.values = box;
    size_t bytes = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
    uint8_t *pixels = margined(bytes), *drawn = picture(input, bytes);
    memcpy(pixels, drawn, bytes);
    require(shardio_carry_out(1, pixels, (int64_t)bytes, shape, &step, 1) == 0, "a step failed");
    check_margins(pixels, bytes);
    free(drawn);
}

static void permute(const Input *input) {
    enum { ROUNDS = 8, NUMBERS = 8 };
    uint64_t n, keys[ROUNDS], numbers[NUMBERS];
    memcpy(&n, input->parameters, sizeof n);
    memcpy(keys, input->parameters + 2, sizeof keys);
    n = n ? n : 1;
    int bits = n > 1 ? 64 - __builtin_clzll(n - 1) : 1;
    bits = bits < 2 ? 2 : bits > 62 ? 62 : bits;
    n = n > (uint64_t)1 << bits ? (uint64_t)1 << bits : n;
    for (uint64_t i = 0; i < NUMBERS; i++) numbers[i] = (n - 1) / NUMBERS * i;
    shardio_permute(NUMBERS, numbers, n, bits - bits / 2, bits / 2, ROUNDS, keys);
    for (int i = 0; i < NUMBERS; i++) {
        require(numbers[i] < n, "a number that is not in the epoch");
        for (int k = 0; k < i && n > 8 * NUMBERS; k++) require(numbers[i] != numbers[k], "a number twice");
    }
}

/* The bits of a file that has changed since they were counted: every block is said to have as many. */
static void set_bits(const Input *input) {
    enum { NUMBERS = 64, MOST_BLOCKS = 1 << 16 };
    static int64_t counts[MOST_BLOCKS + 1];
    const int64_t all = input->size / 64, blocks = all < MOST_BLOCKS ? all : MOST_BLOCKS;
    const int64_t each = input->parameters[0] & 511;
    if (!blocks || !each) return;
    for (int64_t i = 0; i <= blocks; i++) counts[i] = i * each;
    int64_t numbers[NUMBERS];
    for (int64_t i = 0; i < NUMBERS; i++) numbers[i] = counts[blocks] * i / NUMBERS;
    uint8_t *bits = malloc((size_t)(64 * blocks));
    memcpy(bits, input->data, (size_t)(64 * blocks));
    const int64_t done = shardio_set_bits(NUMBERS, numbers, bits, counts, blocks);
    require(done >= 0 && done <= NUMBERS, "a number of numbers");
    for (int64_t i = 0; i < done; i++) {
        require(numbers[i] >= 0 && numbers[i] < 512 * blocks, "a bit that there is not");
        require(bits[numbers[i] / 8] >> (7 - numbers[i] % 8) & 1, "a bit that is not set");
    }
    free(bits);
}

static void unshuffle(const Input *input) {
    const int64_t width = 2 << (input->parameters[0] & 3), count = (int64_t)input->size / width; /* 16 is refused */
    const size_t size = (size_t)(width * count);
    uint8_t *joined = margined(size);
    require((shardio_unshuffle(width, count, input->data, joined) == 0) == (width <= 8), "a width is taken or not");
    check_margins(joined, size);
}

/* The rows end where the input does. */
static void unfilter(const Input *input) {
    const int64_t width = within(input, 0, 1, MOST_SIDE), channels = input->parameters[1] & 1 ? 3 : 1;
    const int64_t row = 1 + width * channels, height = input->size / row;
    const size_t size = (size_t)(height * width * channels);
    uint8_t *rows = malloc((size_t)(height * row)), *pixels = margined(size);
    memcpy(rows, input->data, (size_t)(height * row));
    int known = 1;
    for (int64_t y = 0; y < height; y++) known &= rows[y * row] <= 4;
    require((shardio_unfilter(height, width, channels, rows, pixels) == 0) == known, "a filter is taken or not");
    check_margins(pixels, size);
    free(rows);
}

typedef struct {
    const char *name;
    void (*run)(const Input *);
    uint8_t **seeds;
    size_t *sizes, count;
    uint64_t inputs;
    int chosen;
} Target;

static Target targets[] = {
    {.name = "jpeg", .run = jpeg}, {.name = "lmdb", .run = lmdb},       {.name = "rows", .run = rows},
    {.name = "resize", .run = resized}, {.name = "headers", .run = headers}, {.name = "recode", .run = recode},
    {.name = "damage", .run = warnings}, {.name = "area", .run = area},       {.name = "permute", .run = permute},
    {.name = "steps", .run = steps},     {.name = "restart", .run = restart},
    {.name = "shuffle", .run = unshuffle}, {.name = "bits", .run = set_bits},
    {.name = "png", .run = unfilter},
};
enum { TARGETS = sizeof targets / sizeof *targets };

static void run(Target *target) {
    Input input = {.size = 0};
    size_t head = current_size < sizeof input.parameters ? current_size : sizeof input.parameters;
    memcpy(input.parameters, current, head);
    input.size = (int64_t)(current_size - head);
    input.data = malloc((size_t)input.size);
    memcpy(input.data, current + head, (size_t)input.size);
    current_target = target->name;
    allow(PATIENCE);
    target->run(&input);
    free(input.data);
    target->inputs++;
}

static uint64_t state;

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled". */
static uint64_t chance(uint64_t below) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return below ? state * 0x2545F4914F6CDD1Dull % below : 0;
}

/* A whole number that breaks arithmetic elsewhere. */
static uint64_t hostile(void) {
    const uint64_t values[] = {0, 1, (uint64_t)-1, 127, 128, 255, 256, 32767, 32768, 65535, 65536, INT32_MAX,
                               (uint64_t)INT32_MAX + 1, UINT32_MAX, INT64_MAX, (uint64_t)INT64_MAX + 1};
    uint64_t value = chance(4) ? values[chance(sizeof values / sizeof *values)] : current_size;
    return value + chance(3) - 1;
}

static void damage(const Target *target) {
    size_t size = current_size;
    if (!size) return;
    size_t at = chance(2) ? chance(size) : chance(size < 1024 ? size : 1024); /* headers stand at the beginning */
    size_t room = size - at, length = chance(room < 256 ? room : 256) + 1, from = chance(size - length + 1);
    size_t width = (size_t)1 << chance(4);
    uint64_t value = hostile();
    switch (chance(9)) {
    case 0: current[at] ^= (uint8_t)(1 << chance(8)); break;
    case 1: current[at] = (uint8_t)chance(256); break;
    case 2: current[at] = chance(2) ? 0 : 255; break;
    case 3: /* a whole number, of either byte order */
        at = chance(2) ? at / width * width : at;
        if (chance(2)) value = __builtin_bswap64(value) >> (64 - 8 * width);
        if (at + width <= size) memcpy(current + at, &value, width);
        break;
    case 4: memset(current + at, chance(2) ? 0 : 255, length); break;
    case 5: memmove(current + at, current + from, length); break;
    case 6: current_size = chance(4) ? size : at; break;
    case 7: /* a part of another input */
        if (target->count) {
            size_t other = chance(target->count), least = target->sizes[other] < size ? target->sizes[other] : size;
            if (at + length <= least) memcpy(current + at, target->seeds[other] + at, length);
        }
        break;
    case 8: /* an insertion */
        if (size + length <= MOST_BYTES) {
            memmove(current + at + length, current + at, room);
            current_size = size + length;
        }
    }
}

static void read_input(const char *path, uint8_t *to, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    *size = fread(to, 1, MOST_BYTES, file);
    fclose(file);
}

static void read_seeds(Target *target, const char *folder) {
    char path[4096];
    struct dirent **names;
    snprintf(path, sizeof path, "%s/%s", folder, target->name);
    int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.') {
            target->seeds = realloc(target->seeds, (target->count + 1) * sizeof *target->seeds);
            target->sizes = realloc(target->sizes, (target->count + 1) * sizeof *target->sizes);
            snprintf(path, sizeof path, "%s/%s/%s", folder, target->name, names[i]->d_name);
            read_input(path, current, &current_size);
            target->seeds[target->count] = malloc(current_size);
            memcpy(target->seeds[target->count], current, current_size);
            target->sizes[target->count++] = current_size;
        }
        free(names[i]);
    }
    if (count >= 0) free(names);
    if (!target->count) {
        fprintf(stderr, "%s/%s holds no inputs\n", folder, target->name);
        exit(2);
    }
}

static void find_leaks(void) {
    if (__lsan_do_recoverable_leak_check()) fail("leaks memory, in this input or one of the last");
}

static void fuzz_one(Target *target) {
    size_t seed = chance(target->count);
    current_size = target->sizes[seed];
    memcpy(current, target->seeds[seed], current_size);
    for (uint64_t times = 1 + chance(chance(2) ? 2 : 12); times; times--) damage(target);
    run(target);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static Target *target_called(const char *name) {
    for (int i = 0; i < TARGETS; i++)
        if (!strcmp(targets[i].name, name)) return targets + i;
    fprintf(stderr, "target must be one of");
    for (int i = 0; i < TARGETS; i++) fprintf(stderr, " %s", targets[i].name);
    fprintf(stderr, ", got %s\n", name);
    exit(2);
}

int main(int count, char **arguments) {
    double minutes = 30;
    uint64_t seed = 1;
    const char *repeat = NULL;
    int any = 0;
    if (count < 2 || count % 2) {
        fprintf(stderr, "give a folder of inputs, then options with values\n");
        return 2;
    }
    for (int i = 2; i < count; i += 2) {
        if (!strcmp(arguments[i], "--minutes")) minutes = atof(arguments[i + 1]);
        else if (!strcmp(arguments[i], "--seed")) seed = strtoull(arguments[i + 1], NULL, 10);
        else if (!strcmp(arguments[i], "--save")) save_to = arguments[i + 1];
        else if (!strcmp(arguments[i], "--input")) repeat = arguments[i + 1];
        else if (!strcmp(arguments[i], "--target")) any = target_called(arguments[i + 1])->chosen = 1;
        else {
            fprintf(stderr, "no such option: %s\n", arguments[i]);
            return 2;
        }
    }
    decoder = shardio_decoder_new();
    recoder = shardio_recoder_new();
    signal(SIGPROF, out_of_time);
    signal(SIGABRT, found); /* so the sanitizers end, with abort_on_error */
    uint64_t inputs = 0;
    for (int i = 0; i < TARGETS; i++)
        if (!any || targets[i].chosen) read_seeds(targets + i, arguments[1]);
    if (repeat) {
        for (int i = 0; i < TARGETS; i++)
            if (targets[i].count) {
                read_input(repeat, current, &current_size);
                run(targets + i);
            }
        puts("nothing found");
        return 0;
    }
    for (int i = 0; i < TARGETS; i++) /* whole inputs first */
        for (size_t k = 0; k < targets[i].count; k++) {
            current_size = targets[i].sizes[k];
            memcpy(current, targets[i].seeds[k], current_size);
            run(targets + i);
        }
    state = (seed + 1) * 0x9E3779B97F4A7C15ull;
    const double begin = now(), end = begin + 60 * minutes;
    while (now() < end)
        for (int i = 0; i < TARGETS; i++)
            for (int k = 0; k < SLICE && targets[i].count; k++) {
                fuzz_one(targets + i);
                if (++inputs % LEAK_CHECK == 0) find_leaks();
            }
    allow(0);
    find_leaks();
    for (int i = 0; i < TARGETS; i++) {
        if (targets[i].count) printf("%-8s %12llu inputs\n", targets[i].name, (unsigned long long)targets[i].inputs);
        for (size_t k = 0; k < targets[i].count; k++) free(targets[i].seeds[k]);
        free(targets[i].seeds);
        free(targets[i].sizes);
    }
    printf("nothing found in %llu inputs, %.0f s, seed %llu\n", (unsigned long long)inputs, now() - begin,
           (unsigned long long)seed);
    shardio_decoder_free(decoder);
    shardio_recoder_free(recoder);
    return 0;
}
