/* The least that any validation does: the checksum of each batch, and a step over each record by its length.
 *
 * Nothing is checked against anything but the checksum, so this is for sound bytes only. It sums as the kernels do. */
#include "batch_frame.h"
#include "crc32c.h"

void minimal_begin(void)
{
    kernel_crc32c_begin();
}

/* How many records there are; -1 where a checksum is wrong. */
int64_t minimal_walk(const uint8_t *data, size_t size)
{
    int64_t count = 0;
    for (const uint8_t *end = data + size; data < end;) {
        const uint8_t *batch_end = data + LOG_OVERHEAD_BYTES + read_be32(data + BATCH_LENGTH_POSITION);
        const uint8_t *covered = data + ATTRIBUTES_POSITION;
        if (kernel_crc32c(0, covered, (size_t)(batch_end - covered)) != read_be32(data + CRC_POSITION))
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
