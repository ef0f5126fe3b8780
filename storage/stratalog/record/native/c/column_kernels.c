/* Records as columns: one pass measures their room, another fills it. */
#include "kernels.h"
#include "record_frame.h"
#include "utf8.h"

static bool is_in_range(const row_rule *rule, int64_t offset)
{
    return offset >= rule->first_offset && offset < rule->end_offset;
}

/* Proves a record's headers; adds their sizes if the row is taken. */
static kernel_status size_headers(const record_frame *frame, bool is_taken, row_sizes *sizes)
{
    const uint8_t *position;
    int32_t count = headers_begin(frame, &position);
    if (count < 0)
        return KERNEL_BAD_FRAME;
    for (int32_t index = 0; index < count; index++) {
        header_frame header;
        if (!headers_next(frame, &position, &header))
            return KERNEL_BAD_FRAME;
        if (!is_utf8(header.name, (size_t)header.name_size))
            return KERNEL_BAD_HEADER;
        if (is_taken) {
            sizes->header_name_bytes += (size_t)header.name_size;
            sizes->header_value_bytes += header.value_size < 0 ? 0 : (size_t)header.value_size;
        }
    }
    if (is_taken)
        sizes->header_count += (size_t)count;
    return position == frame->end ? KERNEL_OK : KERNEL_BAD_FRAME;
}

kernel_status kernel_size_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                               row_sizes *sizes)
{
    record_walk walk;
    record_frame frame;
    *sizes = (row_sizes){0};
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    while (walk.left_count > 0) {
        int64_t offset, timestamp_ms;
        bool is_taken;
        kernel_status status;
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (__builtin_add_overflow(rule->base_offset, frame.offset_delta, &offset))
            return KERNEL_BAD_OFFSET;
        if (!rule->has_append_time &&
            __builtin_add_overflow(rule->base_timestamp, frame.timestamp_delta, &timestamp_ms))
            return KERNEL_BAD_TIMESTAMP;
        is_taken = is_in_range(rule, offset);
        status = size_headers(&frame, is_taken && !rule->skips_headers, sizes);
        if (UNLIKELY(status != KERNEL_OK))
            return status;
        if (is_taken) {
            sizes->row_count++;
            sizes->key_bytes += frame.key_size < 0 || rule->skips_keys ? 0 : (size_t)frame.key_size;
            sizes->value_bytes += frame.value_size < 0 || rule->skips_values ? 0 : (size_t)frame.value_size;
        }
    }
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}

/* One variable-size column while it is filled. */
typedef struct {
    uint8_t *data;
    uint8_t *end;
    int32_t *offsets;
    uint8_t *validity; /* NULL if there are no nulls */
    size_t held_bytes; /* in the column, with its former contents */
} filling;

/* Appends one value; false if there is no room for it. */
static inline bool append_part(filling *column, const uint8_t *part, int32_t size)
{
    if (size > 0) {
        if (UNLIKELY(size > column->end - column->data))
            return false;
        memcpy(column->data, part, (size_t)size);
        column->data += size;
        column->held_bytes += (size_t)size;
    }
    *column->offsets++ = (int32_t)column->held_bytes;
    if (column->validity != NULL)
        *column->validity++ = size >= 0;
    return true;
}

/* The size to append: of a skipped column only whether there is a value. */
static inline int32_t shown_size(int32_t size, bool is_skipped)
{
    return is_skipped && size > 0 ? 0 : size;
}

static filling begin_filling(uint8_t *data, size_t room, int32_t *offsets, uint8_t *validity, size_t held_bytes)
{
    return (filling){data, data + room, offsets, validity, held_bytes};
}

/* Appends a record's headers; returns their number, negative if there is no room for them. */
static int32_t fill_headers(const record_frame *frame, size_t room, filling *names, filling *values)
{
    const uint8_t *position;
    int32_t count = headers_begin(frame, &position);
    if (count < 0 || (size_t)count > room)
        return -1;
    for (int32_t index = 0; index < count; index++) {
        header_frame header;
        if (!headers_next(frame, &position, &header) || !append_part(names, header.name, header.name_size) ||
            !append_part(values, header.value, header.value_size))
            return -1;
    }
    return count;
}

kernel_status kernel_fill_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                               const row_sizes *sizes, row_columns *columns)
{
    record_walk walk;
    record_frame frame;
    const row_sizes *held = &columns->held;
    filling keys = begin_filling(columns->key_data, sizes->key_bytes, columns->key_offsets, columns->key_validity,
                                 held->key_bytes);
    filling values = begin_filling(columns->value_data, sizes->value_bytes, columns->value_offsets,
                                   columns->value_validity, held->value_bytes);
    filling names = begin_filling(columns->header_name_data, sizes->header_name_bytes, columns->header_name_offsets,
                                  NULL, held->header_name_bytes);
    filling header_values =
        begin_filling(columns->header_value_data, sizes->header_value_bytes, columns->header_value_offsets,
                      columns->header_value_validity, held->header_value_bytes);
    size_t row = 0, headers_count = 0;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    while (walk.left_count > 0) {
        int64_t offset;
        int32_t count;
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (__builtin_add_overflow(rule->base_offset, frame.offset_delta, &offset))
            return KERNEL_BAD_OFFSET;
        if (!is_in_range(rule, offset))
            continue;
        if (UNLIKELY(row == sizes->row_count))
            return KERNEL_BAD_FRAME;
        columns->offset[row] = offset;
        columns->timestamp_ms[row] = rule->append_time_ms;
        if (!rule->has_append_time && __builtin_add_overflow(rule->base_timestamp, frame.timestamp_delta,
                                                             &columns->timestamp_ms[row]))
            return KERNEL_BAD_TIMESTAMP;
        if (!append_part(&keys, frame.key, shown_size(frame.key_size, rule->skips_keys)) ||
            !append_part(&values, frame.value, shown_size(frame.value_size, rule->skips_values)))
            return KERNEL_BAD_FRAME;
        count = rule->skips_headers
                    ? 0
                    : fill_headers(&frame, sizes->header_count - headers_count, &names, &header_values);
        if (UNLIKELY(count < 0))
            return KERNEL_BAD_FRAME;
        headers_count += (size_t)count;
        columns->header_list_offsets[row] = (int32_t)(held->header_count + headers_count);
        row++;
    }
    /* Unfilled room would be garbage in the columns. */
    return row == sizes->row_count && headers_count == sizes->header_count && keys.data == keys.end &&
                   values.data == values.end && names.data == names.end && header_values.data == header_values.end
               ? KERNEL_OK
               : KERNEL_BAD_FRAME;
}
