/* Kernels that measure, prove and skip batches of any kind, without a look at their records. */
#include "batch_kernels.h"

#include "batch_frame.h"

/* The batch changes the state of a log: a producer's sequence or transaction, a marker, another leader epoch. */
static bool is_noted(const batch_frame *batch, int32_t leader_epoch)
{
    return batch->producer_id >= 0 || (batch->attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0 ||
           batch->leader_epoch != leader_epoch;
}

size_t kernel_sound_batches(const uint8_t *data, size_t size, int64_t end_offset, int64_t first_offset,
                            int32_t leader_epoch, int64_t *next_offset)
{
    batch_frame batch;
    size_t position = 0;
    *next_offset = -1;
    while (batch_at(data + position, size - position, &batch) && batch.base_offset >= first_offset &&
           batch.next_offset <= end_offset && (leader_epoch < 0 || batch.leader_epoch == leader_epoch) &&
           has_true_crc(&batch)) {
        position += batch.size;
        *next_offset = first_offset = batch.next_offset;
    }
    return position;
}

size_t kernel_skip_batches(const uint8_t *data, size_t size, int64_t offset, int64_t *next_offset,
                           int32_t *leader_epoch)
{
    batch_frame batch;
    size_t position = 0;
    while (position < size && header_at(data + position, size - position, &batch) && batch.next_offset <= offset &&
           batch.base_offset >= *next_offset && batch.leader_epoch >= *leader_epoch) {
        position += batch.size;
        *next_offset = batch.next_offset;
        *leader_epoch = batch.leader_epoch;
    }
    return position;
}

size_t kernel_walk_batches(const uint8_t *data, size_t size, int64_t next_offset, int32_t leader_epoch,
                           batch_row *rows, size_t room)
{
    batch_frame batch;
    size_t position = 0, count = 0;
    while (count < room && batch_at(data + position, size - position, &batch) && batch.base_offset >= next_offset &&
           batch.leader_epoch >= leader_epoch && has_true_crc(&batch)) {
        rows[count++] = (batch_row){
            .position = position,
            .size = batch.size,
            .base_offset = batch.base_offset,
            .last_offset = batch.next_offset - 1,
            .max_timestamp = batch.max_timestamp,
            .leader_epoch = batch.leader_epoch,
            .is_noted = is_noted(&batch, leader_epoch),
        };
        position += batch.size;
        next_offset = batch.next_offset;
        leader_epoch = batch.leader_epoch;
    }
    return count;
}

uint32_t kernel_header_crc(uint32_t crc, int64_t base_offset, int32_t leader_epoch)
{
    uint8_t fields[12];
    write_be64(fields, (uint64_t)base_offset);
    write_be32(fields + 8, (uint32_t)leader_epoch);
    return kernel_crc32c(crc, fields, sizeof fields);
}

uint32_t kernel_headers_crc(const uint8_t *data, size_t size, uint32_t crc)
{
    batch_frame batch;
    size_t position = 0;
    while (batch_at(data + position, size - position, &batch)) {
        crc = kernel_header_crc(crc, batch.base_offset, batch.leader_epoch);
        position += batch.size;
    }
    return crc;
}

/* Joining two checksums takes as long as summing so many bytes. */
enum { JOINED_BYTES = 8192 };

uint32_t kernel_batches_crc(const uint8_t *data, size_t size, uint32_t crc)
{
    batch_frame batch;
    size_t position = 0;
    while (batch_at(data + position, size - position, &batch)) {
        if (batch.size < JOINED_BYTES)
            crc = kernel_crc32c(crc, batch.start, batch.size);
        else
            crc = kernel_joined_crc(kernel_crc32c(crc, batch.start, ATTRIBUTES_POSITION), batch.crc,
                                    batch.size - ATTRIBUTES_POSITION);
        position += batch.size;
    }
    return kernel_crc32c(crc, data + position, size - position);
}
