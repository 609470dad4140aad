/* Checks JPEG files, without decoding them, for what other decoders may read differently. Source: ITU-T T.81, T.872. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* Whether an end marker follows the scan that begins at `at`. Within a scan, 0 or a restart marker follows 0xff, so
 * this is the real end. */
static int ends(const uint8_t *data, int64_t at, int64_t size) {
    for (int64_t i = size - 2; i >= at; i--)
        if (data[i] == 0xff && data[i + 1] == 0xd9)
            return 1;
    return 0;
}

/* Whether Adobe's marker says that there is no colour transform, or the components are called R, G and B: not YCbCr. */
static int is_rgb(const uint8_t *frame, int adobe) {
    return adobe == 0 || (frame[8] == 'R' && frame[11] == 'G' && frame[14] == 'B');
}

/* Whether this is a whole, Huffman-coded, 8-bit grey or YCbCr JPEG of the given height and width. */
static int plain(const uint8_t *data, int64_t size, int height, int width) {
    const uint8_t *framed = NULL;
    int adobe = -1;
    if (size < 4 || memcmp(data, "\xff\xd8\xff", 3) != 0)
        return 0;
    for (int64_t at = 2; at + 4 <= size;) {
        if (data[at] != 0xff)
            return 0;
        int marker = data[at + 1];
        if (marker == 0xff || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {
            at += marker == 0xff ? 1 : 2;
            continue;
        }
        int64_t length = word(data + at + 2), next = at + 2 + length;
        const uint8_t *frame = data + at + 2;
        if (marker == 0xd9 || length < 2 || next > size)
            return 0;
        if (marker == 0xee && length >= 14 && memcmp(frame + 2, "Adobe", 5) == 0)
            adobe = frame[13];
        if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xcc) {
            if (framed || marker > 0xc2 || length < 11 || frame[2] != 8)
                return 0;
            int components = frame[7];
            if (word(frame + 3) != height || word(frame + 5) != width || (components != 1 && components != 3) ||
                length != 8 + 3 * components)
                return 0;
            framed = frame;
        }
        if (marker == 0xda)
            return framed && !(framed[7] == 3 && is_rgb(framed, adobe)) && ends(data, next, size);
        at = next;
    }
    return 0;
}

/* Sets found[i] to `plain` of the file of sizes[i] bytes at data[i], for each of `count` files. `images` holds each
 * one's height and width. */
void shardio_plain_jpegs(int64_t count, const uint8_t *const *data, const int64_t *sizes, const int32_t *images,
                         uint8_t *found) {
    for (int64_t i = 0; i < count; i++)
        found[i] = (uint8_t)plain(data[i], sizes[i], images[2 * i], images[2 * i + 1]);
}
