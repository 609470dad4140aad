/* The practical limit of JPEG decoding on this machine: libjpeg-turbo, threads, only the crop's rows and columns, of files
 * with restart markers only the segments that cover it.
 *
 *   cc -O3 -o jpeg_crop jpeg_crop.c -ljpeg -lpthread -lm
 *   ./jpeg_crop LIST THREADS SECONDS PIXELS CROP
 *
 *   LIST: a text file, one JPEG path a line; all are read into memory first
 *   PIXELS: exact, with interpolated chroma and a column more on each side, which it needs; or fast, with repeated chroma,
 *           and a decoder that shrinks what is at least twice as large as the target of 224 x 224 in both directions
 *   CROP: random, as torchvision's RandomResizedCrop takes it (area 0.08 to 1, ratio 3/4 to 4/3); center, of Resize(256)
 *         and CenterCrop(224); or whole
 *
 * No resize. Prints one line: images per second, and user+system seconds per 1000 images.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <jpeglib.h>
#include "../../shardio/native/segments.c"

typedef struct { unsigned char *data; size_t size; } Blob;
static Blob *blobs;
static int blob_count;
static double deadline;
static int fast;
static char crop;
enum { TARGET = 224, SHORTER = 256 };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static double uniform(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

static void choose_crop(uint64_t *s, int w, int h, int *x, int *y, int *cw, int *ch) {
    for (int attempt = 0; attempt < 10; attempt++) {
        double area = (double)w * h * (0.08 + 0.92 * uniform(s));
        double ratio = exp(log(0.75) + (log(4.0 / 3) - log(0.75)) * uniform(s));
        *cw = (int)lround(sqrt(area * ratio)); *ch = (int)lround(sqrt(area / ratio));
        if (*cw > 0 && *cw <= w && *ch > 0 && *ch <= h) {
            *x = (int)(uniform(s) * (w - *cw + 1)); *y = (int)(uniform(s) * (h - *ch + 1));
            return;
        }
    }
    *x = *y = 0; *cw = w; *ch = h;
}

static void *work(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument * 7919 + 1;
    long done = 0;
    size_t capacity = 1 << 22;
    unsigned char *pixels = malloc(capacity);
    Part part = {0};
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr error;
    info.err = jpeg_std_error(&error);
    jpeg_create_decompress(&info);
    while (now() < deadline) {
        Blob *blob = &blobs[(int)(uniform(&seed) * blob_count)];
        jpeg_mem_src(&info, blob->data, blob->size);
        jpeg_read_header(&info, TRUE);
        int x = 0, y = 0, width = (int)info.image_width, height = (int)info.image_height, target = TARGET;
        if (crop == 'r') choose_crop(&seed, width, height, &x, &y, &width, &height);
        if (crop == 'c') {
            int shorter = width < height ? width : height, side = shorter * TARGET / SHORTER;
            x = (width - side) / 2; y = (height - side) / 2;
            width = height = side;
        }
        int shrink = 1;
        while (fast && shrink < 8 && width >= 2 * shrink * target && height >= 2 * shrink * target) shrink *= 2;
        const int32_t image[2] = {(int32_t)info.image_height, (int32_t)info.image_width}, margin = 2 * shrink;
        const Region wanted = {y > margin ? y - margin : 0, x > margin ? x - margin : 0,
                               y + height + margin < image[0] ? y + height + margin : image[0],
                               x + width + margin < image[1] ? x + width + margin : image[1]};
        if (crop != 'w' && part_take(&part, blob->data, (int64_t)blob->size, image, wanted)) {
            jpeg_abort_decompress(&info);
            jpeg_mem_src(&info, (unsigned char *)part.data, (unsigned long)part.size);
            jpeg_read_header(&info, TRUE);
            x -= part.left;
            y -= part.top;
        }
        info.do_fancy_upsampling = !fast;
        info.out_color_space = JCS_RGB;
        info.scale_num = 1;
        info.scale_denom = (unsigned)shrink;
        jpeg_start_decompress(&info);
        int right = (x + width + shrink - 1) / shrink, bottom = (y + height + shrink - 1) / shrink;
        x /= shrink; y /= shrink;
        height = bottom - y;
        if (crop != 'w') {
            JDIMENSION left = (JDIMENSION)(x && !fast ? x - 1 : x), wide;
            int end = fast || right == (int)info.output_width ? right : right + 1;
            wide = (JDIMENSION)end - left;
            jpeg_crop_scanline(&info, &left, &wide);
            if (y) jpeg_skip_scanlines(&info, (JDIMENSION)y);
        }
        size_t stride = (size_t)info.output_width * 3;
        if (stride * (size_t)height > capacity) { capacity = stride * (size_t)height; pixels = realloc(pixels, capacity); }
        for (int row = 0; row < height;) {
            JSAMPROW rows[8];
            int ask = height - row < 8 ? height - row : 8;
            for (int i = 0; i < ask; i++) rows[i] = pixels + stride * (size_t)(row + i);
            row += (int)jpeg_read_scanlines(&info, rows, (JDIMENSION)ask);
        }
        jpeg_abort_decompress(&info);
        done++;
    }
    jpeg_destroy_decompress(&info);
    free(pixels);
    free(part.memory.memory);
    free(part.starts.memory);
    return (void *)done;
}

int main(int argc, char **argv) {
    if (argc < 6) { fprintf(stderr, "usage: %s LIST THREADS SECONDS exact|fast random|center|whole\n", argv[0]); return 2; }
    FILE *list = fopen(argv[1], "r");
    if (!list) { perror(argv[1]); return 1; }
    char path[4096];
    int room = 0;
    while (fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        FILE *f = fopen(path, "rb");
        if (!f) { perror(path); return 1; }
        if (blob_count == room) blobs = realloc(blobs, sizeof *blobs * (size_t)(room = room ? room * 2 : 1024));
        fseek(f, 0, SEEK_END);
        Blob *b = &blobs[blob_count++];
        b->size = (size_t)ftell(f);
        b->data = malloc(b->size);
        rewind(f);
        if (fread(b->data, 1, b->size, f) != b->size) { perror(path); return 1; }
        fclose(f);
    }
    if (!blob_count) { fprintf(stderr, "%s names no file\n", argv[1]); return 1; }
    int threads = atoi(argv[2]);
    fast = argv[4][0] == 'f';
    crop = argv[5][0];
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double start = now();
    deadline = start + atof(argv[3]);
    pthread_t ids[256];
    for (intptr_t i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, (void *)(i + 1));
    long total = 0;
    for (int i = 0; i < threads; i++) { void *done; pthread_join(ids[i], &done); total += (long)done; }
    double wall = now() - start;
    getrusage(RUSAGE_SELF, &after);
    double cpu = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) + (after.ru_stime.tv_sec - before.ru_stime.tv_sec)
               + 1e-6 * ((after.ru_utime.tv_usec - before.ru_utime.tv_usec) + (after.ru_stime.tv_usec - before.ru_stime.tv_usec));
    printf("{\"images_per_s\": %.1f, \"cpu_s_per_1000\": %.4f}\n", total / wall, 1000 * cpu / total);
    return 0;
}
