/* Copying many rows from memory, or reading them from files, in one call. */
#define _GNU_SOURCE
#include "guard.h"
#include "status.h"
#include "stop.h"
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__linux__) && !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
enum { AHEAD = 8, LINE = 64, SMALL = 16 << 10, GROUP = 64 << 10 };
enum { MAPPED = 1, ASKED = 2 }; /* what is known of a group of pages, or of a row */

/* Threads share what is known, and may learn it at once. */
static int is_known(const uint8_t *seen, int what) { return __atomic_load_n(seen, __ATOMIC_RELAXED) & what; }

static void learn(uint8_t *seen, int what) {
    if (!is_known(seen, what)) __atomic_fetch_or(seen, (uint8_t)what, __ATOMIC_RELAXED);
}

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

static void copy_bytes(uint8_t *out, const uint8_t *from, size_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        copy_past_cache(out, from, size);
        return;
    }
#endif
    memcpy(out, from, size);
}

/* Maps all pages of some memory of a mapped file, and reads them from disk if necessary; returns whether it could. */
static int map_pages(const void *start, size_t size) {
#ifdef MADV_POPULATE_READ
    return !madvise((void *)start, size, MADV_POPULATE_READ);
#else
    (void)start, (void)size;
    return 0;
#endif
}

/* Copies large rows of mapped files, `size` bytes each, end to end. The first copy of a row, which `seen` records, maps
 * all its pages at once, and reads them from disk if necessary. A file shorter than `ends[i]`, where row i ends, is not
 * touched. Returns `count`, or the first row that cannot be copied in this way, or GONE. */
static int64_t copy(int64_t count, const uint8_t *const *addresses, uint8_t *const *seen, const int32_t *files,
                    const int64_t *ends, int64_t size, uint8_t *out) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < count; i++, out += size) {
        struct file_status status;
        if (file_status(files[i], &status) || status.size < ends[i]) return i;
        if (!is_known(seen[i], MAPPED)) {
            uintptr_t start = (uintptr_t)addresses[i] & ~(page - 1), end = (uintptr_t)addresses[i] + (uintptr_t)size;
            if (!map_pages((const void *)start, end - start)) return i;
            learn(seen[i], MAPPED);
        }
        copy_bytes(out, addresses[i], (size_t)size);
    }
    return count;
}

int64_t shardio_copy(int64_t count, const uint8_t *const *addresses, uint8_t *const *seen, const int32_t *files,
                     const int64_t *ends, int64_t size, uint8_t *out) {
    return GUARDED(copy(count, addresses, seen, files, ends, size, out));
}

/* Maps all pages of the groups that hold `size` bytes at `offset` of a file, unless `seen` tells that this was done.
 * Returns whether all are mapped; the file is not touched if it is shorter than that. */
static int populate(int file, const uint8_t *map, uint8_t *seen, int64_t offset, int64_t size) {
    struct file_status status;
    if (file_status(file, &status) || status.size < offset + size) return 0;
    for (int64_t group = offset / GROUP; group <= (offset + size - 1) / GROUP; group++) {
        if (is_known(seen + group, MAPPED)) continue;
        int64_t rest = status.size - group * GROUP;
        if (!map_pages(map + group * GROUP, (size_t)(rest < GROUP ? rest : GROUP))) return 0;
        learn(seen + group, MAPPED);
    }
    return 1;
}

/* Spans of files, `steps` of each row: the j-th of row i has `sizes[i]` bytes at `offsets[i] + step[j]` of its file. */
struct spans {
    int64_t count, steps;
    const int64_t *step, *file_of, *offsets, *sizes;
};
struct at {
    int64_t row, step;
};

static struct at after(const struct spans *spans, struct at at) {
    return ++at.step < spans->steps ? at : (struct at){at.row + 1, 0};
}

static int64_t offset_of(const struct spans *spans, struct at at) {
    return spans->offsets[at.row] + spans->step[at.step];
}

/* Reads spans of files, those of row i end to end from `places[i]` on. A file that is also mapped into memory, at
 * `maps[f]`, has spans of up to `most[f]` bytes copied from there: small ones without further ado, larger ones once all
 * their pages are mapped. */
static int64_t read_spans(const struct spans *spans, const int32_t *files, const uint8_t *const *maps,
                          const int64_t *most, uint8_t *const *seen, const int64_t *places, uint8_t *out) {
    const int64_t *file_of = spans->file_of, *sizes = spans->sizes;
    for (struct at at = {0, 0}, next; at.row < spans->count; at = next) {
        if (stopped()) return at.row;
        int64_t file = file_of[at.row], offset = offset_of(spans, at), size = sizes[at.row], done = 0;
        int64_t place = places[at.row] + at.step * size;
        uint8_t *to = out + place;
        for (next = after(spans, at); next.row < spans->count; next = after(spans, next)) {
            int64_t more = sizes[next.row];
            if (more <= 0) continue;
            if (file_of[next.row] != file || offset_of(spans, next) != offset + size ||
                places[next.row] + next.step * more != place + size)
                break;
            size += more;
        }
        if (size > 0 && size <= most[file]) {
            const uint8_t *from = maps[file] + offset;
            if (next.row < spans->count) {
                uintptr_t later = (uintptr_t)maps[file_of[next.row]] + (uintptr_t)offset_of(spans, next);
                for (int line = 0; line < 4; line++) __builtin_prefetch((const void *)(later + (uintptr_t)line * LINE));
            }
            if (size <= SMALL) {
                memcpy(to, from, (size_t)size);
                continue;
            }
            if (populate(files[file], maps[file], seen[file], offset, size)) {
                copy_bytes(to, from, (size_t)size);
                continue;
            }
        }
        while (done < size) {
            ssize_t got = pread(files[file], to + done, (size_t)(size - done), offset + done);
            if (got > 0) done += got;
            else if (got == 0 || errno != EINTR) return at.row;
        }
    }
    return spans->count;
}

/* Whether the page at an offset of a file is in memory, as far as that can be told without waiting. */
static int in_memory(int file, int64_t offset) {
#ifdef RWF_NOWAIT
    uint8_t byte;
    return preadv2(file, &(struct iovec){&byte, 1}, 1, offset, RWF_NOWAIT) == 1;
#else
    (void)file, (void)offset;
    return 0;
#endif
}

/* Asks the kernel to read a span of a file from disk ahead. */
static void read_later(int file, int64_t offset, int64_t size) {
#ifdef __APPLE__
    fcntl(file, F_RDADVISE, &(struct radvisory){offset, size < INT32_MAX ? (int)size : INT32_MAX});
#else
    posix_fadvise(file, offset, size, POSIX_FADV_WILLNEED);
#endif
}

/* Asks the kernel to read spans of files from disk ahead, all at once, with what lies between neighbours that are
 * SMALL bytes apart at most; those whose ends are in memory are taken to be there already. Where `seen[f]` is no null
 * pointer, a group of pages is asked for once. */
int64_t shardio_read_ahead(int64_t count, int64_t steps, const int64_t *step, const int64_t *file_of,
                           const int32_t *files, uint8_t *const *seen, const int64_t *offsets, const int64_t *sizes) {
    const struct spans spans = {count, steps, step, file_of, offsets, sizes};
    for (struct at at = {0, 0}, next; at.row < count; at = next) {
        int64_t file = file_of[at.row], start = offset_of(&spans, at), end = start + sizes[at.row];
        for (next = after(&spans, at); next.row < count; next = after(&spans, next)) {
            int64_t later = offset_of(&spans, next);
            if (file_of[next.row] != file || later < end || later - end > SMALL) break;
            end = later + sizes[next.row];
        }
        if (end <= start) continue;
        int known = seen[file] != NULL;
        for (int64_t group = start / GROUP; seen[file] && group <= (end - 1) / GROUP; group++) {
            known &= is_known(seen[file] + group, MAPPED | ASKED) != 0;
            learn(seen[file] + group, ASKED);
        }
        if (known || (in_memory(files[file], start) && in_memory(files[file], end - 1))) continue;
        read_later(files[file], start, end - start);
    }
    return count;
}

/* Reads spans of files into `out`, see `struct spans` and `read_spans`; those that are neighbours there and here in one
 * go. Returns `count`, or the first row that fails: its file ends early, or errno says why, or the work is over; or GONE.
 */
int64_t shardio_read(int64_t count, int64_t steps, const int64_t *step, const int64_t *file_of, const int32_t *files,
                     const uint8_t *const *maps, const int64_t *most, uint8_t *const *seen, const int64_t *offsets,
                     const int64_t *sizes, const int64_t *places, uint8_t *out) {
    const struct spans spans = {count, steps, step, file_of, offsets, sizes};
    return GUARDED(read_spans(&spans, files, maps, most, seen, places, out));
}
