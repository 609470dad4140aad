/* Checks JPEG files, without decoding them, for what other decoders may read differently, and finds their orientation.
 * Sources: ITU-T T.81, T.872; Exif 2.32 (CIPA DC-008); ISO 16684-1 (XMP). */
#include "image.h"

#include <stddef.h>
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

int has_many_scans(const uint8_t *scan, int64_t size) {
    const uint8_t *end = scan + size, *at = scan;
    for (int scans = 1; scans <= MOST_SCANS;) {
        at = at < end ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
        if (!at || end - at < 4 || at[1] == 0xd9) return 0;
        scans += at[1] == 0xda;
        int segment = at[1] >= 0xc0 && at[1] != 0xff && (at[1] < 0xd0 || at[1] > 0xd8);
        at += segment ? 2 + word(at + 2) : at[1] == 0xff ? 1 : 2;
    }
    return 1;
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
            return framed && !(framed[7] == 3 && is_rgb(framed, adobe)) && ends(data, next, size) &&
                   (framed[-1] != 0xc2 || !has_many_scans(data + next, size - next));
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

static int number(const uint8_t *at, int bytes, int little) {
    int64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | at[little ? bytes - 1 - i : i];
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

/* The orientation tag in the first directory of a TIFF structure; 0 without it, -1 for a form that is not usual. */
static int tiff_orientation(const uint8_t *tiff, int64_t size) {
    int little = size >= 8 && memcmp(tiff, "II*\0", 4) == 0;
    if (!little && (size < 8 || memcmp(tiff, "MM\0*", 4) != 0)) return -1;
    int64_t directory = number(tiff + 4, 4, little);
    if (directory + 2 > size) return -1;
    int count = number(tiff + directory, 2, little);
    for (int64_t entry = directory + 2; count--; entry += 12) {
        if (entry + 12 > size) return -1;
        if (number(tiff + entry, 2, little) != 0x0112) continue;
        int kind = number(tiff + entry + 2, 2, little);
        if ((kind != 3 && kind != 4) || number(tiff + entry + 4, 4, little) != 1) return -1;
        int value = number(tiff + entry + 8, kind == 3 ? 2 : 4, little);
        return value >= 1 && value <= 8 ? value : 1;
    }
    return 0;
}

/* The orientation of a JPEG, 1 to 8. 0 if `format/images.py` must find it: in files of other kinds, damaged headers,
 * Exif data in several segments or of unusual form, and XMP. */
static int orientation(const uint8_t *data, int64_t size) {
    int exif = 0, xmp = 0;
    if (size < 4 || memcmp(data, "\xff\xd8\xff", 3) != 0) return 0;
    for (int64_t at = 2;;) {
        if (at + 4 > size) return 0;
        int marker = data[at + 1];
        /* Fill bytes and bare markers, and like libjpeg, bytes that belong to no segment. */
        if (data[at] != 0xff || !marker || marker == 0xff || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {
            at++;
            continue;
        }
        int64_t length = word(data + at + 2), next = at + 2 + length;
        if (marker == 0xda) return !xmp;
        if (marker == 0xd9 || length <= 2 || next > size) return 0;
        const uint8_t *segment = data + at + 4;
        if (marker == 0xe1 && length >= 8 && memcmp(segment, "Exif\0\0", 6) == 0) {
            int found = exif ? -1 : tiff_orientation(segment + 6, length - 8);
            if (found) return found > 0 ? found : 0;
            exif = 1;
        }
        xmp |= marker == 0xe1 && length >= 31 && memcmp(segment, "http://ns.adobe.com/xap/1.0/", 29) == 0;
        at = next;
    }
}

/* Sets found[i] to `orientation` of the file of sizes[i] bytes at data[i], for each of `count` files. */
void shardio_orientations(int64_t count, const uint8_t *const *data, const int64_t *sizes, uint8_t *found) {
    for (int64_t i = 0; i < count; i++) found[i] = (uint8_t)orientation(data[i], sizes[i]);
}
