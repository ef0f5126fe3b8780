/* The second pass of a clean: keeps the records for which the offset map has no later one. keep_rules.py has the rules.
 *
 * Batches are taken in groups. All records of a group are judged first, and only then its batches are copied, without
 * another look at their keys. So the look-ups of a group can wait for memory together. */
#include "end_marker.h"
#include "judging.h"

/* No call keeps more than KEPT_AT_ONCE batches, so that the writer can check the size of its indexes in between. */
enum { GROUP_RECORDS = 2048, GROUP_BATCHES = 64, KEPT_AT_ONCE = 1024, NO_TIMESTAMP = -1 };

void kernel_measure_clean(const uint8_t *data, size_t size, const offset_map *map, const clean_rule *rule,
                          clean_room *room)
{
    batch_frame batch;
    size_t position = 0;
    *room = (clean_room){.judged_count = GROUP_RECORDS};
    while (batch_at(data + position, size - position, &batch)) {
        const size_t records_count = (size_t)batch.records_count;
        const batch_kind kind = kind_of(&batch, map->latest_offset, &rule->aborted);
        if (kind == BATCH_NOT_TAKEN ||
            (kind != BATCH_ABORTED && records_count > records_bytes(&batch) / MIN_RECORD_BYTES))
            break;
        if (kind == BATCH_OF_RECORDS && room->judged_count < GROUP_RECORDS + records_count)
            room->judged_count = GROUP_RECORDS + records_count;
        if (kind != BATCH_ABORTED && !(batch.attributes & DELETE_HORIZON_BIT))
            room->target_bytes += COPY_GROWTH_BYTES * records_count;
        room->control_count += kind == BATCH_OF_CONTROL;
        room->data_count += kind != BATCH_OF_CONTROL && (batch.attributes & TRANSACTIONAL_BIT);
        position += batch.size;
    }
    room->target_bytes += position;
}

/* One call of kernel_clean_batches. */
typedef struct {
    const offset_map *map;
    const clean_rule *rule;
    const clean_room *room;
    const clean_memory *memory;
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

/* The marker alone holds the epoch of its producer. */
static bool is_kept_epoch(const clean_rule *rule, const batch_frame *batch)
{
    const int64_t epoch = (int16_t)read_be16(batch->start + PRODUCER_EPOCH_POSITION);
    size_t low = 0, high = rule->kept_epochs_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const producer_epoch *kept = &rule->kept_epochs[middle];
        if (kept->producer_id < batch->producer_id ||
            (kept->producer_id == batch->producer_id && kept->epoch < epoch))
            low = middle + 1;
        else
            high = middle;
    }
    return low < rule->kept_epochs_count && rule->kept_epochs[low].producer_id == batch->producer_id &&
           rule->kept_epochs[low].epoch == epoch;
}

static void keep_batch(cleaning *clean, const batch_frame *batch)
{
    keep_unchanged(&clean->result->output, batch);
    clean->result->kept_count++;
}

static bool finish_batch(cleaning *clean, const batch_frame *batch, const rebuilt_fields *fields)
{
    uint32_t crc;
    if (!finish_rebuilt(&clean->result->output, batch, fields, &crc))
        return false;
    clean->result->kept_count++;
    return true;
}

/* Writes the header alone, like Kafka's: with neither a codec nor a horizon. */
static bool empty_batch(cleaning *clean, const batch_frame *batch)
{
    const rebuilt_fields fields = {
        .attributes = batch->attributes & (uint16_t) ~(CODEC_MASK | DELETE_HORIZON_BIT),
        .base_timestamp = NO_TIMESTAMP,
        .max_timestamp = batch->max_timestamp,
    };
    return finish_batch(clean, batch, &fields);
}

/* The target was measured for these batches, and has room unless they change meanwhile. */
static bool has_room(const cleaning *clean, size_t size)
{
    const batch_output *output = &clean->result->output;
    return output->size + (output->unchanged_end - output->unchanged_begin) + size <= clean->room->target_bytes;
}

/* Rebuilds a batch around the records that stay, with a new horizon if it `stamps`; false if that is impossible. */
static bool rebuild_batch(cleaning *clean, const batch_frame *batch, const judged_record *judged,
                          const kept_records *kept, bool stamps)
{
    uint8_t *target = rebuilt_records(&clean->result->output);
    rebuilt_fields fields = {
        .records_count = kept->count,
        .attributes = stamps ? batch->attributes | DELETE_HORIZON_BIT : batch->attributes,
        .base_timestamp = stamps ? clean->rule->horizon_ms : batch->base_timestamp,
    };
    int64_t shift;
    if (!rebuilt_max_timestamp(batch, batch->base_timestamp, kept->max_timestamp_delta, &fields.max_timestamp))
        return false;
    if (!stamps)
        fields.records_size =
            kernel_copy_kept(records_of(batch), records_bytes(batch), batch->records_count, judged, target);
    else if (__builtin_sub_overflow(batch->base_timestamp, fields.base_timestamp, &shift) ||
             kernel_copy_shifted(records_of(batch), records_bytes(batch), batch->records_count, judged, shift, target,
                                 &fields.records_size) != KERNEL_OK)
        return false;
    return finish_batch(clean, batch, &fields);
}

/* Notes a batch that has something to drop at that time. */
static void note_horizon(clean_result *result, int64_t horizon)
{
    if (horizon < result->earliest_horizon)
        result->earliest_horizon = horizon;
    if (horizon > result->latest_horizon)
        result->latest_horizon = horizon;
}

/* Keeps the judged records of a batch that stay; false if the batch is left to Python. */
static bool clean_batch(cleaning *clean, const batch_frame *batch, const judged_record *judged)
{
    const kept_records kept = kernel_count_fates(judged, batch->records_count);
    const bool is_kept = is_kept_empty(clean->rule, batch->next_offset - 1);
    const bool is_seen = batch->next_offset - 1 <= clean->map->latest_offset;
    const bool stamps = gets_horizon(batch, kept.tombstone_count > 0, is_seen);
    clean_result *result = clean->result;
    if (!has_room(clean, batch->size + (stamps ? COPY_GROWTH_BYTES * (size_t)batch->records_count : 0)))
        return false;
    if (kept.count == batch->records_count && !stamps) {
        if (kept.count > 0 || is_kept)
            keep_batch(clean, batch);
    } else if (kept.count > 0 || is_kept) {
        copy_unchanged(&clean->result->output);
        if (kept.count > 0 ? !rebuild_batch(clean, batch, judged, &kept, stamps) : !empty_batch(clean, batch))
            return false;
    }
    if (stamps)
        note_horizon(result, clean->rule->horizon_ms);
    else if (kept.tombstone_count > 0 && has_horizon(batch) && (is_seen || !is_due(batch, clean->rule->now_ms)))
        note_horizon(result, batch->base_timestamp);
    result->records_in += batch->records_count;
    result->records_kept += kept.count;
    result->null_key_count += kept.null_key_count;
    result->dropped_tombstone_count += kept.dropped_tombstone_count;
    return true;
}

/* Drops a batch, or keeps its header. */
static bool drop_batch(cleaning *clean, const batch_frame *batch)
{
    if (!is_kept_empty(clean->rule, batch->next_offset - 1))
        return true;
    if (!has_room(clean, batch->size))
        return false;
    copy_unchanged(&clean->result->output);
    return empty_batch(clean, batch);
}

/* Drops data of an aborted transaction, whatever its keys are. */
static bool drop_aborted(cleaning *clean, const batch_frame *batch)
{
    if (!drop_batch(clean, batch))
        return false;
    clean->result->aborted_count += batch->records_count;
    return true;
}

/* Gives the marker its horizon. */
static bool stamp_marker(cleaning *clean, const batch_frame *batch, const end_marker *marker)
{
    const judged_record judged = {.timestamp_delta = marker->timestamp_delta, .fate = RECORD_STAYS};
    rebuilt_fields fields = {
        .records_count = 1,
        .attributes = batch->attributes | DELETE_HORIZON_BIT,
        .base_timestamp = clean->rule->horizon_ms,
        .max_timestamp = batch->max_timestamp,
    };
    batch_output *output = &clean->result->output;
    int64_t shift;
    if (!has_room(clean, batch->size + COPY_GROWTH_BYTES))
        return false;
    copy_unchanged(output);
    if (__builtin_sub_overflow(batch->base_timestamp, fields.base_timestamp, &shift) ||
        kernel_copy_shifted(records_of(batch), records_bytes(batch), 1, &judged, shift, rebuilt_records(output),
                            &fields.records_size) != KERNEL_OK ||
        !finish_batch(clean, batch, &fields))
        return false;
    note_horizon(clean->result, fields.base_timestamp);
    return true;
}

static bool drop_marker(cleaning *clean, const batch_frame *batch, const end_marker *marker)
{
    clean_result *result = clean->result;
    if (!drop_batch(clean, batch))
        return false;
    if (marker->is_abort && result->dropped_aborts_count < clean->room->control_count)
        clean->memory->dropped_aborts[result->dropped_aborts_count++] = batch->next_offset - 1;
    result->dropped_marker_count++;
    return true;
}

static bool keep_marker(cleaning *clean, const batch_frame *batch)
{
    if (!has_room(clean, batch->size))
        return false;
    keep_batch(clean, batch);
    return true;
}

static bool clean_marker(cleaning *clean, const batch_frame *batch, const end_marker *marker)
{
    const open_transaction *open = open_of(clean->memory->open, batch->producer_id);
    const marker_fate fate = fate_of_marker(batch, open != NULL, open != NULL && open->is_kept,
                                            is_kept_epoch(clean->rule, batch), clean->rule->now_ms);
    if (fate == MARKER_GETS_HORIZON ? !stamp_marker(clean, batch, marker)
        : fate == MARKER_GOES       ? !drop_marker(clean, batch, marker)
                                    : !keep_marker(clean, batch))
        return false;
    if (fate == MARKER_STAYS_UNTIL_HORIZON)
        note_horizon(clean->result, batch->base_timestamp);
    clean->result->has_waiting_marker |= fate == MARKER_STAYS_ONCE_MORE;
    end_transaction(clean->memory->open, batch->producer_id);
    return true;
}

/* Batches that are judged together. */
typedef struct {
    batch_frame batches[GROUP_BATCHES];
    batch_kind kinds[GROUP_BATCHES];
    end_marker markers[GROUP_BATCHES];
    size_t batches_count;
    size_t judged_count;
} clean_group;

static bool judge_batch(const cleaning *clean, judging *judge, const batch_frame *batch, clean_group *group)
{
    const size_t records_count = (size_t)batch->records_count;
    judged_record *place = clean->memory->judged + group->judged_count;
    batch_versions versions;
    if (records_count > records_bytes(batch) / MIN_RECORD_BYTES ||
        records_count > clean->room->judged_count - group->judged_count)
        return false;
    if (clean->map->versions != NULL)
        versions = versions_in(&clean->map->rule, batch);
    if (kernel_judge_payload(judge, records_of(batch), records_bytes(batch), batch->records_count,
                             batch->base_offset, batch->last_offset_delta,
                             clean->map->versions == NULL ? NULL : &versions, is_due(batch, clean->rule->now_ms),
                             place) != KERNEL_OK)
        return false;
    group->judged_count += records_count;
    return true;
}

/* Proves and judges the batches of one group; false if the walk ends after them. */
static bool judge_group(const cleaning *clean, size_t size, clean_group *group)
{
    judging judge = {.map = clean->map};
    const clean_rule *rule = clean->rule;
    size_t position = clean->result->end_position;
    bool goes_on = true;
    group->batches_count = group->judged_count = 0;
    while (group->batches_count < GROUP_BATCHES && group->judged_count < GROUP_RECORDS) {
        batch_frame *batch = &group->batches[group->batches_count];
        batch_kind kind;
        goes_on = batch_at(clean->result->output.data + position, size - position, batch);
        if (!goes_on)
            break;
        kind = kind_of(batch, clean->map->latest_offset, &rule->aborted);
        goes_on = kind != BATCH_NOT_TAKEN && has_true_crc(batch);
        if (goes_on && kind == BATCH_OF_CONTROL)
            goes_on = read_marker(batch, &group->markers[group->batches_count]);
        if (goes_on && kind == BATCH_OF_RECORDS)
            goes_on = judge_batch(clean, &judge, batch, group);
        if (!goes_on)
            break;
        group->kinds[group->batches_count++] = kind;
        position += batch->size;
    }
    kernel_judge_waiting(&judge);
    return goes_on;
}

/* Cleans the batches of a group in their order; false if that ends before the last. */
static bool clean_judged(cleaning *clean, const clean_group *group)
{
    const judged_record *place = clean->memory->judged;
    clean_result *result = clean->result;
    open_transactions *open = clean->memory->open;
    for (size_t index = 0; index < group->batches_count; index++) {
        const batch_frame *batch = &group->batches[index];
        const batch_kind kind = group->kinds[index];
        const bool is_data = kind != BATCH_OF_CONTROL && (batch->attributes & TRANSACTIONAL_BIT);
        const size_t kept_count = result->kept_count;
        if (kept_count == KEPT_AT_ONCE || (is_data && open->count == open->room))
            return false;
        if (kind == BATCH_OF_CONTROL ? !clean_marker(clean, batch, &group->markers[index])
            : kind == BATCH_ABORTED  ? !drop_aborted(clean, batch)
                                     : !clean_batch(clean, batch, place))
            return false;
        if (is_data)
            note_data(open, batch->producer_id, result->kept_count > kept_count);
        if (kind == BATCH_OF_RECORDS)
            place += batch->records_count;
        result->end_position += batch->size;
        result->next_offset = batch->next_offset;
    }
    return true;
}

void kernel_clean_batches(const uint8_t *data, size_t size, const offset_map *map, const clean_rule *rule,
                          const clean_room *room, const clean_memory *memory, clean_result *result)
{
    cleaning clean = {map, rule, room, memory, result};
    clean_group group;
    bool goes_on = true;
    *result = (clean_result){
        .output = {.data = data, .target = memory->target},
        .next_offset = -1,
        .earliest_horizon = INT64_MAX,
        .latest_horizon = -1,
    };
    while (goes_on) {
        goes_on = judge_group(&clean, size, &group);
        goes_on = clean_judged(&clean, &group) && goes_on;
    }
    finish_output(&result->output);
}
