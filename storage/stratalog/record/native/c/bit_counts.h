/* Counts bits of a bitmap, the least significant bit of a byte first. */
#ifndef STRATALOG_BIT_COUNTS_H
#define STRATALOG_BIT_COUNTS_H

#include <stdint.h>
#include <string.h>

/* Without the processor's instruction, which not every processor has: the compiler would call a function. */
static inline uint64_t ones_in(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    return ((word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f)) * UINT64_C(0x0101010101010101) >> 56;
}

/* The number of bits in [first, end). */
static inline uint64_t count_bits(const uint8_t *bits, uint64_t first, uint64_t end)
{
    uint64_t count = 0, word;
    bits += first >> 3;
    end -= first & ~UINT64_C(7);
    first &= 7;
    if (first >= end)
        return 0;
    /* The bits before the first one of its byte are counted, too. */
    count -= ones_in(bits[0] & ((1u << first) - 1));
    for (; end >= 64; end -= 64, bits += sizeof word) {
        memcpy(&word, bits, sizeof word);
        count += ones_in(word);
    }
    if (end > 0) {
        word = 0;
        memcpy(&word, bits, (end + 7) >> 3);
        count += ones_in(word & ((UINT64_C(1) << end) - 1));
    }
    return count;
}

#endif
