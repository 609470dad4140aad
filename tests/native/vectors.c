/* Repeats on any processor what the C part made on another, and compares every byte:
 *
 *     vectors FILE
 *
 * `vectors.py` writes FILE: numbers are little-endian int32, and after each case's numbers come its parts, each with its
 * size in bytes as int64. `scripts/aarch64` runs this under an emulator. */
#include "steps.h"

#include <stdio.h>
#include <string.h>

void *shardio_decoder_new(void);
int64_t shardio_make_images(void *decoder, const ImageBatch *works, int32_t batches);
void shardio_orientations(int64_t count, const uint8_t *const *data, const int64_t *sizes, uint8_t *found);
void *shardio_recoder_new(void);
int64_t shardio_restart(void *recoder, const uint8_t *data, int64_t size, int32_t strip, const void **result);
void shardio_permute(int64_t count, uint64_t *numbers, uint64_t n, int32_t high, int32_t low, int32_t rounds,
                     const uint64_t *keys);
int32_t shardio_unfilter(int64_t height, int64_t width, int64_t channels, const uint8_t *rows, uint8_t *pixels);
int32_t shardio_unshuffle(int64_t width, int64_t count, const uint8_t *apart, uint8_t *joined);

enum { NUMBERS = 24, PARTS = 3, MOST_PIXELS = 1 << 28 };
enum { IMAGE, STEP, PERMUTE, ORIENTATION, RESTART, SHUFFLE, UNFILTER, FRAMES, KINDS };
static const char *NAMES[] = {"images", "steps", "permutations", "orientations", "transcoded files", "shuffles",
                              "rows of PNGs", "frames"};

typedef struct {
    uint8_t *bytes;
    int64_t size;
} Bytes;

static void take(FILE *file, void *to, size_t size) {
    if (fread(to, 1, size, file) == size) return;
    fprintf(stderr, "the file ends in the middle of a case\n");
    exit(2);
}

/* The parts of a case: what it is made from, more of that, and the result. */
static void read_parts(FILE *file, Bytes *parts) {
    for (int i = 0; i < PARTS; i++) {
        take(file, &parts[i].size, sizeof parts[i].size);
        parts[i].bytes = malloc((size_t)parts[i].size + 1);
        take(file, parts[i].bytes, (size_t)parts[i].size);
    }
}

static int same_image(void *decoder, const int32_t *n, const Bytes *parts) {
    const uint8_t *data = parts[0].bytes, flip = (uint8_t)n[10], turn = (uint8_t)n[11];
    uint8_t *out = malloc((size_t)parts[2].size), failed = 2;
    ImageBatch work = {
        .count = 1, .data = &data, .sizes = &parts[0].size, .images = n, .boxes = n + 2, .scaled = n + 6, .windows = n + 8,
        .flips = &flip, .turns = turn ? &turn : NULL, .normalize = parts[1].size ? (const float *)parts[1].bytes : NULL,
        .out = out, .out_bytes = parts[2].size, .height = n[12], .width = n[13], .channels = n[14], .filter = n[15],
        .encoded = n[16], .fast = n[17], .seconds = 1e9, .most = MOST_PIXELS, .failed = &failed,
    };
    shardio_make_images(decoder, &work, 1);
    int same = !failed && memcmp(out, parts[2].bytes, (size_t)parts[2].size) == 0;
    free(out);
    return same;
}

/* Numbers are a shape and the step's; its arrays follow one another from n[7] on. */
static void carry_out(const int32_t *n, const Bytes *parts) {
    const uint8_t all = 1;
    Step step = {n[3], &all, parts[1].bytes, parts[1].bytes + n[7], n[4], n[5], n[6]};
    shardio_carry_out(1, parts[0].bytes, 0, n, &step, 1);
}

static int same_file(const int32_t *n, const Bytes *parts) {
    static void *recoder;
    const void *result = NULL;
    if (!recoder) recoder = shardio_recoder_new();
    int64_t size = shardio_restart(recoder, parts[0].bytes, parts[0].size, n[0], &result);
    return size == parts[2].size && memcmp(result, parts[2].bytes, (size_t)size) == 0;
}

/* Numbers are the crop (top, left, height, width), then a frame's; its planes follow one another, alike in pitch. */
static int same_frame(const int32_t *n, const Bytes *parts) {
    int64_t plane = parts[0].size / 3, pitch = plane / n[4];
    uint8_t *bytes = parts[0].bytes, *out = parts[1].bytes;
    Frame frame = {.planes = {bytes, bytes + plane, bytes + 2 * plane}, .pitches = {pitch, pitch, pitch}};
    memcpy(&frame.height, n + 4, 12 * sizeof *n);
    for (int32_t row = 0; row < n[2]; row++) frame_row(&frame, n[0] + row, n[1], n[3], out + 3 * row * n[3]);
    return memcmp(out, parts[2].bytes, (size_t)parts[2].size) == 0;
}

static int same_case(void *decoder, int32_t kind, const int32_t *n, const Bytes *parts) {
    const uint8_t *data = parts[0].bytes;
    uint8_t found = 0;
    switch (kind) {
    case IMAGE:
        return same_image(decoder, n, parts);
    case STEP:
        carry_out(n, parts);
        break;
    case PERMUTE:
        shardio_permute(parts[0].size / 8, (uint64_t *)parts[0].bytes, (uint64_t)n[0], n[1], n[2],
                        (int32_t)(parts[1].size / 8), (const uint64_t *)parts[1].bytes);
        break;
    case ORIENTATION:
        shardio_orientations(1, &data, &parts[0].size, &found);
        return found == *parts[2].bytes;
    case RESTART:
        return same_file(n, parts);
    case SHUFFLE:
        shardio_unshuffle(n[0], parts[0].size / n[0], parts[0].bytes, parts[1].bytes);
        return memcmp(parts[1].bytes, parts[2].bytes, (size_t)parts[2].size) == 0;
    case UNFILTER:
        shardio_unfilter(n[0], n[1], n[2], parts[0].bytes, parts[1].bytes);
        return memcmp(parts[1].bytes, parts[2].bytes, (size_t)parts[2].size) == 0;
    case FRAMES:
        return same_frame(n, parts);
    }
    return parts[0].size == parts[2].size && memcmp(data, parts[2].bytes, (size_t)parts[2].size) == 0;
}

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    void *decoder = shardio_decoder_new();
    int32_t kind, numbers[NUMBERS];
    int counts[KINDS] = {0}, wrong = 0;
    if (!file || !decoder) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    while (fread(&kind, sizeof kind, 1, file) == 1) {
        Bytes parts[PARTS];
        take(file, numbers, sizeof numbers);
        read_parts(file, parts);
        if (!same_case(decoder, kind, numbers, parts)) {
            printf("another result: %s, case %d\n", NAMES[kind], counts[kind]);
            wrong++;
        }
        counts[kind]++;
        for (int i = 0; i < PARTS; i++) free(parts[i].bytes);
    }
    for (int i = 0; i < KINDS; i++) printf("%d %s\n", counts[i], NAMES[i]);
    return wrong ? 1 : 0;
}
