/* The permutation of `order/permutation.py`, which describes it and names its sources. */
#include <stddef.h>
#include <stdint.h>

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
