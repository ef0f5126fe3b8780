/* Plain records, as clients send them in a protobuf message, as the records section of a batch. */
#include "plain_kernel.h"
#include "kernels.h"
#include "record_frame.h"
#include "utf8.h"

enum { FORM_VARINT = 0, FORM_FIXED64 = 1, FORM_SIZED = 2, FORM_FIXED32 = 5 };
enum { RECORDS_RECORD = 1 };
enum { RECORD_KEY = 1, RECORD_VALUE = 2, RECORD_TIMESTAMP = 3, RECORD_HEADER = 4 };
enum { HEADER_NAME = 1, HEADER_VALUE = 2 };

/* A field of a message: its bytes if it is sized, else its number. */
typedef struct {
    uint32_t number;
    uint32_t form;
    const uint8_t *part;
    int64_t size;
    uint64_t integer;
} message_field;

/* Bytes that may be missing: then the size is -1. */
typedef struct {
    const uint8_t *data;
    int64_t size;
} bytes_part;

typedef struct {
    bytes_part key;
    bytes_part value;
    int64_t timestamp;
    int64_t headers_count;
    int64_t headers_bytes; /* in the record */
} plain_record;

/* Reads a field; returns the position after it, or NULL if it is malformed or a group. */
static const uint8_t *next_field(const uint8_t *position, const uint8_t *end, message_field *field)
{
    uint64_t tag, size;
    position = read_unsigned(position, end, MAX_VARINT_BYTES, &tag);
    if (UNLIKELY(position == NULL || tag > UINT32_MAX || tag < 8))
        return NULL;
    field->number = (uint32_t)tag >> 3;
    field->form = tag & 7;
    switch (field->form) {
    case FORM_SIZED:
        position = read_unsigned(position, end, MAX_VARINT_BYTES, &size);
        if (UNLIKELY(position == NULL || size > INT32_MAX || (int64_t)size > end - position))
            return NULL;
        field->part = position;
        field->size = (int64_t)size;
        return position + size;
    case FORM_VARINT:
        return read_unsigned(position, end, MAX_VARLONG_BYTES, &field->integer);
    case FORM_FIXED64:
        return end - position < 8 ? NULL : position + 8;
    case FORM_FIXED32:
        return end - position < 4 ? NULL : position + 4;
    default:
        return NULL;
    }
}

static kernel_status read_header(const message_field *header, bytes_part *name, bytes_part *value)
{
    const uint8_t *position = header->part, *const end = header->part + header->size;
    message_field field;
    *name = (bytes_part){.data = header->part, .size = 0};
    *value = (bytes_part){.data = NULL, .size = -1};
    while (position < end) {
        position = next_field(position, end, &field);
        if (UNLIKELY(position == NULL))
            return KERNEL_BAD_FRAME;
        if (field.form != FORM_SIZED)
            continue;
        if (field.number == HEADER_NAME) {
            *name = (bytes_part){.data = field.part, .size = field.size};
            /* Also of a name that a later one replaces, as protobuf does. */
            if (!is_utf8(field.part, (size_t)field.size))
                return KERNEL_BAD_HEADER;
        } else if (field.number == HEADER_VALUE) {
            *value = (bytes_part){.data = field.part, .size = field.size};
        }
    }
    return KERNEL_OK;
}

/* Reads a record; a field that comes again replaces the former one, except headers. */
static kernel_status read_record(const message_field *message, int64_t now, plain_record *record)
{
    const uint8_t *position = message->part, *const end = message->part + message->size;
    message_field field;
    *record = (plain_record){.key.size = -1, .value.size = -1, .timestamp = now};
    while (position < end) {
        position = next_field(position, end, &field);
        if (UNLIKELY(position == NULL))
            return KERNEL_BAD_FRAME;
        if (field.form == FORM_VARINT && field.number == RECORD_TIMESTAMP)
            record->timestamp = (int64_t)field.integer;
        if (field.form != FORM_SIZED)
            continue;
        if (field.number == RECORD_KEY) {
            record->key = (bytes_part){.data = field.part, .size = field.size};
        } else if (field.number == RECORD_VALUE) {
            record->value = (bytes_part){.data = field.part, .size = field.size};
        } else if (field.number == RECORD_HEADER) {
            bytes_part name, value;
            kernel_status status = read_header(&field, &name, &value);
            if (status != KERNEL_OK)
                return status;
            record->headers_count++;
            record->headers_bytes += part_bytes(name.size) + part_bytes(value.size);
        }
    }
    return record->timestamp < 0 ? KERNEL_BAD_TIMESTAMP : KERNEL_OK;
}

/* Moves to the next record of the message: false at its end. `*status` is that of its frame. */
static bool next_record(const uint8_t **position, const uint8_t *end, message_field *field, kernel_status *status)
{
    *status = KERNEL_OK;
    while (*position < end) {
        *position = next_field(*position, end, field);
        if (UNLIKELY(*position == NULL)) {
            *status = KERNEL_BAD_FRAME;
            return false;
        }
        if (field->number == RECORDS_RECORD && field->form == FORM_SIZED)
            return true;
    }
    return false;
}

/* The size of a record without its own size field. */
static int64_t body_bytes(const plain_record *record, int64_t base_timestamp, int64_t offset_delta)
{
    return 1 + varlong_size(record->timestamp - base_timestamp) + varlong_size(offset_delta) + part_bytes(record->key.size) +
           part_bytes(record->value.size) + varlong_size(record->headers_count) + record->headers_bytes;
}

kernel_status kernel_measure_plain(const uint8_t *message, size_t size, int64_t now, plain_summary *summary)
{
    const uint8_t *position = message, *const end = message + size;
    message_field field;
    plain_record record;
    kernel_status status;
    *summary = (plain_summary){.base_timestamp = -1, .max_timestamp = -1};
    while (next_record(&position, end, &field, &status)) {
        int64_t bytes;
        status = read_record(&field, now, &record);
        if (UNLIKELY(status != KERNEL_OK)) {
            summary->bad_timestamp = record.timestamp;
            return status;
        }
        if (summary->records_count == 0)
            summary->base_timestamp = record.timestamp;
        if (record.timestamp > summary->max_timestamp)
            summary->max_timestamp = record.timestamp;
        bytes = body_bytes(&record, summary->base_timestamp, summary->records_count);
        summary->section_bytes += varlong_size(bytes) + bytes;
        summary->records_count++;
    }
    return status;
}

static kernel_status write_headers(const message_field *message, uint8_t **target)
{
    const uint8_t *position = message->part, *const end = message->part + message->size;
    message_field field;
    bytes_part name, value;
    while (position < end) {
        position = next_field(position, end, &field);
        if (position == NULL)
            return KERNEL_BAD_FRAME;
        if (field.number != RECORD_HEADER || field.form != FORM_SIZED)
            continue;
        if (read_header(&field, &name, &value) != KERNEL_OK)
            return KERNEL_BAD_HEADER;
        *target = write_part(*target, name.data, name.size);
        *target = write_part(*target, value.data, value.size);
    }
    return KERNEL_OK;
}

kernel_status kernel_write_plain(const uint8_t *message, size_t size, int64_t now, const plain_summary *summary,
                                 uint8_t *target)
{
    const uint8_t *position = message, *const end = message + size;
    const uint8_t *const target_end = target + summary->section_bytes;
    message_field field;
    plain_record record;
    kernel_status status;
    int64_t offset_delta = 0;
    while (next_record(&position, end, &field, &status)) {
        int64_t bytes;
        status = read_record(&field, now, &record);
        if (UNLIKELY(status != KERNEL_OK))
            return status;
        bytes = body_bytes(&record, summary->base_timestamp, offset_delta);
        if (UNLIKELY(varlong_size(bytes) + bytes > target_end - target))
            return KERNEL_BAD_FRAME;
        target = write_varlong(target, bytes);
        *target++ = 0;
        target = write_varlong(target, record.timestamp - summary->base_timestamp);
        target = write_varlong(target, offset_delta);
        target = write_part(target, record.key.data, record.key.size);
        target = write_part(target, record.value.data, record.value.size);
        target = write_varlong(target, record.headers_count);
        if (record.headers_count > 0) {
            status = write_headers(&field, &target);
            if (UNLIKELY(status != KERNEL_OK))
                return status;
        }
        offset_delta++;
    }
    return status == KERNEL_OK && target != target_end ? KERNEL_BAD_FRAME : status;
}

kernel_status kernel_place_plain(const uint8_t *message, size_t size, uint32_t partition_count, plain_place *place)
{
    const uint8_t *position = message, *const end = message + size;
    message_field field;
    plain_record record;
    kernel_status status;
    int64_t index = 0;
    *place = (plain_place){.partition = -1, .other_index = -1, .other_partition = -1};
    for (; next_record(&position, end, &field, &status); index++) {
        int64_t partition;
        status = read_record(&field, 0, &record);
        /* The encoding judges times. */
        if (UNLIKELY(status != KERNEL_OK && status != KERNEL_BAD_TIMESTAMP))
            return status;
        if (record.key.size < 0)
            continue;
        partition = kernel_key_partition(record.key.data, (size_t)record.key.size, partition_count);
        if (place->partition < 0)
            place->partition = partition;
        if (partition != place->partition) {
            place->other_index = index;
            place->other_partition = partition;
            return KERNEL_OK;
        }
    }
    return status;
}
