/* Reads compressed chunks of arrays, undoes their filters and cuts parts out of them, many in one call.
 *
 * The functions that decompress are those of libraries that Python has loaded. Each step here has a twin in
 * chunk_codecs.py or _zarr_codecs.py, which the caller asks where a chunk fails: it succeeds where this does not know
 * better, or names what is wrong. */
#define _GNU_SOURCE
#include "status.h"
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

int32_t shardio_open_below(int32_t folder, const char *name);
int32_t shardio_unshuffle(int64_t width, int64_t count, const uint8_t *apart, uint8_t *joined);

/* As in chunks.py. */
enum { ZLIB = 1, GZIP, ZSTD, BLOSC, LZF, LZ4_BLOCKS, LZ4, SHUFFLE, FLETCHER32, CRC32C };

typedef struct {
    int64_t kind;
    int64_t width; /* bytes of an element, of SHUFFLE; whether the checksum is at the start, of CRC32C */
    void *call[3];
} Step;

typedef struct {
    int64_t file;   /* its descriptor; -1 for the file of a name */
    int64_t offset; /* in the file */
    int64_t size;   /* there; -1 for a chunk that is in memory, at `data` */
    int64_t mask;   /* a bit for each step that is skipped */
    int64_t time;   /* when a file of a name was last written, in ns */
    uint8_t *data;  /* where the chunk goes or is; NULL if it is not needed once its parts are cut, or is nowhere yet */
    int64_t end;    /* of its parts: they begin where those of the chunk before end */
} Chunk;

typedef struct { /* of zlib, whose layout is part of its binary interface */
    const uint8_t *next_in;
    unsigned in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned out;
    unsigned long total_out;
    const char *message;
    void *state, *allocate, *release, *opaque;
    int type;
    unsigned long sum, reserved;
} Stream;

typedef int (*Uncompress)(uint8_t *, unsigned long *, const uint8_t *, unsigned long);
typedef int (*InflateInit)(Stream *, int, const char *, int);
typedef int (*Inflate)(Stream *, int);
typedef int (*InflateEnd)(Stream *);
typedef void *(*ZstdNew)(void);
typedef size_t (*ZstdFree)(void *);
typedef size_t (*ZstdDecompress)(void *, void *, size_t, const void *, size_t);
typedef int (*BloscCheck)(const void *, size_t, size_t *);
typedef int (*BloscDecompress)(const void *, void *, size_t, int);
typedef unsigned (*LzfDecompress)(const void *, unsigned, void *, unsigned);
typedef int (*Lz4Decompress)(const char *, char *, int, int);
typedef uint32_t (*Crc)(const uint8_t *, size_t);

enum { FINISH = 4, STREAM_END = 1, GZIP_ALONE = 31, HEADER = 12, SUM = 4 };
static const int64_t LARGEST = 0x7FFFFFFF;

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t little_endian(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* One or more members, with zeros between them. */
static int64_t undo_gzip(const Step *step, const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    if (size > LARGEST || room > LARGEST) return -1;
    int64_t done = 0;
    while (1) {
        Stream stream;
        memset(&stream, 0, sizeof stream);
        if (((InflateInit)step->call[0])(&stream, GZIP_ALONE, "1", sizeof stream)) return -1;
        stream.next_in = from;
        stream.in = (unsigned)size;
        stream.next_out = to + done;
        stream.out = (unsigned)(room - done);
        int status = ((Inflate)step->call[1])(&stream, FINISH);
        done = room - stream.out;
        from += size - stream.in;
        size = stream.in;
        ((InflateEnd)step->call[2])(&stream);
        if (status != STREAM_END) return -1;
        for (; size && !*from; size--) from++;
        if (!size) return done;
    }
}

static int64_t undo_blosc(const Step *step, const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    size_t claimed = 0;
    if (size < 16) return -1;
    int64_t stored = little_endian(from + 12);
    if (stored < 16 || stored > size || ((BloscCheck)step->call[0])(from, (size_t)stored, &claimed)) return -1;
    if (claimed > (size_t)room || claimed > (size_t)LARGEST) return -1;
    return ((BloscDecompress)step->call[1])(from, to, claimed, 1) == (int64_t)claimed ? (int64_t)claimed : -1;
}

static int64_t undo_lz4_blocks(const Step *step, const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    if (size < HEADER || size > LARGEST) return -1;
    uint64_t claimed = (uint64_t)big_endian(from) << 32 | big_endian(from + 4);
    int64_t block = big_endian(from + 8), at = HEADER, total = (int64_t)claimed;
    if (claimed > (uint64_t)room || block < 1 || block > LARGEST) return -1;
    for (int64_t done = 0; done < total;) {
        int64_t part = total - done < block ? total - done : block;
        if (at + 4 > size) return -1;
        int64_t stored = big_endian(from + at);
        at += 4;
        if (stored > size - at) return -1;
        if (stored == part) memcpy(to + done, from + at, (size_t)part);
        else if (((Lz4Decompress)step->call[0])((const char *)from + at, (char *)to + done, (int)stored, (int)part) != part)
            return -1;
        at += stored;
        done += part;
    }
    return total;
}

static int64_t undo_lz4(const Step *step, const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    if (size < 4 || size > LARGEST) return -1;
    int64_t claimed = little_endian(from);
    if (claimed > room || claimed > LARGEST) return -1;
    int got = ((Lz4Decompress)step->call[0])((const char *)from + 4, (char *)to, (int)size - 4, (int)claimed);
    return got == claimed ? claimed : -1;
}

static int64_t undo_shuffle(int64_t width, const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    if (size > room) return -1;
    int64_t count = size / width;
    if (shardio_unshuffle(width, count, from, to))
        for (int64_t i = 0; i < count; i++)
            for (int64_t byte = 0; byte < width; byte++) to[i * width + byte] = from[byte * count + i];
    memcpy(to + count * width, from + count * width, (size_t)(size - count * width));
    return size;
}

/* A sum modulo 65535; one that is not zero never becomes zero. */
static uint32_t folded(uint64_t sum) { return sum ? (uint32_t)((sum - 1) % 65535 + 1) : 0; }

static uint32_t fletcher32(const uint8_t *data, int64_t size) {
    uint64_t first = 0, second = 0;
    int64_t words = size / 2, i = 0;
    while (i < words) {
        int64_t end = words - i < 1 << 15 ? words : i + (1 << 15);
        for (; i < end; i++) {
            first += (uint32_t)data[2 * i] << 8 | data[2 * i + 1];
            second += first;
        }
        first = folded(first);
        second = folded(second);
    }
    if (size % 2) {
        first += (uint32_t)data[size - 1] << 8;
        second += first;
    }
    return folded(second) << 16 | folded(first);
}

/* Undoes one step; returns the size of the result, which is at `*result`: `to`, or a part of `from`. -1 if it fails. */
static int64_t undo(const Step *step, void **zstd, const uint8_t *from, int64_t size, uint8_t *to, int64_t room,
                    const uint8_t **result) {
    *result = to;
    switch (step->kind) {
    case ZLIB: {
        unsigned long got = (unsigned long)room;
        return ((Uncompress)step->call[0])(to, &got, from, (unsigned long)size) ? -1 : (int64_t)got;
    }
    case GZIP: return undo_gzip(step, from, size, to, room);
    case ZSTD: {
        if (!*zstd && !(*zstd = ((ZstdNew)step->call[1])())) return -1;
        size_t got = ((ZstdDecompress)step->call[0])(*zstd, to, (size_t)room, from, (size_t)size);
        return got > (size_t)room ? -1 : (int64_t)got; /* errors are the largest numbers */
    }
    case BLOSC: return undo_blosc(step, from, size, to, room);
    case LZF: {
        if (size > LARGEST) return -1;
        unsigned most = (unsigned)(room < LARGEST ? room : LARGEST);
        unsigned got = ((LzfDecompress)step->call[0])(from, (unsigned)size, to, most);
        return got && got <= most ? (int64_t)got : -1;
    }
    case LZ4_BLOCKS: return undo_lz4_blocks(step, from, size, to, room);
    case LZ4: return undo_lz4(step, from, size, to, room);
    case SHUFFLE:
        if (step->width > 1) return undo_shuffle(step->width, from, size, to, room);
        *result = from;
        return size;
    case FLETCHER32:
        *result = from;
        return size >= SUM && fletcher32(from, size - SUM) == little_endian(from + size - SUM) ? size - SUM : -1;
    case CRC32C: {
        if (size < SUM) return -1;
        *result = from + (step->width ? SUM : 0);
        uint32_t stored = little_endian(step->width ? from : from + size - SUM);
        return ((Crc)step->call[0])(*result, (size_t)(size - SUM)) == stored ? size - SUM : -1;
    }
    default: return -1;
    }
}

static int read_all(int file, uint8_t *to, int64_t size, int64_t offset) {
    for (int64_t done = 0; done < size;) {
        ssize_t got = pread(file, to + done, (size_t)(size - done), offset + done);
        if (got > 0) done += got;
        else if (got == 0 || errno != EINTR) return -1;
    }
    return 0;
}

/* Reads a chunk as it is stored; from below `folder`, only if the file is the one that was indexed. */
static int read_stored(const Chunk *chunk, int32_t folder, const char *name, uint8_t *to) {
    if (chunk->file >= 0) return read_all((int)chunk->file, to, chunk->size, chunk->offset);
    int32_t file = shardio_open_below(folder, name);
    if (file < 0) return -1;
    struct file_status status;
    int wrong = file_status(file, &status) || !status.regular || status.size != chunk->size ||
                status.time != chunk->time || read_all(file, to, chunk->size, 0);
    close(file);
    return wrong ? -1 : 0;
}

/* Copies a part of a chunk, of `counts` elements along each axis. */
static void cut(int64_t axes, const int64_t *counts, const int64_t *steps, const int64_t *out_steps, int64_t item,
                int swapped, const uint8_t *from, uint8_t *to) {
    int64_t step = *steps, out_step = *out_steps;
    if (axes > 1) {
        for (int64_t i = 0; i < *counts; i++, from += step, to += out_step)
            cut(axes - 1, counts + 1, steps + 1, out_steps + 1, item, swapped, from, to);
    } else if (step == item && out_step == item && !swapped) {
        memcpy(to, from, (size_t)(*counts * item));
    } else {
#define COPY(TYPE, SWAPPED)                                                                                            \
    for (int64_t i = 0; i < *counts; i++, from += step, to += out_step) {                                              \
        TYPE value;                                                                                                    \
        memcpy(&value, from, sizeof value);                                                                            \
        if (swapped) value = SWAPPED(value);                                                                           \
        memcpy(to, &value, sizeof value);                                                                              \
    }
        switch (item) {
        case 1: COPY(uint8_t, ) break;
        case 2: COPY(uint16_t, __builtin_bswap16) break;
        case 4: COPY(uint32_t, __builtin_bswap32) break;
        default: COPY(uint64_t, __builtin_bswap64) break;
        }
    }
}

/* Fills parts of `out` from `count` chunks of `bytes` each.
 *
 * `names[i]` is the file below `folder` of a chunk without a descriptor. Between steps there may be `most` bytes;
 * `scratch` and `other` have at least as many, and no chunk is longer as it is stored. An element has `item` bytes, 1,
 * 2, 4 or 8. `strides` [2, axes] are those of a chunk and of `out`. A part is [2 + axes]: where it begins in the chunk
 * and in `out`, in bytes, and its elements along each axis. Sets `failed[i]` if chunk i is nowhere yet, or cannot be
 * read or decompressed, and goes on. */
void shardio_chunks(int64_t count, const Chunk *chunks, const char *const *names, int32_t folder, int64_t step_count,
                    const Step *steps, int64_t bytes, int64_t most, uint8_t *scratch, uint8_t *other, int64_t axes,
                    const int64_t *strides, int64_t item, int32_t swapped, const int64_t *parts, uint8_t *out,
                    uint8_t *failed) {
    void *zstd = NULL;
    ZstdFree release = NULL;
    for (int64_t i = 0; i < step_count; i++)
        if (steps[i].kind == ZSTD) release = (ZstdFree)steps[i].call[2];
    for (int64_t i = 0, part = 0; i < count; part = chunks[i++].end) {
        const Chunk *chunk = chunks + i;
        const uint8_t *data = chunk->data;
        if (chunk->size >= 0) {
            int64_t left = 0, size = chunk->size;
            for (int64_t k = 0; k < step_count; k++) left += !(chunk->mask >> k & 1);
            uint8_t *held = !left && chunk->data && size == bytes ? chunk->data : scratch, *spare = other;
            if (read_stored(chunk, folder, names ? names[i] : NULL, held)) size = -1;
            data = held;
            for (int64_t k = step_count - 1; k >= 0 && size >= 0; k--) {
                if (chunk->mask >> k & 1) continue;
                uint8_t *to = --left || !chunk->data ? spare : chunk->data;
                const uint8_t *from = data;
                size = undo(steps + k, &zstd, from, size, to, left ? most : bytes, &data);
                if (data == to) { /* rather than a part of what it was */
                    spare = held;
                    held = to;
                }
            }
            if ((failed[i] = size != bytes)) continue;
            if (chunk->data && data != chunk->data) {
                memcpy(chunk->data, data, (size_t)bytes);
                data = chunk->data;
            }
        } else if ((failed[i] = !data))
            continue;
        for (; part < chunk->end; part++) {
            const int64_t *one = parts + part * (2 + axes);
            if (data + one[0] != out + one[1]) /* it may have gone to its place */
                cut(axes, one + 2, strides, strides + axes, item, swapped, data + one[0], out + one[1]);
        }
    }
    if (zstd) release(zstd);
}
