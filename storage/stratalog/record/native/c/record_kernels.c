/* Scan and copy: kernels that walk the records of one batch. */
#include "keep_rules.h"
#include "kernels.h"
#include "record_frame.h"
#include "utf8.h"

bool kernel_has_sound_headers(const record_frame *frame)
{
    const uint8_t *position;
    /* Most records have no headers. */
    if (LIKELY(frame->headers + 1 == frame->end))
        return *frame->headers == 0;
    int32_t count = headers_begin(frame, &position);
    if (count < 0)
        return false;
    for (int32_t index = 0; index < count; index++) {
        header_frame header;
        if (!headers_next(frame, &position, &header) || !is_utf8(header.name, (size_t)header.name_size))
            return false;
    }
    return position == frame->end;
}

kernel_status kernel_scan(const uint8_t *payload, size_t size, int64_t records_count, int64_t last_offset_delta,
                          records_summary *summary)
{
    record_walk walk;
    record_frame frame;
    int64_t tombstone_count = 0, null_key_count = 0;
    int64_t min_timestamp_delta = INT64_MAX, max_timestamp_delta = INT64_MIN;
    int64_t first_offset_delta = -1, max_timestamp_offset_delta = -1;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    while (walk.left_count > 0) {
        if (UNLIKELY(!walk_next(&walk, &frame) || !kernel_has_sound_headers(&frame)))
            return KERNEL_BAD_FRAME;
        tombstone_count += frame.value_size < 0;
        null_key_count += frame.key_size < 0;
        if (frame.timestamp_delta < min_timestamp_delta)
            min_timestamp_delta = frame.timestamp_delta;
        if (first_offset_delta < 0)
            first_offset_delta = frame.offset_delta;
        if (frame.timestamp_delta > max_timestamp_delta || max_timestamp_offset_delta < 0) {
            max_timestamp_delta = frame.timestamp_delta;
            max_timestamp_offset_delta = frame.offset_delta;
        }
    }
    if (!walk_end(&walk))
        return KERNEL_BAD_FRAME;
    if (walk.last_offset_delta > last_offset_delta)
        return KERNEL_BAD_OFFSET;
    summary->tombstone_count = tombstone_count;
    summary->null_key_count = null_key_count;
    summary->min_timestamp_delta = records_count == 0 ? 0 : min_timestamp_delta;
    summary->max_timestamp_delta = records_count == 0 ? 0 : max_timestamp_delta;
    summary->first_offset_delta = first_offset_delta;
    summary->last_offset_delta = walk.last_offset_delta;
    summary->max_timestamp_offset_delta = max_timestamp_offset_delta;
    /* Deltas increase strictly from 0 on, so they are dense if there are as many as numbers up to the last. */
    summary->is_dense = last_offset_delta < INT64_MAX && records_count == last_offset_delta + 1;
    return KERNEL_OK;
}

static inline bool is_survivor(const uint8_t *survivors, uint64_t ordinal)
{
    return survivors[ordinal >> 3] >> (ordinal & 7) & 1;
}

/* A record without a key deletes none: no other record can replace it, and it stays. */
static inline bool is_tombstone(const record_frame *frame)
{
    return frame->value_size < 0 && frame->key_size >= 0;
}

/* Counts a kept record; false if its shifted timestamp is out of range. */
static inline bool count_kept(const record_frame *frame, const copy_rule *rule, copy_result *result,
                              int64_t *timestamp_delta)
{
    if (__builtin_add_overflow(frame->timestamp_delta, rule->timestamp_shift, timestamp_delta))
        return false;
    if (result->count == 0) {
        result->first_delta = frame->offset_delta;
        result->max_timestamp_delta = *timestamp_delta;
    } else if (*timestamp_delta > result->max_timestamp_delta) {
        result->max_timestamp_delta = *timestamp_delta;
    }
    result->last_delta = frame->offset_delta;
    result->count++;
    result->tombstone_count += is_tombstone(frame);
    return true;
}

kernel_status kernel_copy(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *survivors,
                          uint64_t first_ordinal, const copy_rule *rule, uint8_t *target, copy_result *result)
{
    record_walk walk;
    record_frame frame;
    uint64_t ordinal = first_ordinal;
    uint8_t *start = target;
    /* Adjacent unchanged survivors are copied at once: [unchanged, unchanged_end). */
    const uint8_t *unchanged = payload, *unchanged_end = payload;
    *result = (copy_result){.first_delta = -1, .last_delta = -1};
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    for (; walk.left_count > 0; ordinal++) {
        int64_t timestamp_delta;
        record_fate fate;
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (frame.offset_delta < rule->first_offset_delta || frame.offset_delta >= rule->end_offset_delta)
            continue;
        fate = fate_of_record(true, is_survivor(survivors, ordinal), is_tombstone(&frame), rule->drop_tombstones);
        result->dropped_tombstone_count += fate == RECORD_TOMBSTONE_DUE;
        if (fate != RECORD_STAYS)
            continue;
        if (!count_kept(&frame, rule, result, &timestamp_delta))
            return KERNEL_BAD_TIMESTAMP;
        if (rule->timestamp_shift != 0) {
            target = copy_shifted(&frame, timestamp_delta, target);
            if (target == NULL)
                return KERNEL_BAD_FRAME;
        } else if (unchanged_end == frame.start) {
            unchanged_end = frame.end;
        } else {
            memcpy(target, unchanged, (size_t)(unchanged_end - unchanged));
            target += unchanged_end - unchanged;
            unchanged = frame.start;
            unchanged_end = frame.end;
        }
    }
    if (!walk_end(&walk))
        return KERNEL_BAD_FRAME;
    memcpy(target, unchanged, (size_t)(unchanged_end - unchanged));
    target += unchanged_end - unchanged;
    result->size = (size_t)(target - start);
    return KERNEL_OK;
}

kernel_status kernel_clear_dropped(const uint8_t *payload, size_t size, int64_t records_count, uint8_t *survivors,
                                   uint64_t first_ordinal, const copy_rule *rule)
{
    record_walk walk;
    record_frame frame;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    for (uint64_t ordinal = first_ordinal; walk.left_count > 0; ordinal++) {
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (frame.offset_delta < rule->first_offset_delta || frame.offset_delta >= rule->end_offset_delta ||
            (rule->drop_tombstones && is_tombstone(&frame)))
            survivors[ordinal >> 3] &= (uint8_t)~(1u << (ordinal & 7));
    }
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}
