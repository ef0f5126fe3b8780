/* Compacts a small run of plain slices: copies the records that stay, and makes index, statistics and key stream. */
#include "compact_kernel.h"

#include "bit_counts.h"

enum { RANK_BITS = 512, RANK_BYTES = RANK_BITS / 8, NO_TIMESTAMP = -1 };

/* Copies the records of a slice that stay behind those of the slices before it. */
static bool keep_survivors(compacted_slice *slice, uint8_t *target, compact_result *result)
{
    filter_result filtered = {.fingerprint = result->fingerprint};
    const batch_output *output = &filtered.output;
    if (kernel_crc32c(0, slice->data, slice->size) != slice->crc ||
        kernel_crc32c(0, slice->keys, slice->keys_size) != slice->keys_crc)
        return false;
    kernel_filter_batches(slice->data, slice->size, slice->survivors, (uint64_t)slice->survivors_bytes * 8, 0,
                          &slice->rule, NULL, target + result->size, &filtered);
    if (filtered.end_position != slice->size || filtered.next_ordinal != slice->record_count)
        return false;
    if (output->size > 0) {
        result->size += output->size;
    } else {
        const size_t size = output->unchanged_end - output->unchanged_begin;
        memcpy(target + result->size, slice->data + output->unchanged_begin, size);
        result->size += size;
    }
    if (filtered.records_count > 0) {
        if (result->records_count == 0)
            result->first_offset = filtered.first_offset;
        result->last_offset = filtered.last_offset;
    }
    result->records_count += filtered.records_count;
    result->dropped_tombstone_count += filtered.dropped_tombstone_count;
    result->fingerprint = filtered.fingerprint;
    return true;
}

static void add_scanned(compact_result *result, const scan_result *scanned, bool is_first)
{
    if (is_first || scanned->min_timestamp < result->min_timestamp)
        result->min_timestamp = scanned->min_timestamp;
    if (is_first || scanned->max_timestamp > result->max_timestamp) {
        result->max_timestamp = scanned->max_timestamp;
        result->max_timestamp_offset = scanned->max_timestamp_offset;
    }
    if (scanned->has_delete_horizon &&
        (!result->has_delete_horizon || scanned->delete_horizon_ms < result->delete_horizon_ms)) {
        result->has_delete_horizon = true;
        result->delete_horizon_ms = scanned->delete_horizon_ms;
    }
    result->tombstone_count += scanned->tombstone_count;
    result->next_offset = scanned->next_offset;
    result->last_base_offset = scanned->last_base_offset;
    result->leader_epoch = scanned->leader_epoch;
    result->last_crc = scanned->last_crc;
}

/* Proves the batches of the output and counts what an entry and an index say of them, as slice_builder.py does. */
static bool describe(const uint8_t *data, size_t interval_bytes, compact_memory *memory, compact_result *result)
{
    int64_t records_count = 0;
    size_t position = 0, end = 0;
    while (position < result->size) {
        scan_result scanned = {.fingerprint = 0};
        const bool is_first = position == 0;
        if (position >= end)
            end = interval_bytes < result->size - position ? position + interval_bytes : result->size;
        kernel_scan_batches(data + position, result->size - position, end - position, &scanned);
        if (scanned.end_position == 0 || scanned.null_key_count > 0 || scanned.first_base_offset < result->next_offset)
            return false;
        if (result->interval_count == 0 ||
            position - (size_t)memory->positions[result->interval_count - 1] >= interval_bytes) {
            memory->positions[result->interval_count] = (int64_t)position;
            memory->base_offsets[result->interval_count] = scanned.first_base_offset;
            memory->max_timestamps[result->interval_count] = scanned.max_timestamp;
            result->interval_count++;
        } else if (scanned.max_timestamp > memory->max_timestamps[result->interval_count - 1]) {
            memory->max_timestamps[result->interval_count - 1] = scanned.max_timestamp;
        }
        add_scanned(result, &scanned, is_first);
        records_count += scanned.records_count;
        position += scanned.end_position;
    }
    return records_count == result->records_count;
}

/* Counts the bits before each RANK_BITS of them; returns how many are set. */
static uint64_t rank_survivors(const compacted_slice *slice)
{
    uint64_t count = 0;
    for (size_t position = 0; position < slice->survivors_bytes; position += RANK_BYTES) {
        size_t left = slice->survivors_bytes - position;
        slice->ranks[position / RANK_BYTES] = (uint32_t)count;
        count += count_bits(slice->survivors + position, 0, 8 * (left < RANK_BYTES ? left : RANK_BYTES));
    }
    return count;
}

static bool merge_keys(compacted_slice *slices, size_t count, compact_memory *memory, compact_result *result)
{
    uint64_t first_rank = 0;
    memory->translated.count = 0;
    for (size_t index = 0; index < count; index++) {
        const compacted_slice *slice = &slices[index];
        const uint64_t kept_count = rank_survivors(slice);
        const ranked_survivors kept = {
            .survivors = slice->survivors,
            .survivors_bytes = slice->survivors_bytes,
            .ranks = (const uint8_t *)slice->ranks,
            .ranks_count = (slice->survivors_bytes + RANK_BYTES - 1) / RANK_BYTES,
            .first_rank = first_rank,
        };
        if (kept_count > 0 &&
            kernel_translate_stream(slice->keys, slice->keys_size, &kept, &memory->translated) != KERNEL_OK)
            return false;
        first_rank += kept_count;
    }
    if (first_rank != (uint64_t)result->records_count ||
        kernel_sort(&memory->translated, &memory->sorted) != KERNEL_OK)
        return false;
    result->keys_count = memory->sorted.count;
    result->keys_size = kernel_encode_stream(&memory->sorted, memory->keys);
    result->keys_crc = kernel_crc32c(0, memory->keys, result->keys_size);
    return true;
}

bool kernel_compact(compacted_slice *slices, size_t count, int64_t base_offset, size_t interval_bytes,
                    compact_memory *memory, compact_result *result)
{
    *result = (compact_result){
        .first_offset = -1,
        .last_offset = -1,
        .min_timestamp = NO_TIMESTAMP,
        .max_timestamp = NO_TIMESTAMP,
        .max_timestamp_offset = -1,
        .next_offset = base_offset,
    };
    for (size_t index = 0; index < count; index++)
        if (!keep_survivors(&slices[index], memory->target, result))
            return false;
    if (!describe(memory->target, interval_bytes, memory, result) || !merge_keys(slices, count, memory, result))
        return false;
    result->crc = kernel_crc32c(0, memory->target, result->size);
    return true;
}
