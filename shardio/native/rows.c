/* Copying many rows from memory, or reading them from files, in one call. */
#define _GNU_SOURCE
#include "guard.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
enum { AHEAD = 8, LINE = 64 };

/* Copies `size` bytes from each address, end to end. Rows lie apart, so this prefetches the first cache lines of later
 * rows while it copies one; the processor's own prefetcher does the rest. */
static int64_t gather(int64_t count, const uint8_t *const *addresses, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < count; i++, out += size) {
        if (i + AHEAD < count)
            for (int64_t line = 0; line < size && line < 4 * LINE; line += LINE)
                __builtin_prefetch(addresses[i + AHEAD] + line);
        memcpy(out, addresses[i], (size_t)size);
    }
    return count;
}

/* Returns `count`, or GONE. */
int64_t shardio_gather(int64_t count, const uint8_t *const *addresses, int64_t size, uint8_t *out) {
    return GUARDED(gather(count, addresses, size, out));
}

#if defined(__x86_64__)
/* Copies with stores that bypass the cache: a store to an uncached line would first read it, and the data exceeds the
 * cache. */
__attribute__((target("avx2"))) static void copy_past_cache(uint8_t *out, const uint8_t *from, size_t size) {
    size_t head = -(uintptr_t)out % 32;
    if (head > size) head = size;
    memcpy(out, from, head);
    size_t i = head;
    for (; i + 128 <= size; i += 128)
        for (size_t part = 0; part < 128; part += 32)
            _mm256_stream_si256((__m256i *)(out + i + part), _mm256_loadu_si256((const __m256i *)(from + i + part)));
    memcpy(out + i, from + i, size - i);
    _mm_sfence();
}
#endif

/* Copies large rows of mapped files, `size` bytes each, end to end. The first copy of a row, which `seen` records, maps
 * all its pages at once, and reads them from disk if necessary. A file shorter than `ends[i]`, where row i ends, is not
 * touched. Returns `count`, or the first row that cannot be copied in this way, or GONE. */
static int64_t copy(int64_t count, const uint8_t *const *addresses, uint8_t *const *seen, const int32_t *files,
                    const int64_t *ends, int64_t size, uint8_t *out) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < count; i++, out += size) {
        struct statx status;  // not fstat, which is new in glibc 2.33: a wheel that uses it runs on no older system
        if (statx(files[i], "", AT_EMPTY_PATH, STATX_SIZE, &status) || (int64_t)status.stx_size < ends[i]) return i;
        if (!*seen[i]) {
            uintptr_t start = (uintptr_t)addresses[i] & ~(page - 1), end = (uintptr_t)addresses[i] + (uintptr_t)size;
            if (madvise((void *)start, end - start, MADV_POPULATE_READ)) return i;
            *seen[i] = 1;
        }
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) copy_past_cache(out, addresses[i], (size_t)size);
        else
#endif
            memcpy(out, addresses[i], (size_t)size);
    }
    return count;
}

int64_t shardio_copy(int64_t count, const uint8_t *const *addresses, uint8_t *const *seen, const int32_t *files,
                     const int64_t *ends, int64_t size, uint8_t *out) {
    return GUARDED(copy(count, addresses, seen, files, ends, size, out));
}

/* Reads `sizes[i]` bytes at `offsets[i]` of file `files[i]` into `out + places[i]`, for each i. Returns `count`, or the
 * first i that fails: its file ends early, or errno says why. */
int64_t shardio_read(int64_t count, const int32_t *files, const int64_t *offsets, const int64_t *sizes,
                     const int64_t *places, uint8_t *out) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t done = 0; done < sizes[i];) {
            ssize_t got = pread(files[i], out + places[i] + done, (size_t)(sizes[i] - done), offsets[i] + done);
            if (got > 0) done += got;
            else if (got == 0 || errno != EINTR) return i;
        }
    }
    return count;
}
