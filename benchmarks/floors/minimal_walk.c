/* The least that any validation does: the checksum of each batch, and a step over each record by its length.
 *
 * Nothing is checked against anything but the checksum, so this is for sound bytes only. It sums with the processor's
 * instruction, step after step, as one writes it first; or as the kernels do, three ways at once. */
#include "batch_frame.h"
#include "crc32c.h"

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t plain_crc32c(const uint8_t *data, size_t size)
{
    uint64_t state = UINT32_MAX;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        state = __builtin_ia32_crc32di(state, word);
    }
    for (; size > 0; size--)
        state = __builtin_ia32_crc32qi((uint32_t)state, *data++);
    return ~(uint32_t)state;
}
#else
static uint32_t plain_crc32c(const uint8_t *data, size_t size)
{
    return kernel_crc32c(0, data, size);
}
#endif

void minimal_begin(void)
{
    kernel_crc32c_begin();
}

/* How many records there are; -1 where a checksum is wrong. */
int64_t minimal_walk(const uint8_t *data, size_t size, bool is_plain)
{
    int64_t count = 0;
    for (const uint8_t *end = data + size; data < end;) {
        const uint8_t *batch_end = data + LOG_OVERHEAD_BYTES + read_be32(data + BATCH_LENGTH_POSITION);
        const uint8_t *covered = data + ATTRIBUTES_POSITION;
        const size_t covered_bytes = (size_t)(batch_end - covered);
        uint32_t crc = is_plain ? plain_crc32c(covered, covered_bytes) : kernel_crc32c(0, covered, covered_bytes);
        if (crc != read_be32(data + CRC_POSITION))
            return -1;
        for (data += HEADER_BYTES; data < batch_end; count++) {
            uint64_t zigzag = 0;
            int shift = 0;
            while (*data >= 0x80) {
                zigzag |= (uint64_t)(*data++ & 0x7f) << shift;
                shift += 7;
            }
            zigzag |= (uint64_t)*data++ << shift;
            data += zigzag >> 1;
        }
    }
    return count;
}
