/* Many rows in one call: copied from memory, or read from files. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { AHEAD = 8, LINE = 64 };

/* Copies `size` bytes from each address, end to end. Rows lie apart: the first lines of those to come are asked for
 * while one is copied, and the processor's own prefetcher does the rest. */
void shardio_gather(int64_t count, const uint8_t *const *addresses, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < count; i++, out += size) {
        if (i + AHEAD < count)
            for (int64_t line = 0; line < size && line < 4 * LINE; line += LINE)
                __builtin_prefetch(addresses[i + AHEAD] + line);
        memcpy(out, addresses[i], (size_t)size);
    }
}

/* Reads `sizes[i]` bytes at `offsets[i]` of file `files[i]` to `out + places[i]`, for each i. Returns `count`, or the
 * first i that failed: its file ended early, or errno says why. */
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
