/* Undoes the filters of a PNG's rows (RFC 2083, section 6), after zlib has decompressed them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE, SUB, UP, AVERAGE, PAETH };

/* Which of three neighbours is nearest to left + above - corner; without branches, which noise would mispredict. */
static inline int paeth(int left, int above, int corner) {
    const int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    const int nearest = to_above <= to_corner ? above : corner;
    return (to_left <= to_above) & (to_left <= to_corner) ? left : nearest;
}

/* Undoes one row of `size` bytes; `above` is the row above it, zeros for the first one. */
__attribute__((always_inline)) static inline int undo(
    int filter, int64_t size, const int apart, const uint8_t *from, const uint8_t *above, uint8_t *to
) {
    int left[3] = {0}, corner[3] = {0};
    switch (filter) {
    case NONE:
        memcpy(to, from, (size_t)size);
        return 0;
    case SUB:
        for (int64_t i = 0; i < size; i += apart)
            for (int c = 0; c < apart; c++) to[i + c] = (uint8_t)(left[c] += from[i + c]);
        return 0;
    case UP:
        for (int64_t i = 0; i < size; i++) to[i] = (uint8_t)(from[i] + above[i]);
        return 0;
    case AVERAGE:
        for (int64_t i = 0; i < size; i += apart)
            for (int c = 0; c < apart; c++)
                to[i + c] = (uint8_t)(left[c] = (from[i + c] + (left[c] + above[i + c]) / 2) & 255);
        return 0;
    case PAETH:
        for (int64_t i = 0; i < size; i += apart)
            for (int c = 0; c < apart; c++) {
                left[c] = (from[i + c] + paeth(left[c], above[i + c], corner[c])) & 255;
                corner[c] = above[i + c];
                to[i + c] = (uint8_t)left[c];
            }
        return 0;
    default:
        return -1;
    }
}

/* Makes the pixels of `height` rows, which each follow a byte that names their filter. Returns -1 if there is no such
 * filter, or no memory. */
int32_t shardio_unfilter(int64_t height, int64_t width, int64_t channels, const uint8_t *rows, uint8_t *pixels) {
    const int64_t size = width * channels;
    uint8_t *zeros = calloc(1, (size_t)size), *above = zeros;
    int failed = zeros == NULL;
    for (int64_t y = 0; y < height && !failed; y++, rows += size + 1, above = pixels, pixels += size)
        failed = channels == 3 ? undo(*rows, size, 3, rows + 1, above, pixels)
                               : undo(*rows, size, 1, rows + 1, above, pixels);
    free(zeros);
    return failed ? -1 : 0;
}
