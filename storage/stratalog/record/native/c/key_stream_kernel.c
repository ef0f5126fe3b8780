/* Proves whole key streams block by block, merges and encodes them. key_block.py has the format of a block. */
#include "crc32c.h"
#include "kernels.h"
#include "record_frame.h"

enum {
    FLAGS_POSITION = 4,
    BLOCK_BYTES_POSITION = 8,
    BLOCK_CRC_POSITION = 12,
    BLOCK_HEADER_BYTES = 16,
    MAX_BLOCK_ENTRIES = 4096,
    ALIGNMENT = 8,
    ENTRY_BYTES = 8 + 8 + 4 + 1,
};

static uint32_t load32(const uint8_t *field)
{
    uint32_t number;
    memcpy(&number, field, sizeof number);
    return number;
}

static size_t aligned(size_t size)
{
    return (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

static bool is_zero(const uint8_t *begin, const uint8_t *end)
{
    uint8_t bits = 0;
    while (begin < end)
        bits |= *begin++;
    return bits == 0;
}

/* Returns whether the hash at `later` is above that at `earlier`. */
static bool ascends(const merge_window *earlier, const merge_window *later)
{
    uint64_t high[2], low[2];
    memcpy(&high[0], earlier->hash_high + 8 * (earlier->count - 1), 8);
    memcpy(&low[0], earlier->hash_low + 8 * (earlier->count - 1), 8);
    memcpy(&high[1], later->hash_high, 8);
    memcpy(&low[1], later->hash_low, 8);
    return high[1] > high[0] || (high[1] == high[0] && low[1] > low[0]);
}

size_t kernel_keys_room(size_t count)
{
    return count * ENTRY_BYTES + (count / MAX_BLOCK_ENTRIES + 1) * (BLOCK_HEADER_BYTES + 2 * ALIGNMENT);
}

static uint8_t *put_column(uint8_t *target, const void *column, size_t size)
{
    memcpy(target, column, size);
    memset(target + size, 0, aligned(size) - size);
    return target + aligned(size);
}

static void store32(uint8_t *field, size_t number)
{
    const uint32_t value = (uint32_t)number;
    memcpy(field, &value, sizeof value);
}

size_t kernel_encode_stream(const key_columns *entries, uint8_t *target)
{
    uint8_t *block = target;
    for (size_t start = 0; start < entries->count; start += MAX_BLOCK_ENTRIES) {
        const size_t left = entries->count - start, count = left < MAX_BLOCK_ENTRIES ? left : MAX_BLOCK_ENTRIES;
        uint8_t *end = put_column(block + BLOCK_HEADER_BYTES, entries->hash_high + start, 8 * count);
        end = put_column(end, entries->hash_low + start, 8 * count);
        end = put_column(end, entries->ordinal + start, 4 * count);
        end = put_column(end, entries->tombstone + start, count);
        store32(block, count);
        store32(block + FLAGS_POSITION, 0);
        store32(block + BLOCK_BYTES_POSITION, (size_t)(end - block));
        store32(block + BLOCK_CRC_POSITION,
                kernel_crc32c(kernel_crc32c(0, block, BLOCK_CRC_POSITION), block + BLOCK_HEADER_BYTES,
                              (size_t)(end - block) - BLOCK_HEADER_BYTES));
        block = end;
    }
    return (size_t)(block - target);
}

size_t kernel_count_blocks(const uint8_t *data, size_t size)
{
    size_t count = 0;
    while (size >= BLOCK_HEADER_BYTES) {
        size_t block_bytes = load32(data + BLOCK_BYTES_POSITION);
        if (block_bytes < BLOCK_HEADER_BYTES || block_bytes > size)
            break;
        data += block_bytes;
        size -= block_bytes;
        count++;
    }
    return count;
}

/* Proves the block at the beginning of the bytes and opens a window on it; returns its size, 0 if it is not sound. */
static size_t open_block(const uint8_t *data, size_t size, const key_stream *stream, merge_window *window)
{
    size_t count, block_bytes;
    const uint8_t *ordinal_end, *tombstone, *tombstone_end;
    if (size < BLOCK_HEADER_BYTES)
        return 0;
    count = load32(data);
    if (count == 0 || count > MAX_BLOCK_ENTRIES || load32(data + FLAGS_POSITION) != 0)
        return 0;
    block_bytes = BLOCK_HEADER_BYTES + 16 * count + aligned(4 * count) + aligned(count);
    if (block_bytes != load32(data + BLOCK_BYTES_POSITION) || block_bytes > size)
        return 0;
    *window = (merge_window){
        .hash_high = data + BLOCK_HEADER_BYTES,
        .hash_low = data + BLOCK_HEADER_BYTES + 8 * count,
        .ordinal = data + BLOCK_HEADER_BYTES + 16 * count,
        .count = count,
        .survivors = stream->survivors,
        .survivors_bytes = stream->survivors_bytes,
    };
    ordinal_end = window->ordinal + 4 * count;
    tombstone = window->ordinal + aligned(4 * count);
    tombstone_end = tombstone + count;
    if (!is_zero(ordinal_end, tombstone) || !is_zero(tombstone_end, data + block_bytes))
        return 0;
    if (kernel_crc32c(kernel_crc32c(0, data, BLOCK_CRC_POSITION), data + BLOCK_HEADER_BYTES,
                      block_bytes - BLOCK_HEADER_BYTES) != load32(data + BLOCK_CRC_POSITION))
        return 0;
    if (kernel_check_keys(window->hash_high, window->hash_low, window->ordinal, tombstone, count,
                          stream->record_count) != KERNEL_OK)
        return 0;
    return block_bytes;
}

kernel_status kernel_merge_streams(const key_stream *streams, size_t streams_count, merge_window *windows, size_t room)
{
    size_t windows_count = 0;
    for (size_t index = 0; index < streams_count; index++) {
        const key_stream *stream = &streams[index];
        const size_t first_window = windows_count;
        uint64_t entry_count = 0;
        for (size_t position = 0; position < stream->size;) {
            merge_window *window = &windows[windows_count];
            size_t block_bytes;
            if (windows_count == room)
                return KERNEL_BAD_FRAME;
            block_bytes = open_block(stream->data + position, stream->size - position, stream, window);
            if (block_bytes == 0 || (windows_count > first_window && !ascends(window - 1, window)))
                return KERNEL_BAD_FRAME;
            entry_count += window->count;
            position += block_bytes;
            windows_count++;
        }
        if (entry_count != stream->entry_count || kernel_crc32c(0, stream->data, stream->size) != stream->crc)
            return KERNEL_BAD_FRAME;
    }
    return kernel_merge(windows, windows_count, UINT64_MAX, UINT64_MAX);
}
