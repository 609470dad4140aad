/* The limit of compressed arrays on this machine: threads that decompress the chunks which random samples touch.
 *
 *   cc -O3 -shared -fPIC -o decompress decompress.c -lpthread
 *
 * benchmarks/patches.py loads it, and hands it the functions of the libraries that decompress. The chunks are in memory,
 * none is kept, and nothing is copied out of them: each thread decompresses into the same place again and again, and
 * undoes the byte shuffle of HDF5 where there is one.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef int (*Inflate)(unsigned char *to, unsigned long *size, const unsigned char *from, unsigned long bytes); /* zlib */
typedef size_t (*Decompress)(void *context, void *to, size_t size, const void *from, size_t bytes);            /* zstd */

typedef struct {
    Inflate inflate;       /* of two functions one */
    Decompress decompress;
    void *context;         /* of zstd, for each thread its own */
    const unsigned char *data;
    const int64_t *spans;  /* [spans, 2]: where a chunk begins, and its bytes */
    const int64_t *ends;   /* [samples]: where a sample's spans end */
    int64_t samples, size; /* size: bytes of a chunk, decompressed */
    int shuffled;          /* whether bytes of 4-byte elements are apart */
    double deadline;
    uint64_t state;
    int64_t done;          /* samples; -1 after an error */
} Job;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static void unshuffle(const unsigned char *from, uint32_t *to, int64_t count) {
    const unsigned char *a = from, *b = a + count, *c = b + count, *d = c + count;
    for (int64_t i = 0; i < count; i++)
        to[i] = a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
}

static void *work(void *argument) {
    Job *job = argument;
    unsigned char *buffer = malloc(job->size), *values = malloc(job->size);
    while (now() < job->deadline && job->done >= 0) {
        uint64_t z = (job->state += 0x9E3779B97F4A7C15ull); /* splitmix64 */
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        int64_t sample = (z ^ (z >> 31)) % job->samples;
        job->done++;
        for (int64_t i = sample ? job->ends[sample - 1] : 0; i < job->ends[sample]; i++) {
            const unsigned char *from = job->data + job->spans[2 * i];
            unsigned long size = job->size, bytes = job->spans[2 * i + 1];
            if (job->inflate ? job->inflate(buffer, &size, from, bytes) != 0 :
                (size = job->decompress(job->context, buffer, size, from, bytes)) != (unsigned long)job->size)
                job->done = -1;
            if (job->shuffled)
                unshuffle(buffer, (uint32_t *)values, job->size / 4);
            if (job->done < 0)
                break;
        }
    }
    free(buffer);
    free(values);
    return NULL;
}

/* Samples per second of all threads, or -1 if a chunk could not be decompressed. */
double decompress(Inflate inflate, Decompress with, void **contexts, const unsigned char *data, const int64_t *spans,
                  const int64_t *ends, int64_t samples, int64_t size, int shuffled, int threads, double seconds) {
    Job jobs[64];
    pthread_t started[64];
    if (threads > 64)
        return -1;
    double begun = now();
    for (int i = 0; i < threads; i++) {
        jobs[i] = (Job){inflate, with, contexts ? contexts[i] : NULL, data, spans, ends, samples, size, shuffled,
                        begun + seconds, 7919u * (uint64_t)i + 1, 0};
        pthread_create(&started[i], NULL, work, &jobs[i]);
    }
    int64_t done = 0, failed = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
        failed += jobs[i].done < 0;
        done += jobs[i].done;
    }
    return failed ? -1 : done / (now() - begun);
}
