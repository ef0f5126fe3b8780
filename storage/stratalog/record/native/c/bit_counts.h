/* Counts bits of a bitmap, the least significant bit of a byte first. */
#ifndef STRATALOG_BIT_COUNTS_H
#define STRATALOG_BIT_COUNTS_H

#include <stdint.h>
#include <string.h>

/* The number of bits in [first, end). */
static inline uint64_t count_bits(const uint8_t *bits, uint64_t first, uint64_t end)
{
    uint64_t count = 0;
    while (first < end) {
        uint64_t shift = first & 7, left = end - first, width = 64;
        if (shift == 0 && left >= 64) {
            uint64_t word;
            memcpy(&word, bits + (first >> 3), sizeof word);
            count += (uint64_t)__builtin_popcountll(word);
        } else {
            width = left < 8 - shift ? left : 8 - shift;
            count += (uint64_t)__builtin_popcount(bits[first >> 3] >> shift & ((1u << width) - 1));
        }
        first += width;
    }
    return count;
}

#endif
