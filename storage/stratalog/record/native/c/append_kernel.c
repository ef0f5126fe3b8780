/* Accept and stamp: the kernels for the batches that clients append. */
#include "append_kernel.h"

/* Only the log itself sets the last three; a batch of a transaction is left to Python. */
enum { UNUSUAL_BITS = CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT };

enum { NO_PRODUCER_ID = -1, NO_TIMESTAMP = -1, BASE_SEQUENCE_POSITION = PRODUCER_EPOCH_POSITION + 2 };

static bool may_produce(const batch_frame *batch)
{
    int16_t producer_epoch = (int16_t)read_be16(batch->start + PRODUCER_EPOCH_POSITION);
    int32_t base_sequence = (int32_t)read_be32(batch->start + BASE_SEQUENCE_POSITION);
    return batch->producer_id == NO_PRODUCER_ID ||
           (batch->producer_id >= 0 && producer_epoch >= 0 && base_sequence >= 0);
}

static bool has_right_times(const batch_frame *batch, const records_summary *summary, const append_limits *limits)
{
    int64_t earliest, latest;
    if (__builtin_add_overflow(batch->base_timestamp, summary->min_timestamp_delta, &earliest) ||
        __builtin_add_overflow(batch->base_timestamp, summary->max_timestamp_delta, &latest) ||
        latest != batch->max_timestamp)
        return false;
    return (earliest == NO_TIMESTAMP && latest == NO_TIMESTAMP) ||
           (earliest >= limits->earliest_ms && latest <= limits->latest_ms);
}

static bool accept_batch(const batch_frame *batch, const append_limits *limits)
{
    records_summary summary;
    return (batch->attributes & UNUSUAL_BITS) == 0 && batch->size <= limits->max_batch_bytes && may_produce(batch) &&
           batch->records_count == batch->last_offset_delta + INT64_C(1) && has_true_crc(batch) &&
           kernel_scan(records_of(batch), records_bytes(batch), batch->records_count, batch->last_offset_delta,
                       &summary) == KERNEL_OK &&
           (!limits->must_have_keys || summary.null_key_count == 0) && has_right_times(batch, &summary, limits);
}

bool kernel_accept_append(const uint8_t *data, size_t size, const append_limits *limits, accepted_request *accepted)
{
    batch_frame batch;
    size_t position = 0;
    *accepted = (accepted_request){.max_timestamp = INT64_MIN};
    while (position < size) {
        if (!batch_at(data + position, size - position, &batch) || !accept_batch(&batch, limits))
            return false;
        accepted->has_producer |= batch.producer_id != NO_PRODUCER_ID;
        accepted->offset_count += batch.records_count;
        accepted->batch_count++;
        if (batch.max_timestamp > accepted->max_timestamp)
            accepted->max_timestamp = batch.max_timestamp;
        position += batch.size;
    }
    return accepted->batch_count == 1 || (accepted->batch_count > 1 && !accepted->has_producer);
}

void kernel_stamp(uint8_t *header, int64_t base_offset, int32_t leader_epoch)
{
    write_be64(header, (uint64_t)base_offset);
    write_be32(header + LEADER_EPOCH_POSITION, (uint32_t)leader_epoch);
}
