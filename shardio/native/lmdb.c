/* Lookup of many keys in memory-mapped LMDB files in one call, without LMDB's transactions.
 *
 * Source: the file format of LMDB 0.9 (lmdb/libraries/liblmdb/mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db), data
 * version 1, 64 bits, little-endian. The files are whole and nobody writes to them, but nothing in them is trusted:
 * each read first checks that its place lies within the file. */
#include "guard.h"
#include <stdint.h>
#include <string.h>

enum {
    HEADER = 16,   /* of a page: number (8), padding (2), flags (2), end of the pointers (2), start of the nodes (2) */
    NODE = 8,      /* of a node: size or page (4), flags (2), key size (2) */
    BRANCH = 1,    /* page flags */
    LEAF = 2,
    OVERFLOWS = 4, /* such a page has its run's number of pages (4) in place of the two last numbers of the header */
    BIG = 1,       /* node flag: the value is on overflow pages */
    DEEPEST = 32,
};
#define MAGIC 0xBEEFC0DEu

typedef struct {
    const uint8_t *map;
    uint64_t size, page, root;
} File;

#define READ(type, name)                             \
    static type name(const uint8_t *at) {            \
        type value;                                  \
        memcpy(&value, at, sizeof value);            \
        return value;                                \
    }
READ(uint16_t, u16)
READ(uint32_t, u32)
READ(uint64_t, u64)

/* Reads where the main tree begins from the newer of the two meta pages. Returns 0 unless both are intact. */
static int open_file(File *file, const uint8_t *map, int64_t size) {
    *file = (File){map, (uint64_t)size, 0, 0};
    uint64_t newest = 0;
    int found = 0;
    for (uint64_t place = 0; place < 2; place++) {
        uint64_t start = place * file->page;
        if (start + 168 > file->size) return 0;
        const uint8_t *meta = map + start + HEADER;
        if (u32(meta) != MAGIC || u32(meta + 4) != 1) return 0;
        const uint8_t *trees = meta + 24, *end = trees + 96;
        uint64_t transaction = u64(end + 8), page = u32(trees);
        if (page < 512 || page > 65536 || (page & (page - 1)) || (place && page != file->page)) return 0;
        file->page = page;
        if (place && transaction <= newest) continue;
        file->root = u64(trees + 48 + 40);
        newest = transaction;
        found = u16(trees + 48 + 4) == 0; /* a plain tree: no duplicates, keys in the order of their bytes */
    }
    return found;
}

static int compare(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size) {
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

/* Finds the offset and the size in bytes of the key's value. Returns 0 if the key is missing or the file is damaged. */
static int find(const File *file, const uint8_t *key, uint64_t key_size, int64_t *offset, int64_t *bytes) {
    uint64_t number = file->root, pages = file->size / file->page;
    for (int depth = 0; depth < DEEPEST; depth++) {
        if (number >= pages) return 0;
        const uint8_t *page = file->map + number * file->page;
        uint64_t flags = u16(page + 10) & 7, lower = u16(page + 12);
        if (u64(page) != number || (flags != BRANCH && flags != LEAF) || lower < HEADER || lower > file->page) return 0;
        /* Search for the first node greater than the key; the first node of a branch has no key and precedes all. */
        int64_t low = flags == BRANCH, high = (int64_t)(lower - HEADER) / 2, exact = -1;
        const uint8_t *node = NULL;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            uint64_t at = u16(page + HEADER + 2 * middle);
            if (at + NODE > file->page || at + NODE + u16(page + at + 6) > file->page) return 0;
            int order = compare(page + at + NODE, u16(page + at + 6), key, key_size);
            if (!order) exact = middle;
            if (order <= 0) low = middle + 1;
            else high = middle;
        }
        if (flags == LEAF && exact < 0) return 0;
        int64_t chosen = flags == LEAF ? exact : low - 1;
        if (chosen < 0 || HEADER + 2 * (uint64_t)chosen + 2 > lower) return 0;
        uint64_t at = u16(page + HEADER + 2 * chosen);
        if (at + NODE > file->page) return 0;
        node = page + at;
        if (flags == BRANCH) {
            number = u32(node) | (uint64_t)u16(node + 4) << 32;
            continue;
        }
        uint64_t size = u32(node), start = at + NODE + u16(node + 6), room = file->page;
        if (u16(node + 4) & BIG) {
            if (start + 8 > file->page) return 0;
            number = u64(page + start);
            if (number >= pages) return 0;
            page = file->map + number * file->page;
            uint64_t run = u32(page + 12);
            if (u64(page) != number || !(u16(page + 10) & OVERFLOWS) || run > pages - number) return 0;
            start = HEADER;
            room = run * file->page;
        } else if (u16(node + 4)) {
            return 0;
        }
        if (start + size > room) return 0;
        *offset = (int64_t)(number * file->page + start);
        *bytes = (int64_t)size;
        return 1;
    }
    return 0;
}

/* For each i, sets `places[2i]` and `places[2i + 1]` to the offset and the size of the value of key i, the `key_size`
 * bytes at `keys + i * key_size`, in the file of `sizes[i]` bytes mapped at `maps[i]`. Returns `count`, or the first i
 * whose key is not found, or GONE. */
static int64_t find_all(int64_t count, const uint8_t *const *maps, const int64_t *sizes, const uint8_t *keys,
                        int64_t key_size, int64_t *places) {
    File file = {0};
    for (int64_t i = 0; i < count; i++) {
        if (maps[i] != file.map && !open_file(&file, maps[i], sizes[i])) return i;
        if (!find(&file, keys + i * key_size, (uint64_t)key_size, places + 2 * i, places + 2 * i + 1)) return i;
    }
    return count;
}

int64_t shardio_lmdb_find(int64_t count, const uint8_t *const *maps, const int64_t *sizes, const uint8_t *keys,
                          int64_t key_size, int64_t *places) {
    return GUARDED(find_all(count, maps, sizes, keys, key_size, places));
}
