/* Rows of columns as records: the reverse of column_kernels.c. */
#include "kernels.h"
#include "record_frame.h"
#include "utf8.h"

/* Size, attributes, timestamp delta, offset delta, key size, value size and header count, at their longest. */
enum { MAX_FIXED_BYTES = 5 + 1 + 10 + 5 + 5 + 5 + 5, MAX_HEADER_FIXED_BYTES = 5 + 5 };

/* Reads a value: NULL for null. False if its offsets lie outside the data. */
static inline bool part_at(const column_part *column, size_t row, const uint8_t **part, int64_t *size)
{
    int64_t begin = column->offsets[row], end = column->offsets[row + 1];
    if (UNLIKELY(begin < 0 || end < begin || (uint64_t)end > column->size))
        return false;
    *part = column->data + begin;
    *size = column->validity != NULL && !column->validity[row] ? -1 : end - begin;
    return true;
}

/* Writes a row's headers and moves `*target` after them. Reads every offset once, so that no other thread can change it
 * between a check and its use. */
static kernel_status append_headers(const encode_columns *columns, int64_t first_header, int64_t end_header,
                                    const uint8_t *end, uint8_t **target)
{
    for (int64_t index = first_header; index < end_header; index++) {
        const uint8_t *name, *value;
        int64_t name_size, value_size;
        if (!part_at(&columns->header_name, (size_t)index, &name, &name_size) ||
            !part_at(&columns->header_value, (size_t)index, &value, &value_size) ||
            part_bytes(name_size) + part_bytes(value_size) > end - *target)
            return KERNEL_BAD_FRAME;
        if (!is_utf8(name, (size_t)name_size))
            return KERNEL_BAD_HEADER;
        *target = write_part(*target, name, name_size);
        *target = write_part(*target, value, value_size);
    }
    return KERNEL_OK;
}

/* The size of a range of a column's values; 0 if its offsets are wrong, which a later check finds. */
static size_t bytes_between(const column_part *column, size_t begin, size_t end)
{
    int64_t bytes = (int64_t)column->offsets[end] - column->offsets[begin];
    return bytes < 0 ? 0 : (size_t)bytes;
}

size_t kernel_encode_room(const encode_columns *columns, size_t first_row, size_t row_count)
{
    const size_t end_row = first_row + row_count;
    const int64_t first_header = columns->header_list_offsets[first_row];
    const int64_t end_header = columns->header_list_offsets[end_row];
    size_t room = row_count * MAX_FIXED_BYTES + bytes_between(&columns->key, first_row, end_row) +
                  bytes_between(&columns->value, first_row, end_row);
    if (first_header >= 0 && end_header > first_header && (uint64_t)end_header <= columns->header_count)
        room += (size_t)(end_header - first_header) * MAX_HEADER_FIXED_BYTES +
                bytes_between(&columns->header_name, (size_t)first_header, (size_t)end_header) +
                bytes_between(&columns->header_value, (size_t)first_header, (size_t)end_header);
    return room;
}

/* The parts of a record before its headers. */
typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    int64_t timestamp_delta;
    int64_t offset_delta;
    int64_t key_size;
    int64_t value_size;
    int64_t headers_count;
} row_fields;

static int64_t fields_bytes(const row_fields *fields)
{
    return 1 + varlong_size(fields->timestamp_delta) + varlong_size(fields->offset_delta) +
           part_bytes(fields->key_size) + part_bytes(fields->value_size) + varlong_size(fields->headers_count);
}

static inline uint8_t *write_fields(uint8_t *target, const row_fields *fields)
{
    *target++ = 0;
    target = write_varlong(target, fields->timestamp_delta);
    target = write_varlong(target, fields->offset_delta);
    target = write_part(target, fields->key, fields->key_size);
    target = write_part(target, fields->value, fields->value_size);
    return write_varlong(target, fields->headers_count);
}

/* Writes a record with headers after room for the longest size field, then moves it to follow its own size field. */
static kernel_status append_with_headers(const encode_columns *columns, const row_fields *fields,
                                         int64_t first_header, const uint8_t *end, uint8_t **target)
{
    uint8_t *const body = *target + MAX_VARINT_BYTES;
    uint8_t *position = write_fields(body, fields);
    kernel_status status =
        append_headers(columns, first_header, first_header + fields->headers_count, end, &position);
    if (status != KERNEL_OK)
        return status;
    *target = write_varlong(*target, position - body);
    memmove(*target, body, (size_t)(position - body));
    *target += position - body;
    return KERNEL_OK;
}

kernel_status kernel_encode_rows(const encode_columns *columns, size_t first_row, size_t row_count,
                                 int64_t base_timestamp, uint8_t *target, size_t room, size_t *size)
{
    uint8_t *const start = target;
    const uint8_t *const end = target + room;
    for (size_t index = 0; index < row_count; index++) {
        const size_t row = first_row + index;
        const int64_t first_header = columns->header_list_offsets[row];
        const int64_t end_header = columns->header_list_offsets[row + 1];
        row_fields fields = {.offset_delta = (int64_t)index, .headers_count = end_header - first_header};
        int64_t bytes;
        if (UNLIKELY(!part_at(&columns->key, row, &fields.key, &fields.key_size) ||
                     !part_at(&columns->value, row, &fields.value, &fields.value_size) || first_header < 0 ||
                     fields.headers_count < 0 || (uint64_t)end_header > columns->header_count))
            return KERNEL_BAD_FRAME;
        if (UNLIKELY(__builtin_sub_overflow(columns->timestamp_ms[row], base_timestamp, &fields.timestamp_delta)))
            return KERNEL_BAD_TIMESTAMP;
        bytes = fields_bytes(&fields);
        /* The room suffices if offsets ascend; if they do not, the same bytes may be written many times. */
        if (UNLIKELY(bytes + MAX_VARINT_BYTES > end - target))
            return KERNEL_BAD_FRAME;
        if (fields.headers_count > 0) {
            kernel_status status = append_with_headers(columns, &fields, first_header, end, &target);
            if (status != KERNEL_OK)
                return status;
        } else {
            target = write_varlong(target, bytes);
            target = write_fields(target, &fields);
        }
    }
    *size = (size_t)(target - start);
    return KERNEL_OK;
}
