/* The second pass of a clean: what the offset map lets stay.
 *
 * Batches are taken in groups. Of a group, all records are judged first, and only then its batches are copied, without
 * another look at their keys: so that look-ups can wait for memory together, in whatever batches they are. */
#include "offset_map.h"

#include "record_frame.h"

enum { BLOCK_RECORDS = 64, GROUP_RECORDS = 2048, GROUP_BATCHES = 64, NO_TIMESTAMP = -1 };

/* Records whose keys wait to be looked up together. */
typedef struct {
    const offset_map *map;
    size_t count;
    const uint8_t *key[BLOCK_RECORDS];
    size_t key_size[BLOCK_RECORDS];
    int64_t offset[BLOCK_RECORDS];
    judged_record *record[BLOCK_RECORDS];
    bool is_due[BLOCK_RECORDS]; /* a tombstone whose horizon has come */
} judging;

static void judge_waiting(judging *judge)
{
    const offset_map *map = judge->map;
    uint64_t high[BLOCK_RECORDS], low[BLOCK_RECORDS], home[BLOCK_RECORDS];
    kernel_siphash128_each(map->hash_key, judge->key, judge->key_size, judge->count, high, low);
    for (size_t index = 0; index < judge->count; index++) {
        home[index] = home_of(map, high[index]);
        prefetch_home(map, home[index]);
    }
    for (size_t index = 0; index < judge->count; index++) {
        const map_place place = kernel_map_seek(map, home[index], high[index], low[index]);
        if (place.is_found && map->slots[place.index].next_offset > (uint64_t)judge->offset[index] + 1)
            judge->record[index]->fate = RECORD_OUTDATED;
        else if (judge->is_due[index])
            judge->record[index]->fate = RECORD_TOMBSTONE_DUE;
    }
    judge->count = 0;
}

/* Judges the records of a payload; those that wait have their fates after `judge_waiting`. */
static kernel_status judge_payload(judging *judge, const uint8_t *payload, size_t size, int64_t records_count,
                                   int64_t base_offset, int64_t last_offset_delta, bool drop_tombstones,
                                   judged_record *judged)
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
            judged->fate = RECORD_WITHOUT_KEY;
            continue;
        }
        judge->key[judge->count] = frame.key;
        judge->key_size[judge->count] = (size_t)frame.key_size;
        judge->offset[judge->count] = base_offset + frame.offset_delta;
        judge->record[judge->count] = judged;
        judge->is_due[judge->count] = drop_tombstones && judged->is_tombstone;
        if (++judge->count == BLOCK_RECORDS)
            judge_waiting(judge);
    }
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}

static kept_records count_fates(const judged_record *judged, int64_t records_count)
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

/* Copies what stays of a payload, neighbours together; returns its size. */
static size_t copy_kept(const uint8_t *payload, size_t size, int64_t records_count, const judged_record *judged,
                        uint8_t *target)
{
    const uint8_t *begin = target;
    int64_t index = 0;
    while (index < records_count) {
        size_t run_begin, run_end;
        while (index < records_count && judged[index].fate != RECORD_STAYS)
            index++;
        if (index == records_count)
            break;
        run_begin = judged[index].position;
        while (index < records_count && judged[index].fate == RECORD_STAYS)
            index++;
        run_end = index == records_count ? size : judged[index].position;
        memcpy(target, payload + run_begin, run_end - run_begin);
        target += run_end - run_begin;
    }
    return (size_t)(target - begin);
}

/* The same with other timestamps. */
static kernel_status copy_kept_shifted(const uint8_t *payload, size_t size, int64_t records_count,
                                       const judged_record *judged, int64_t timestamp_shift, uint8_t *target,
                                       size_t *copied_size)
{
    const uint8_t *begin = target;
    record_walk walk;
    record_frame frame;
    walk_begin(&walk, payload, size, records_count);
    for (; walk.left_count > 0; judged++) {
        int64_t timestamp_delta;
        /* Never false for what was judged, unless somebody changes it meanwhile. */
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
                                   const offset_map *map, bool drop_tombstones, int64_t timestamp_shift,
                                   judged_record *judged, uint8_t *target, kept_records *kept)
{
    judging judge = {.map = map};
    kernel_status status = judge_payload(&judge, payload, size, records_count, base_offset, INT32_MAX,
                                         drop_tombstones, judged);
    if (status != KERNEL_OK)
        return status;
    judge_waiting(&judge);
    *kept = count_fates(judged, records_count);
    if (timestamp_shift == 0) {
        kept->size = copy_kept(payload, size, records_count, judged, target);
        return KERNEL_OK;
    }
    status = copy_kept_shifted(payload, size, records_count, judged, timestamp_shift, target, &kept->size);
    if (status == KERNEL_OK && kept->count > 0)
        kept->max_timestamp_delta += timestamp_shift;
    return status;
}

void kernel_measure_clean(const uint8_t *data, size_t size, const clean_rule *rule, clean_room *room)
{
    batch_frame batch;
    size_t position = 0;
    *room = (clean_room){.judged_count = GROUP_RECORDS};
    while (batch_at(data + position, size - position, &batch) &&
           is_taken(&batch, rule->stop_offset, rule->takes_transactional)) {
        const size_t records_count = (size_t)batch.records_count;
        if (records_count > records_bytes(&batch) / MIN_RECORD_BYTES)
            break;
        if (room->judged_count < GROUP_RECORDS + records_count)
            room->judged_count = GROUP_RECORDS + records_count;
        if (!(batch.attributes & DELETE_HORIZON_BIT))
            room->target_bytes += COPY_GROWTH_BYTES * records_count;
        position += batch.size;
    }
    room->target_bytes += position;
}

/* One call of kernel_clean_batches. */
typedef struct {
    const uint8_t *data;
    const offset_map *map;
    const clean_rule *rule;
    uint8_t *target;
    size_t target_room;
    batch_row *rows;
    clean_result *result;
} cleaning;

static bool is_kept_empty(const clean_rule *rule, int64_t last_offset)
{
    size_t low = 0, high = rule->kept_empty_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rule->kept_empty[middle] < last_offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < rule->kept_empty_count && rule->kept_empty[low] == last_offset;
}

static void add_row(cleaning *clean, const batch_frame *batch, size_t position, size_t size, int64_t max_timestamp)
{
    clean_result *result = clean->result;
    const int64_t last_offset = batch->next_offset - 1;
    clean->rows[result->rows_count] = (batch_row){
        .position = position,
        .size = size,
        .last_offset = last_offset,
        .max_timestamp = max_timestamp,
        .is_noted = batch->producer_id >= 0 || (batch->attributes & TRANSACTIONAL_BIT),
    };
    if (result->rows_count == 0 || max_timestamp > result->max_timestamp) {
        result->max_timestamp = max_timestamp;
        result->max_timestamp_offset = last_offset;
    }
    result->last_offset = last_offset;
    result->rows_count++;
}

/* Batches that stay as they are wait as a run, to be copied together, or not at all. */
static void flush_run(cleaning *clean)
{
    clean_result *result = clean->result;
    const size_t size = result->run_end - result->run_begin;
    memcpy(clean->target + result->size, clean->data + result->run_begin, size);
    result->size += size;
    result->run_begin = result->run_end = 0;
}

static void keep_batch(cleaning *clean, const batch_frame *batch)
{
    clean_result *result = clean->result;
    const size_t position = (size_t)(batch->start - clean->data);
    if (result->run_end != position || result->run_begin == result->run_end) {
        flush_run(clean);
        result->run_begin = position;
    }
    result->run_end = position + batch->size;
    add_row(clean, batch, result->size + position - result->run_begin, batch->size, batch->max_timestamp);
}

/* Puts a header before the records that were copied to their place in the target; false where they are too large. */
static bool finish_batch(cleaning *clean, const batch_frame *batch, size_t records_size, int64_t records_count,
                         uint16_t attributes, int64_t base_timestamp, int64_t max_timestamp)
{
    clean_result *result = clean->result;
    uint8_t *start = clean->target + result->size;
    const size_t size = HEADER_BYTES + records_size;
    if (size - LOG_OVERHEAD_BYTES > INT32_MAX)
        return false;
    memcpy(start, batch->start, HEADER_BYTES);
    write_be32(start + BATCH_LENGTH_POSITION, (uint32_t)(size - LOG_OVERHEAD_BYTES));
    write_be16(start + ATTRIBUTES_POSITION, attributes);
    write_be64(start + BASE_TIMESTAMP_POSITION, (uint64_t)base_timestamp);
    write_be64(start + MAX_TIMESTAMP_POSITION, (uint64_t)max_timestamp);
    write_be32(start + RECORDS_COUNT_POSITION, (uint32_t)records_count);
    write_be32(start + CRC_POSITION, kernel_crc32c(0, start + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION));
    add_row(clean, batch, result->size, size, max_timestamp);
    result->size += size;
    return true;
}

/* Makes a batch anew around what stays, with a horizon where it `stamps` one; false where that cannot be. */
static bool rebuild_batch(cleaning *clean, const batch_frame *batch, const judged_record *judged,
                          const kept_records *kept, bool stamps)
{
    const int64_t base_timestamp = stamps ? clean->rule->horizon_ms : batch->base_timestamp;
    const uint16_t attributes = stamps ? batch->attributes | DELETE_HORIZON_BIT : batch->attributes;
    uint8_t *target = clean->target + clean->result->size + HEADER_BYTES;
    int64_t max_timestamp = batch->max_timestamp, shift;
    size_t size;
    if (!(attributes & TIMESTAMP_TYPE_BIT) &&
        __builtin_add_overflow(batch->base_timestamp, kept->max_timestamp_delta, &max_timestamp))
        return false;
    if (!stamps)
        size = copy_kept(records_of(batch), records_bytes(batch), batch->records_count, judged, target);
    else if (__builtin_sub_overflow(batch->base_timestamp, base_timestamp, &shift) ||
             copy_kept_shifted(records_of(batch), records_bytes(batch), batch->records_count, judged, shift, target,
                               &size) != KERNEL_OK)
        return false;
    return finish_batch(clean, batch, size, kept->count, attributes, base_timestamp, max_timestamp);
}

/* Tombstones stay that go at that time. */
static void note_horizon(clean_result *result, int64_t horizon)
{
    if (horizon < result->earliest_horizon)
        result->earliest_horizon = horizon;
    if (horizon > result->latest_horizon)
        result->latest_horizon = horizon;
}

/* Keeps what stays of a batch whose records are judged; false where that is not for this kernel to do. */
static bool clean_batch(cleaning *clean, const batch_frame *batch, const judged_record *judged)
{
    const kept_records kept = count_fates(judged, batch->records_count);
    const bool is_kept = is_kept_empty(clean->rule, batch->next_offset - 1);
    const bool stamps = kept.tombstone_count > 0 && !(batch->attributes & DELETE_HORIZON_BIT) &&
                        batch->next_offset - 1 <= clean->map->latest_offset;
    clean_result *result = clean->result;
    /* What was measured has room, and is changed by nobody meanwhile. */
    if (result->size + (result->run_end - result->run_begin) + batch->size +
            (stamps ? COPY_GROWTH_BYTES * (size_t)batch->records_count : 0) > clean->target_room)
        return false;
    if (kept.count == batch->records_count && !stamps) {
        if (kept.count > 0 || is_kept)
            keep_batch(clean, batch);
    } else if (kept.count > 0 || is_kept) {
        flush_run(clean);
        if (kept.count > 0 ? !rebuild_batch(clean, batch, judged, &kept, stamps)
                           : !finish_batch(clean, batch, 0, 0,
                                           batch->attributes & (uint16_t) ~(CODEC_MASK | DELETE_HORIZON_BIT),
                                           NO_TIMESTAMP, batch->max_timestamp))
            return false;
    }
    if (stamps)
        note_horizon(result, clean->rule->horizon_ms);
    else if (kept.tombstone_count > 0 && (batch->attributes & DELETE_HORIZON_BIT) &&
             batch->base_timestamp > clean->rule->now_ms)
        note_horizon(result, batch->base_timestamp);
    result->records_in += batch->records_count;
    result->records_kept += kept.count;
    result->null_key_count += kept.null_key_count;
    result->dropped_tombstone_count += kept.dropped_tombstone_count;
    return true;
}

/* Batches that are judged together. */
typedef struct {
    batch_frame batches[GROUP_BATCHES];
    size_t batches_count;
    size_t judged_count;
} clean_group;

/* Proves and judges as many batches as belong together; false where the walk ends behind them. */
static bool judge_group(const cleaning *clean, size_t size, size_t judged_room, judged_record *judged,
                        clean_group *group)
{
    judging judge = {.map = clean->map};
    const clean_rule *rule = clean->rule;
    size_t position = clean->result->end_position;
    bool goes_on = true;
    group->batches_count = group->judged_count = 0;
    while (group->batches_count < GROUP_BATCHES && group->judged_count < GROUP_RECORDS) {
        batch_frame *batch = &group->batches[group->batches_count];
        judged_record *place = judged + group->judged_count;
        goes_on = batch_at(clean->data + position, size - position, batch) &&
                  is_taken(batch, rule->stop_offset, rule->takes_transactional) &&
                  (size_t)batch->records_count <= judged_room - group->judged_count && has_true_crc(batch);
        if (!goes_on)
            break;
        /* Nothing is to be known of the records of a batch that stays whatever they are. */
        if (batch->base_offset > clean->map->latest_offset)
            memset(place, 0, (size_t)batch->records_count * sizeof *place);
        else
            goes_on = judge_payload(&judge, records_of(batch), records_bytes(batch), batch->records_count,
                                    batch->base_offset, batch->last_offset_delta,
                                    (batch->attributes & DELETE_HORIZON_BIT) && batch->base_timestamp <= rule->now_ms,
                                    place) == KERNEL_OK;
        if (!goes_on)
            break;
        group->batches_count++;
        group->judged_count += (size_t)batch->records_count;
        position += batch->size;
    }
    judge_waiting(&judge);
    return goes_on;
}

void kernel_clean_batches(const uint8_t *data, size_t size, const offset_map *map, const clean_rule *rule,
                          const clean_room *room, judged_record *judged, uint8_t *target, batch_row *rows,
                          size_t rows_room, clean_result *result)
{
    cleaning clean = {data, map, rule, target, room->target_bytes, rows, result};
    clean_group group;
    bool goes_on = true;
    *result = (clean_result){.next_offset = -1,
                             .max_timestamp = -1,
                             .max_timestamp_offset = -1,
                             .last_offset = -1,
                             .earliest_horizon = INT64_MAX,
                             .latest_horizon = -1};
    while (goes_on) {
        const judged_record *place = judged;
        goes_on = judge_group(&clean, size, room->judged_count, judged, &group);
        for (size_t index = 0; index < group.batches_count; index++) {
            const batch_frame *batch = &group.batches[index];
            if (result->rows_count == rows_room || !clean_batch(&clean, batch, place)) {
                goes_on = false;
                break;
            }
            place += batch->records_count;
            result->end_position += batch->size;
            result->next_offset = batch->next_offset;
        }
    }
    if (result->size > 0)
        flush_run(&clean);
}
