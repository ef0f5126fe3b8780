/* Translates entries of key streams to the records that stay: their ordinals in the output. */
#include "bit_counts.h"
#include "key_column.h"
#include "kernels.h"
#include "record_frame.h"

enum { RANK_SHIFT = 9, BLOCK_HEADER_BYTES = 16, BLOCK_BYTES_POSITION = 8, ALIGNMENT = 8 };

static size_t aligned(size_t size)
{
    return (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

kernel_status kernel_translate(const key_block *block, const ranked_survivors *kept, key_columns *columns, size_t *taken)
{
    const uint64_t bits_count = (uint64_t)kept->survivors_bytes * 8;
    size_t index = 0, count = columns->count;
    *taken = 0;
    for (; index < block->count; index++) {
        uint64_t high = load64(block->hash_high, index), low = load64(block->hash_low, index);
        uint32_t ordinal;
        if (high > block->limit_high || (high == block->limit_high && low > block->limit_low))
            break;
        ordinal = load32(block->ordinal, index);
        if (kept->survivors != NULL) {
            uint32_t before;
            if (UNLIKELY(ordinal >= bits_count || ordinal >> RANK_SHIFT >= kept->ranks_count))
                return KERNEL_BAD_ORDINAL;
            if (!(kept->survivors[ordinal >> 3] >> (ordinal & 7) & 1))
                continue;
            before = load32(kept->ranks, ordinal >> RANK_SHIFT);
            ordinal = before + (uint32_t)count_bits(kept->survivors, ordinal >> RANK_SHIFT << RANK_SHIFT, ordinal);
        }
        if (UNLIKELY(kept->first_rank > UINT32_MAX - (uint64_t)ordinal))
            return KERNEL_BAD_ORDINAL;
        columns->hash_high[count] = high;
        columns->hash_low[count] = low;
        columns->ordinal[count] = (uint32_t)kept->first_rank + ordinal;
        columns->tombstone[count] = block->tombstone[index];
        if (block->version != NULL)
            columns->version[count] = (int64_t)load64(block->version, index);
        count++;
    }
    *taken = index;
    columns->count = count;
    return KERNEL_OK;
}

kernel_status kernel_translate_stream(const uint8_t *data, size_t size, const ranked_survivors *kept, key_columns *columns)
{
    size_t position = 0;
    while (position < size) {
        key_block block = {.limit_high = UINT64_MAX, .limit_low = UINT64_MAX};
        const uint8_t *begin = data + position;
        kernel_status status;
        size_t taken;
        if (size - position < BLOCK_HEADER_BYTES)
            return KERNEL_BAD_FRAME;
        block.count = load32(begin, 0);
        if (load32(begin, 1) != 0 || block.count > (size - position) / 21 ||
            BLOCK_HEADER_BYTES + 16 * block.count + aligned(4 * block.count) + aligned(block.count) >
                size - position)
            return KERNEL_BAD_FRAME;
        block.hash_high = begin + BLOCK_HEADER_BYTES;
        block.hash_low = block.hash_high + 8 * block.count;
        block.ordinal = block.hash_low + 8 * block.count;
        block.tombstone = block.ordinal + aligned(4 * block.count);
        status = kernel_translate(&block, kept, columns, &taken);
        if (status != KERNEL_OK)
            return status;
        position += BLOCK_HEADER_BYTES + 16 * block.count + aligned(4 * block.count) + aligned(block.count);
    }
    return KERNEL_OK;
}
