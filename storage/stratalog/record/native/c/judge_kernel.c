/* The records of batches: judges them by the offset map, and copies those that stay. */
#include "judging.h"

void kernel_judge_waiting(judging *judge)
{
    const offset_map *map = judge->map;
    uint64_t high[JUDGED_TOGETHER], low[JUDGED_TOGETHER], home[JUDGED_TOGETHER];
    kernel_siphash128_each(map->hash_key, judge->key, judge->key_size, judge->count, high, low);
    for (size_t index = 0; index < judge->count; index++) {
        home[index] = home_of(map, high[index]);
        prefetch_home(map, home[index]);
    }
    for (size_t index = 0; index < judge->count; index++) {
        const map_place place = kernel_map_seek(map, home[index], high[index], low[index]);
        const uint64_t next_offset = (uint64_t)judge->offset[index] + 1;
        const bool is_newest = !place.is_found || map->slots[place.index].next_offset == next_offset ||
                               is_above(map, place.index, judge->version[index], next_offset);
        /* By versions, a tombstone whose key is known may still beat records that come after it. */
        const bool may_go = judge->is_due[index] && !(map->versions != NULL && place.is_found);
        judged_record *record = judge->record[index];
        record->fate = (uint8_t)fate_of_record(true, is_newest, record->is_tombstone, may_go);
    }
    judge->count = 0;
}

kernel_status kernel_judge_payload(judging *judge, const uint8_t *payload, size_t size, int64_t records_count,
                                   int64_t base_offset, int64_t last_offset_delta, const batch_versions *versions,
                                   bool is_due, judged_record *judged)
{
    const int64_t latest_offset = judge->map->latest_offset;
    record_walk walk;
    record_frame frame;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    for (; walk.left_count > 0; judged++) {
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (UNLIKELY(frame.offset_delta > last_offset_delta || frame.offset_delta > INT64_MAX - base_offset))
            return KERNEL_BAD_OFFSET;
        judged->timestamp_delta = frame.timestamp_delta;
        judged->position = (uint32_t)(frame.start - payload);
        judged->fate = RECORD_STAYS;
        judged->is_tombstone = frame.value_size < 0;
        if (base_offset + frame.offset_delta > latest_offset)
            continue;
        if (UNLIKELY(frame.key_size < 0)) {
            judged->fate = (uint8_t)fate_of_record(false, false, judged->is_tombstone, is_due);
            continue;
        }
        judge->key[judge->count] = frame.key;
        judge->key_size[judge->count] = (size_t)frame.key_size;
        judge->offset[judge->count] = base_offset + frame.offset_delta;
        judge->version[judge->count] = 0;
        if (versions != NULL) {
            const kernel_status status = version_of(versions, &frame, &judge->version[judge->count]);
            if (UNLIKELY(status != KERNEL_OK))
                return status;
        }
        judge->record[judge->count] = judged;
        judge->is_due[judge->count] = is_due;
        if (++judge->count == JUDGED_TOGETHER)
            kernel_judge_waiting(judge);
    }
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}

kept_records kernel_count_fates(const judged_record *judged, int64_t records_count)
{
    kept_records kept = {.max_timestamp_delta = INT64_MIN};
    for (int64_t index = 0; index < records_count; index++) {
        const judged_record *record = &judged[index];
        const bool stays = record->fate == RECORD_STAYS;
        kept.count += stays;
        kept.tombstone_count += stays & record->is_tombstone;
        kept.null_key_count += record->fate == RECORD_WITHOUT_KEY;
        kept.dropped_tombstone_count += record->fate == RECORD_TOMBSTONE_DUE;
        if (stays && record->timestamp_delta > kept.max_timestamp_delta)
            kept.max_timestamp_delta = record->timestamp_delta;
    }
    if (kept.count == 0)
        kept.max_timestamp_delta = 0;
    return kept;
}

size_t kernel_copy_kept(const uint8_t *payload, size_t size, int64_t records_count, const judged_record *judged,
                        uint8_t *target)
{
    const uint8_t *begin = target;
    int64_t index = 0;
    while (index < records_count) {
        size_t kept_begin, kept_end;
        while (index < records_count && judged[index].fate != RECORD_STAYS)
            index++;
        if (index == records_count)
            break;
        kept_begin = judged[index].position;
        while (index < records_count && judged[index].fate == RECORD_STAYS)
            index++;
        kept_end = index == records_count ? size : judged[index].position;
        memcpy(target, payload + kept_begin, kept_end - kept_begin);
        target += kept_end - kept_begin;
    }
    return (size_t)(target - begin);
}

kernel_status kernel_copy_shifted(const uint8_t *payload, size_t size, int64_t records_count,
                                  const judged_record *judged, int64_t timestamp_shift, uint8_t *target,
                                  size_t *copied_size)
{
    const uint8_t *begin = target;
    record_walk walk;
    record_frame frame;
    walk_begin(&walk, payload, size, records_count);
    for (; walk.left_count > 0; judged++) {
        int64_t timestamp_delta;
        /* Only false if the judged bytes have changed meanwhile. */
        if (!walk_next(&walk, &frame))
            return KERNEL_BAD_FRAME;
        if (judged->fate != RECORD_STAYS)
            continue;
        if (__builtin_add_overflow(frame.timestamp_delta, timestamp_shift, &timestamp_delta))
            return KERNEL_BAD_TIMESTAMP;
        target = copy_shifted(&frame, timestamp_delta, target);
        if (target == NULL)
            return KERNEL_BAD_FRAME;
    }
    *copied_size = (size_t)(target - begin);
    return KERNEL_OK;
}

kernel_status kernel_clean_records(const uint8_t *payload, size_t size, int64_t records_count, int64_t base_offset,
                                   int64_t last_offset_delta, const offset_map *map,
                                   const batch_versions *versions, bool drop_tombstones, int64_t timestamp_shift,
                                   judged_record *judged, uint8_t *target, kept_records *kept)
{
    judging judge = {.map = map};
    kernel_status status = kernel_judge_payload(&judge, payload, size, records_count, base_offset, last_offset_delta,
                                                versions, drop_tombstones, judged);
    if (status != KERNEL_OK)
        return status;
    kernel_judge_waiting(&judge);
    *kept = kernel_count_fates(judged, records_count);
    if (timestamp_shift == 0) {
        kept->size = kernel_copy_kept(payload, size, records_count, judged, target);
        return KERNEL_OK;
    }
    status = kernel_copy_shifted(payload, size, records_count, judged, timestamp_shift, target, &kept->size);
    if (status == KERNEL_OK && kept->count > 0)
        kept->max_timestamp_delta += timestamp_shift;
    return status;
}
