/* The header of a batch: 61 bytes before the records, big-endian. Twin of header.py. */
#ifndef STRATALOG_BATCH_FRAME_H
#define STRATALOG_BATCH_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crc32c.h"

enum {
    BATCH_LENGTH_POSITION = 8,
    LEADER_EPOCH_POSITION = 12,
    MAGIC_POSITION = 16,
    CRC_POSITION = 17,
    ATTRIBUTES_POSITION = 21,
    LAST_OFFSET_DELTA_POSITION = 23,
    BASE_TIMESTAMP_POSITION = 27,
    MAX_TIMESTAMP_POSITION = 35,
    PRODUCER_ID_POSITION = 43,
    PRODUCER_EPOCH_POSITION = 51,
    RECORDS_COUNT_POSITION = 57,
    HEADER_BYTES = 61,
    /* The bytes before those that the length counts. */
    LOG_OVERHEAD_BYTES = 12,
    MAGIC = 2,
    CODEC_MASK = 0x07,
    MAX_CODEC = 4,
    TIMESTAMP_TYPE_BIT = 0x08,
    TRANSACTIONAL_BIT = 0x10,
    CONTROL_BIT = 0x20,
    DELETE_HORIZON_BIT = 0x40,
};

typedef struct {
    const uint8_t *start;
    size_t size;
    int64_t base_offset;
    int64_t next_offset; /* exclusive end of the offsets that it covers */
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int32_t leader_epoch;
    int32_t last_offset_delta;
    int32_t records_count;
    uint32_t crc;
    uint16_t attributes;
} batch_frame;

static inline uint16_t read_be16(const uint8_t *field)
{
    uint16_t number;
    memcpy(&number, field, sizeof number);
    return __builtin_bswap16(number);
}

static inline uint32_t read_be32(const uint8_t *field)
{
    uint32_t number;
    memcpy(&number, field, sizeof number);
    return __builtin_bswap32(number);
}

static inline uint64_t read_be64(const uint8_t *field)
{
    uint64_t number;
    memcpy(&number, field, sizeof number);
    return __builtin_bswap64(number);
}

static inline void write_be16(uint8_t *field, uint16_t number)
{
    number = __builtin_bswap16(number);
    memcpy(field, &number, sizeof number);
}

static inline void write_be32(uint8_t *field, uint32_t number)
{
    number = __builtin_bswap32(number);
    memcpy(field, &number, sizeof number);
}

static inline void write_be64(uint8_t *field, uint64_t number)
{
    number = __builtin_bswap64(number);
    memcpy(field, &number, sizeof number);
}

/* Reads the header at the beginning of `size` bytes; false if it is invalid. The batch may be longer. */
static inline bool header_at(const uint8_t *data, size_t size, batch_frame *batch)
{
    int32_t batch_length;
    if (size < HEADER_BYTES)
        return false;
    batch_length = (int32_t)read_be32(data + BATCH_LENGTH_POSITION);
    if (batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES)
        return false;
    batch->start = data;
    batch->size = LOG_OVERHEAD_BYTES + (size_t)batch_length;
    batch->base_offset = (int64_t)read_be64(data);
    batch->leader_epoch = (int32_t)read_be32(data + LEADER_EPOCH_POSITION);
    batch->crc = read_be32(data + CRC_POSITION);
    batch->attributes = read_be16(data + ATTRIBUTES_POSITION);
    batch->last_offset_delta = (int32_t)read_be32(data + LAST_OFFSET_DELTA_POSITION);
    batch->base_timestamp = (int64_t)read_be64(data + BASE_TIMESTAMP_POSITION);
    batch->max_timestamp = (int64_t)read_be64(data + MAX_TIMESTAMP_POSITION);
    batch->producer_id = (int64_t)read_be64(data + PRODUCER_ID_POSITION);
    batch->records_count = (int32_t)read_be32(data + RECORDS_COUNT_POSITION);
    if (data[MAGIC_POSITION] != MAGIC || batch->last_offset_delta < 0 || batch->records_count < 0 ||
        batch->records_count > (int64_t)batch->last_offset_delta + 1 || batch->base_offset < 0 ||
        batch->base_offset >= INT64_MAX - batch->last_offset_delta || (batch->attributes & CODEC_MASK) > MAX_CODEC)
        return false;
    batch->next_offset = batch->base_offset + batch->last_offset_delta + 1;
    return true;
}

/* Reads the batch at the beginning of `size` bytes; false if its header is invalid or it is not whole. */
static inline bool batch_at(const uint8_t *data, size_t size, batch_frame *batch)
{
    return header_at(data, size, batch) && batch->size <= size;
}

/* The row kernels take such a batch: neither compressed nor part of a transaction, with at least one record. */
static inline bool is_plain(const batch_frame *batch)
{
    return (batch->attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT)) == 0 && batch->records_count > 0;
}

/* Some row kernels take parts of transactions, too: data, and control batches of producers with transactions. */
static inline bool is_bare(const batch_frame *batch)
{
    return (batch->attributes & CODEC_MASK) == 0 && batch->records_count > 0 &&
           (!(batch->attributes & CONTROL_BIT) || (batch->attributes & TRANSACTIONAL_BIT));
}

static inline bool has_true_crc(const batch_frame *batch)
{
    return kernel_crc32c(0, batch->start + ATTRIBUTES_POSITION, batch->size - ATTRIBUTES_POSITION) == batch->crc;
}

static inline const uint8_t *records_of(const batch_frame *batch)
{
    return batch->start + HEADER_BYTES;
}

static inline size_t records_bytes(const batch_frame *batch)
{
    return batch->size - HEADER_BYTES;
}

#endif
