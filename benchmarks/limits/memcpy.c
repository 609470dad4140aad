/* The practical limit of loading arrays that are in the page cache: threads that copy blocks from random places of a
 * mapped file into a small ring of batch buffers that is used again and again. Nothing can deliver batches with less.
 *
 *   cc -O3 -o memcpy memcpy.c -lpthread
 *   ./memcpy FILE BLOCK_BYTES BLOCKS_PER_BATCH THREADS SECONDS
 *
 * Every page is touched once before the clock starts. Each thread fills slots of its own two batches in turn.
 * Prints one line: blocks per second, and user+system seconds per 1000 blocks.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RING = 2 };
static unsigned char *file;
static size_t block, per_batch, blocks;
static double deadline;
static volatile unsigned char sink;

typedef struct { uint64_t seed; unsigned char *ring; long done; } Worker;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static void *work(void *argument) {
    Worker *worker = argument;
    size_t slot = 0;
    while (now() < deadline)
        for (int i = 0; i < 4; i++) { /* the clock is not read for each block, which may be small */
            memcpy(worker->ring + slot * block, file + draw(&worker->seed) % blocks * block, block);
            slot = (slot + 1) % (RING * per_batch);
            worker->done++;
        }
    return NULL;
}

static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: %s FILE BLOCK_BYTES BLOCKS_PER_BATCH THREADS SECONDS\n", argv[0]); return 2; }
    int threads = atoi(argv[4]);
    block = strtoull(argv[2], NULL, 10);
    per_batch = strtoull(argv[3], NULL, 10);
    int descriptor = open(argv[1], O_RDONLY);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status)) { perror(argv[1]); return 1; }
    size_t size = (size_t)status.st_size;
    if (!block || !per_batch || size < block || threads < 1 || threads > 256) { fprintf(stderr, "nothing to copy\n"); return 2; }
    blocks = size / block;
    file = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (file == MAP_FAILED) { perror("mmap"); return 1; }
    for (size_t at = 0; at < size; at += 4096) sink = file[at];
    pthread_t ids[256];
    Worker workers[256];
    for (int i = 0; i < threads; i++) {
        unsigned char *ring = malloc(RING * per_batch * block);
        if (!ring) { perror("malloc"); return 1; }
        memset(ring, 1, RING * per_batch * block);
        workers[i] = (Worker){(uint64_t)(i + 1) * 7919, ring, 0};
    }
    double used = cpu(), start = now();
    deadline = start + atof(argv[5]);
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, &workers[i]);
    long total = 0;
    for (int i = 0; i < threads; i++) { pthread_join(ids[i], NULL); total += workers[i].done; }
    double wall = now() - start;
    printf("{\"samples_per_s\": %.1f, \"cpu_s_per_1000\": %.6f}\n", total / wall, 1000 * (cpu() - used) / total);
    return 0;
}
