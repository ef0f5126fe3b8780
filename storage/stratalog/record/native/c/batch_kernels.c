/* Measure, prove, filter and hash: kernels that walk a row of batches. */
#include "batch_kernels.h"
#include "bit_counts.h"
#include "end_marker.h"
#include "keep_rules.h"
#include "versions.h"

#include "batch_frame.h"

size_t kernel_whole_batches(const uint8_t *data, size_t size, int64_t *records_count)
{
    batch_frame batch;
    size_t position = 0;
    *records_count = 0;
    while (batch_at(data + position, size - position, &batch)) {
        position += batch.size;
        *records_count += batch.records_count;
    }
    return position;
}

size_t kernel_plain_batches(const uint8_t *data, size_t size)
{
    batch_frame batch;
    size_t position = 0;
    while (batch_at(data + position, size - position, &batch) && is_plain(&batch))
        position += batch.size;
    return position;
}

size_t kernel_bare_batches(const uint8_t *data, size_t size, size_t *data_count)
{
    batch_frame batch;
    size_t position = 0;
    *data_count = 0;
    while (batch_at(data + position, size - position, &batch) && is_bare(&batch)) {
        *data_count += (batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT;
        position += batch.size;
    }
    return position;
}

size_t kernel_rank_entries(const uint8_t *entries, size_t count, size_t entry_size, size_t key_position,
                           size_t key_size, uint64_t limit)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const uint8_t *field = entries + middle * entry_size + key_position;
        if ((key_size == 8 ? read_be64(field) : read_be32(field)) <= limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The parts of a fingerprint: base offset, checksum and record count, little-endian. */
static uint32_t add_mark(uint32_t fingerprint, int64_t base_offset, uint32_t crc, int32_t records_count)
{
    uint8_t mark[16];
    memcpy(mark, &base_offset, 8);
    memcpy(mark + 8, &crc, 4);
    memcpy(mark + 12, &records_count, 4);
    return kernel_crc32c(fingerprint, mark, sizeof mark);
}

/* The lowest and the highest timestamp of a batch, and the offset of the first record with the highest; false if one is
 * out of range or contradicts the header. */
static bool timestamps_of(const batch_frame *batch, const records_summary *summary, int64_t *earliest,
                          int64_t *latest, int64_t *latest_offset)
{
    if (__builtin_add_overflow(batch->base_timestamp, summary->min_timestamp_delta, earliest) ||
        __builtin_add_overflow(batch->base_timestamp, summary->max_timestamp_delta, latest))
        return false;
    if (batch->attributes & TIMESTAMP_TYPE_BIT) {
        *earliest = *latest = batch->max_timestamp;
        *latest_offset = batch->base_offset + summary->first_offset_delta;
        return true;
    }
    *latest_offset = batch->base_offset + summary->max_timestamp_offset_delta;
    return *latest == batch->max_timestamp;
}

static void add_scanned(scan_result *result, const batch_frame *batch, const records_summary *summary)
{
    result->records_count += batch->records_count;
    if (batch->attributes & CONTROL_BIT) {
        result->marker_count += batch->records_count;
    } else {
        result->tombstone_count += summary->tombstone_count;
        result->null_key_count += summary->null_key_count;
    }
    result->is_transactional |= (batch->attributes & TRANSACTIONAL_BIT) != 0;
    result->last_base_offset = batch->base_offset;
    result->next_offset = batch->next_offset;
    result->last_offset = batch->base_offset + summary->last_offset_delta;
    result->last_crc = batch->crc;
    result->fingerprint = add_mark(result->fingerprint, batch->base_offset, batch->crc, batch->records_count);
    if ((batch->attributes & DELETE_HORIZON_BIT) &&
        (!result->has_delete_horizon || batch->base_timestamp < result->delete_horizon_ms)) {
        result->has_delete_horizon = true;
        result->delete_horizon_ms = batch->base_timestamp;
    }
}

void kernel_scan_batches(const uint8_t *data, size_t size, size_t begin_limit, scan_result *result)
{
    batch_frame batch;
    size_t position = 0;
    *result = (scan_result){.fingerprint = result->fingerprint};
    while (position < begin_limit && batch_at(data + position, size - position, &batch) && is_bare(&batch)) {
        records_summary summary;
        int64_t earliest, latest, latest_offset;
        bool is_first = position == 0;
        if (!is_first && (batch.leader_epoch != result->leader_epoch || batch.base_offset < result->next_offset))
            break;
        if (!has_true_crc(&batch) || kernel_scan(records_of(&batch), records_bytes(&batch), batch.records_count,
                                                 batch.last_offset_delta, &summary) != KERNEL_OK)
            break;
        if (!timestamps_of(&batch, &summary, &earliest, &latest, &latest_offset))
            break;
        if (is_first) {
            result->leader_epoch = batch.leader_epoch;
            result->first_base_offset = batch.base_offset;
            result->first_offset = batch.base_offset + summary.first_offset_delta;
        }
        if (is_first || earliest < result->min_timestamp)
            result->min_timestamp = earliest;
        if (is_first || latest > result->max_timestamp) {
            result->max_timestamp = latest;
            result->max_timestamp_offset = latest_offset;
        }
        add_scanned(result, &batch, &summary);
        position += batch.size;
    }
    result->end_position = position;
}

/* Offset deltas of the first and the last record; false if a record has a bad frame. */
static bool offset_deltas(const batch_frame *batch, int64_t *first_delta, int64_t *last_delta)
{
    records_summary summary;
    *first_delta = 0;
    *last_delta = batch->last_offset_delta;
    if (batch->records_count == batch->last_offset_delta + INT64_C(1))
        return true;
    if (kernel_scan(records_of(batch), records_bytes(batch), batch->records_count, batch->last_offset_delta,
                    &summary) != KERNEL_OK)
        return false;
    *first_delta = summary.first_offset_delta;
    *last_delta = summary.last_offset_delta;
    return true;
}

/* One call of kernel_filter_batches. */
typedef struct {
    uint8_t *survivors;
    const filter_rule *rule;
    open_transactions *open; /* NULL if only plain batches are taken */
    filter_result *result;
} filtering;

static void count_batch(filter_result *result, const batch_frame *batch, int64_t first_delta, int64_t last_delta,
                        int32_t records_count, uint32_t crc)
{
    if (result->records_count == 0)
        result->first_offset = batch->base_offset + first_delta;
    result->last_offset = batch->base_offset + last_delta;
    result->records_count += records_count;
    result->fingerprint = add_mark(result->fingerprint, batch->base_offset, crc, records_count);
}

static bool keep_batch(filtering *filter, const batch_frame *batch)
{
    int64_t first_delta, last_delta;
    if (!offset_deltas(batch, &first_delta, &last_delta))
        return false;
    keep_unchanged(&filter->result->output, batch);
    count_batch(filter->result, batch, first_delta, last_delta, batch->records_count, batch->crc);
    return true;
}

static bool finish_batch(filtering *filter, const batch_frame *batch, const copy_result *copied, uint16_t attributes,
                         int64_t base_timestamp)
{
    rebuilt_fields fields = {copied->size, copied->count, attributes, base_timestamp};
    uint32_t crc;
    if (!rebuilt_max_timestamp(batch, base_timestamp, copied->max_timestamp_delta, &fields.max_timestamp) ||
        !finish_rebuilt(&filter->result->output, batch, &fields, &crc))
        return false;
    count_batch(filter->result, batch, copied->first_delta, copied->last_delta, (int32_t)copied->count, crc);
    return true;
}

/* Keeps the surviving records of a batch; false if the batch is left to Python. */
static bool filter_batch(filtering *filter, const batch_frame *batch, uint64_t first_ordinal)
{
    const filter_rule *rule = filter->rule;
    batch_output *output = &filter->result->output;
    const bool settles = batch->next_offset <= rule->settled_end_offset;
    const bool drops = settles && rule->may_drop && is_due(batch, rule->drop_until_ms);
    const bool may_stamp = gets_horizon(batch, rule->has_tombstones, settles && rule->may_stamp);
    const bool is_clipped = rule->first_offset > batch->base_offset;
    const uint64_t records_count = (uint64_t)batch->records_count;
    const uint64_t planned_count = count_bits(filter->survivors, first_ordinal, first_ordinal + records_count);
    copy_rule copying = {
        .first_offset_delta = is_clipped ? rule->first_offset - batch->base_offset : 0,
        .end_offset_delta = batch->last_offset_delta + INT64_C(1),
        .drop_tombstones = drops,
    };
    copy_result copied;
    uint64_t seen_count;
    if (planned_count == 0)
        return true;
    if (is_aborted(&rule->aborted, batch))
        return false;
    if (planned_count == records_count && !is_clipped && !drops && !may_stamp)
        return keep_batch(filter, batch);
    copy_unchanged(output);
    if (kernel_copy(records_of(batch), records_bytes(batch), batch->records_count, filter->survivors, first_ordinal,
                    &copying, rebuilt_records(output), &copied) != KERNEL_OK)
        return false;
    seen_count = (uint64_t)(copied.count + copied.dropped_tombstone_count);
    if (is_clipped ? seen_count > planned_count : seen_count != planned_count)
        return false;
    if (gets_horizon(batch, copied.tombstone_count > 0, may_stamp)) {
        if (__builtin_sub_overflow(batch->base_timestamp, rule->stamp_ms, &copying.timestamp_shift) ||
            kernel_copy(records_of(batch), records_bytes(batch), batch->records_count, filter->survivors,
                        first_ordinal, &copying, rebuilt_records(output), &copied) != KERNEL_OK ||
            !finish_batch(filter, batch, &copied, batch->attributes | DELETE_HORIZON_BIT, rule->stamp_ms))
            return false;
    } else if (copied.count > 0) {
        uint16_t attributes = drops ? batch->attributes & (uint16_t)~DELETE_HORIZON_BIT : batch->attributes;
        bool is_whole = !drops && (uint64_t)copied.count == records_count;
        if (is_whole ? !keep_batch(filter, batch)
                     : !finish_batch(filter, batch, &copied, attributes, batch->base_timestamp))
            return false;
    }
    filter->result->dropped_tombstone_count += copied.dropped_tombstone_count;
    /* The bits tell in the end which records are in the output. */
    if (is_clipped || copied.dropped_tombstone_count > 0)
        kernel_clear_dropped(records_of(batch), records_bytes(batch), batch->records_count, filter->survivors,
                             first_ordinal, &copying);
    return true;
}

static void clear_bits(uint8_t *bits, uint64_t first, uint64_t end)
{
    for (; first < end; first++)
        bits[first >> 3] &= (uint8_t)~(1u << (first & 7));
}

/* Filters a batch of records; false if it is left to Python. */
static bool filter_data(filtering *filter, const batch_frame *batch, uint64_t ordinal)
{
    const bool is_part = batch->attributes & TRANSACTIONAL_BIT;
    const int64_t kept_before = filter->result->records_count;
    if (is_part && filter->open->count == filter->open->room)
        return false;
    if (batch->next_offset <= filter->rule->first_offset) {
        if (filter->survivors != NULL)
            clear_bits(filter->survivors, ordinal, ordinal + (uint64_t)batch->records_count);
    } else if (!(filter->survivors == NULL ? keep_batch(filter, batch) : filter_batch(filter, batch, ordinal)))
        return false;
    if (is_part)
        note_data(filter->open, batch->producer_id, filter->result->records_count > kept_before);
    return true;
}

/* Keeps the marker of a commit that stays; false if the batch is left to Python. */
static bool filter_marker(filtering *filter, const batch_frame *batch, uint64_t ordinal)
{
    const open_transaction *transaction = open_of(filter->open, batch->producer_id);
    const bool stays = !filter->rule->may_stamp || (transaction != NULL && transaction->is_kept);
    end_marker marker;
    if (!stays || batch->next_offset <= filter->rule->first_offset || filter->survivors == NULL ||
        !read_marker(batch, &marker) || marker.is_abort || !keep_batch(filter, batch))
        return false;
    filter->survivors[ordinal >> 3] |= (uint8_t)(1u << (ordinal & 7));
    end_transaction(filter->open, batch->producer_id);
    return true;
}

void kernel_filter_batches(const uint8_t *data, size_t size, uint8_t *survivors, uint64_t bits_count,
                           uint64_t first_ordinal, const filter_rule *rule, open_transactions *open, uint8_t *target,
                           filter_result *result)
{
    filtering filter = {survivors, rule, open, result};
    batch_frame batch;
    size_t position = 0;
    uint64_t ordinal = first_ordinal;
    *result = (filter_result){
        .output = {.data = data, .target = target},
        .first_offset = -1,
        .last_offset = -1,
        .fingerprint = result->fingerprint,
    };
    while (batch_at(data + position, size - position, &batch) &&
           (open == NULL ? is_plain(&batch) : is_bare(&batch))) {
        uint64_t records_count = (uint64_t)batch.records_count;
        if (batch.next_offset > rule->end_offset || (survivors != NULL && records_count > bits_count - ordinal))
            break;
        if (batch.attributes & CONTROL_BIT ? !filter_marker(&filter, &batch, ordinal)
                                           : !filter_data(&filter, &batch, ordinal))
            break;
        position += batch.size;
        ordinal += records_count;
    }
    finish_output(&result->output);
    result->end_position = position;
    result->next_ordinal = ordinal;
}

kernel_status kernel_hash_batches(const uint8_t *data, size_t size, const uint8_t *hash_key16, uint32_t first_ordinal,
                                  size_t room, const batch_versions *rule, key_columns *columns)
{
    batch_frame batch;
    batch_versions versions;
    key_columns rest = *columns;
    size_t position = 0;
    columns->count = 0;
    while (position < size) {
        kernel_status status;
        if (!batch_at(data + position, size - position, &batch) || !is_plain(&batch) ||
            (size_t)batch.records_count > room)
            return KERNEL_BAD_FRAME;
        room -= (size_t)batch.records_count;
        if (rule != NULL)
            versions = versions_in(rule, &batch);
        status = kernel_hash_keys(records_of(&batch), records_bytes(&batch), batch.records_count, hash_key16,
                                  first_ordinal, rule == NULL ? NULL : &versions, &rest);
        if (status != KERNEL_OK)
            return status;
        columns->count += rest.count;
        rest.hash_high += rest.count;
        rest.hash_low += rest.count;
        rest.ordinal += rest.count;
        rest.tombstone += rest.count;
        if (rest.version != NULL)
            rest.version += rest.count;
        first_ordinal += (uint32_t)batch.records_count;
        position += batch.size;
    }
    return KERNEL_OK;
}
