/* The batches that a compaction keeps, one after the other. Unchanged neighbours are copied at once, or not at all. */
#ifndef STRATALOG_BATCH_OUTPUT_H
#define STRATALOG_BATCH_OUTPUT_H

#include "batch_frame.h"

typedef struct {
    const uint8_t *data; /* the batches to choose from */
    uint8_t *target;
    size_t size;                           /* bytes in the target */
    size_t unchanged_begin, unchanged_end; /* in the data: batches that follow those in the target */
} batch_output;

/* Brings the unchanged batches into the target. */
static inline void copy_unchanged(batch_output *output)
{
    const size_t size = output->unchanged_end - output->unchanged_begin;
    memcpy(output->target + output->size, output->data + output->unchanged_begin, size);
    output->size += size;
    output->unchanged_begin = output->unchanged_end = 0;
}

/* Keeps a batch as it is. */
static inline void keep_unchanged(batch_output *output, const batch_frame *batch)
{
    const size_t position = (size_t)(batch->start - output->data);
    if (output->unchanged_end != position || output->unchanged_begin == output->unchanged_end) {
        copy_unchanged(output);
        output->unchanged_begin = position;
    }
    output->unchanged_end = position + batch->size;
}

/* If all is kept unchanged, nothing has to be copied. */
static inline void finish_output(batch_output *output)
{
    if (output->size > 0)
        copy_unchanged(output);
}

/* The fields of a rebuilt batch that differ from those of the original. */
typedef struct {
    size_t records_size;
    int64_t records_count;
    uint16_t attributes;
    int64_t base_timestamp;
    int64_t max_timestamp;
} rebuilt_fields;

/* The place for the records of a rebuilt batch. Call copy_unchanged before. */
static inline uint8_t *rebuilt_records(const batch_output *output)
{
    return output->target + output->size + HEADER_BYTES;
}

/* The highest timestamp of the records that stay: `max_delta` above `base_timestamp`. The time of an append stays as it
 * is. False if it is out of range. */
static inline bool rebuilt_max_timestamp(const batch_frame *batch, int64_t base_timestamp, int64_t max_delta,
                                         int64_t *max_timestamp)
{
    *max_timestamp = batch->max_timestamp;
    return batch->attributes & TIMESTAMP_TYPE_BIT ||
           !__builtin_add_overflow(base_timestamp, max_delta, max_timestamp);
}

/* Writes the header before the records, which are in their place already; false if they are too large. */
static inline bool finish_rebuilt(batch_output *output, const batch_frame *batch, const rebuilt_fields *fields,
                                  uint32_t *crc)
{
    uint8_t *start = output->target + output->size;
    const size_t size = HEADER_BYTES + fields->records_size;
    if (size - LOG_OVERHEAD_BYTES > INT32_MAX)
        return false;
    memcpy(start, batch->start, HEADER_BYTES);
    write_be32(start + BATCH_LENGTH_POSITION, (uint32_t)(size - LOG_OVERHEAD_BYTES));
    write_be16(start + ATTRIBUTES_POSITION, fields->attributes);
    write_be64(start + BASE_TIMESTAMP_POSITION, (uint64_t)fields->base_timestamp);
    write_be64(start + MAX_TIMESTAMP_POSITION, (uint64_t)fields->max_timestamp);
    write_be32(start + RECORDS_COUNT_POSITION, (uint32_t)fields->records_count);
    *crc = kernel_crc32c(0, start + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION);
    write_be32(start + CRC_POSITION, *crc);
    output->size += size;
    return true;
}

#endif
