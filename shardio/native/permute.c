/* The permutation of `order/permutation.py`, which describes it and names its sources. */
#include "guard.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Replaces each of `count` positions, all below n, by the number at that position. `rounds` is even; `high` and `low`
 * are the widths of the two halves in bits. */
void shardio_permute(int64_t count, uint64_t *numbers, uint64_t n, int32_t high, int32_t low, int32_t rounds,
                     const uint64_t *keys) {
    const uint64_t masks[2] = {((uint64_t)1 << high) - 1, ((uint64_t)1 << low) - 1};
    for (int64_t i = 0; i < count; i++) {
        uint64_t value = numbers[i];
        do {
            uint64_t left = value >> low, right = value & masks[1];
            for (int32_t round = 0; round < rounds; round++) {
                uint64_t next = left ^ (mix(right + keys[round]) & masks[round & 1]);
                left = right, right = next;
            }
            value = left << low | right;
        } while (value >= n);
        numbers[i] = value;
    }
}

static int64_t bits_set(uint64_t word) {
    word -= word >> 1 & 0x5555555555555555ull;
    word = (word & 0x3333333333333333ull) + (word >> 2 & 0x3333333333333333ull);
    return (int64_t)((word + (word >> 4) & 0x0F0F0F0F0F0F0F0Full) * 0x0101010101010101ull >> 56);
}

/* Bits may be in a mapped file that changes meanwhile, so this goes beyond no block, whatever they are. */
static int64_t set_bits(int64_t count, int64_t *numbers, const uint8_t *bits, const int64_t *counts, int64_t blocks) {
    for (int64_t i = 0; i < count; i++) {
        int64_t low = 0, high = blocks;
        while (high - low > 1) {
            int64_t middle = low + (high - low) / 2;
            if (counts[middle] <= numbers[i]) low = middle;
            else high = middle;
        }
        int64_t rest = numbers[i] - counts[low], place = low * 512, end = place + 512, set;
        uint8_t bytes[8];
        for (;; rest -= set, place += 64) {
            if (place == end) return i;
            uint64_t word;
            memcpy(bytes, bits + place / 8, 8);
            memcpy(&word, bytes, 8);
            if (rest < (set = bits_set(word))) break;
        }
        unsigned byte;
        for (;; rest -= set, place += 8) {
            byte = bytes[place / 8 % 8];
            if (rest < (set = bits_set(byte))) break;
        }
        for (;; place++, byte <<= 1)
            if (byte & 128 && rest-- == 0) break;
        numbers[i] = place;
    }
    return count;
}

/* Replaces each of `count` numbers k by the place of the k-th set bit, counted from 0. Bits are the highest first in each
 * byte; `counts` holds how many are set before each block of 64 bytes. All k are below the number of set bits. Returns
 * `count`, or the first number whose bit is not in its block, or GONE. */
int64_t shardio_set_bits(int64_t count, int64_t *numbers, const uint8_t *bits, const int64_t *counts, int64_t blocks) {
    return GUARDED(set_bits(count, numbers, bits, counts, blocks));
}
