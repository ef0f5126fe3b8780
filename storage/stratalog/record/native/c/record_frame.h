/* Finds the parts of a record: the walk that the record kernels share, twin of record_frame.py.
 *
 * Each position is checked against the end of the record or of the payload before the read, and each size against the
 * remaining bytes, so the walk is safe on any bytes. Pointers never pass `end`: a size is compared before it is added to
 * a pointer. Nothing is allocated. */
#ifndef STRATALOG_RECORD_FRAME_H
#define STRATALOG_RECORD_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

enum { MIN_RECORD_BYTES = 7, MIN_HEADER_BYTES = 2, MAX_VARINT_BYTES = 5, MAX_VARLONG_BYTES = 10 };

typedef struct {
    const uint8_t *start;
    const uint8_t *body; /* after the size field */
    const uint8_t *end;
    const uint8_t *offset_delta_field;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size;   /* -1 for null */
    int32_t value_size; /* -1 for null */
} record_frame;

typedef struct {
    const uint8_t *name;
    const uint8_t *value;
    int32_t name_size;
    int32_t value_size; /* -1 for null */
} header_frame;

/* A walk over records_count records of a payload. */
typedef struct {
    const uint8_t *start;
    const uint8_t *position;
    const uint8_t *end;
    int64_t left_count;
    int32_t last_offset_delta;
} record_walk;

static inline const uint8_t *read_unsigned(const uint8_t *position, const uint8_t *end, int max_bytes,
                                           uint64_t *number)
{
    uint64_t result = 0;
    ptrdiff_t available = end - position;
    int limit = available < max_bytes ? (int)available : max_bytes;
    for (int index = 0; index < limit; index++) {
        uint64_t byte = position[index];
        /* The tenth byte of 64 bits has room for one bit. */
        if (index == MAX_VARLONG_BYTES - 1 && byte > 1)
            return NULL;
        result |= (byte & 0x7f) << (7 * index);
        if (byte < 0x80) {
            *number = result;
            return position + index + 1;
        }
    }
    return NULL;
}

/* Each reader returns the position after the bytes that it read, or NULL if they are malformed. */
static inline const uint8_t *read_varint(const uint8_t *position, const uint8_t *end, int32_t *number)
{
    uint64_t zigzag;
    if (LIKELY(position < end && *position < 0x80)) {
        zigzag = *position++;
    } else if (LIKELY(end - position >= 2 && position[1] < 0x80)) {
        zigzag = (position[0] & 0x7f) | (uint64_t)position[1] << 7;
        position += 2;
    } else {
        position = read_unsigned(position, end, MAX_VARINT_BYTES, &zigzag);
        if (position == NULL || zigzag > UINT32_MAX)
            return NULL;
    }
    *number = (int32_t)((uint32_t)(zigzag >> 1) ^ (uint32_t) - (int32_t)(zigzag & 1));
    return position;
}

static inline const uint8_t *read_varlong(const uint8_t *position, const uint8_t *end, int64_t *number)
{
    uint64_t zigzag;
    if (LIKELY(position < end && *position < 0x80)) {
        zigzag = *position++;
    } else if (LIKELY(end - position >= 2 && position[1] < 0x80)) {
        zigzag = (position[0] & 0x7f) | (uint64_t)position[1] << 7;
        position += 2;
    } else {
        position = read_unsigned(position, end, MAX_VARLONG_BYTES, &zigzag);
        if (position == NULL)
            return NULL;
    }
    *number = (int64_t)((zigzag >> 1) ^ (uint64_t) - (int64_t)(zigzag & 1));
    return position;
}

/* Writes the shortest form; returns the position after it. */
static inline uint8_t *write_varlong(uint8_t *target, int64_t number)
{
    uint64_t rest = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    while (rest > 0x7f) {
        *target++ = (uint8_t)(rest | 0x80);
        rest >>= 7;
    }
    *target++ = (uint8_t)rest;
    return target;
}

static inline ptrdiff_t varlong_size(int64_t number)
{
    uint64_t rest = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    return rest == 0 ? 1 : (70 - __builtin_clzll(rest)) / 7;
}

/* The bytes of a part with its size; -1 is null. */
static inline int64_t part_bytes(int64_t size)
{
    return varlong_size(size) + (size < 0 ? 0 : size);
}

static inline uint8_t *write_part(uint8_t *target, const uint8_t *part, int64_t size)
{
    target = write_varlong(target, size);
    if (size <= 0)
        return target;
    memcpy(target, part, (size_t)size);
    return target + size;
}

/* Reads bytes that follow their size; -1 is null, a lower size is corruption. */
static inline const uint8_t *read_sized(const uint8_t *position, const uint8_t *end, const uint8_t **part,
                                        int32_t *size)
{
    position = read_varint(position, end, size);
    if (position == NULL || *size < -1 || *size > end - position)
        return NULL;
    *part = position;
    return *size < 0 ? position : position + *size;
}

static inline bool walk_begin(record_walk *walk, const uint8_t *payload, size_t size, int64_t records_count)
{
    walk->start = payload;
    walk->position = payload;
    walk->end = payload + size;
    walk->left_count = records_count;
    walk->last_offset_delta = -1;
    return records_count >= 0 && (uint64_t)records_count <= size / MIN_RECORD_BYTES;
}

/* Reads the next record and proves it up to its value; false if its frame is bad. */
static inline bool walk_next(record_walk *walk, record_frame *frame)
{
    int32_t size;
    const uint8_t *position = read_varint(walk->position, walk->end, &size);
    /* At least one byte of attributes, which no code uses. */
    if (UNLIKELY(position == NULL || size < 1 || size > walk->end - position))
        return false;
    frame->start = walk->position;
    frame->body = position;
    frame->end = position + size;
    position = read_varlong(position + 1, frame->end, &frame->timestamp_delta);
    if (UNLIKELY(position == NULL))
        return false;
    frame->offset_delta_field = position;
    position = read_varint(position, frame->end, &frame->offset_delta);
    if (UNLIKELY(position == NULL || frame->offset_delta <= walk->last_offset_delta))
        return false;
    position = read_sized(position, frame->end, &frame->key, &frame->key_size);
    if (UNLIKELY(position == NULL))
        return false;
    position = read_sized(position, frame->end, &frame->value, &frame->value_size);
    if (UNLIKELY(position == NULL || position >= frame->end))
        return false;
    frame->headers = position;
    walk->last_offset_delta = frame->offset_delta;
    walk->position = frame->end;
    walk->left_count--;
    return true;
}

/* Writes a record with another timestamp delta and size; the rest is unchanged. NULL if it becomes too large. */
static inline uint8_t *copy_shifted(const record_frame *frame, int64_t timestamp_delta, uint8_t *target)
{
    ptrdiff_t tail_bytes = frame->end - frame->offset_delta_field;
    ptrdiff_t record_size = 1 + varlong_size(timestamp_delta) + tail_bytes;
    if (record_size > INT32_MAX)
        return NULL;
    target = write_varlong(target, record_size);
    *target++ = *frame->body;
    target = write_varlong(target, timestamp_delta);
    memcpy(target, frame->offset_delta_field, (size_t)tail_bytes);
    return target + tail_bytes;
}

/* Returns whether all records were seen and every byte was used. */
static inline bool walk_end(const record_walk *walk)
{
    return walk->left_count == 0 && walk->position == walk->end;
}

/* The number of a record's headers, negative if it is invalid; sets `*position` after the count. */
static inline int32_t headers_begin(const record_frame *frame, const uint8_t **position)
{
    int32_t count;
    *position = read_varint(frame->headers, frame->end, &count);
    if (*position == NULL || count < 0 || count > (frame->end - *position) / MIN_HEADER_BYTES)
        return -1;
    return count;
}

static inline bool headers_next(const record_frame *frame, const uint8_t **position, header_frame *header)
{
    *position = read_sized(*position, frame->end, &header->name, &header->name_size);
    if (*position == NULL || header->name_size < 0)
        return false;
    *position = read_sized(*position, frame->end, &header->value, &header->value_size);
    return *position != NULL;
}

/* Whether the headers fill the rest of the record, with names in UTF-8. */
bool kernel_has_sound_headers(const record_frame *frame);

#endif
