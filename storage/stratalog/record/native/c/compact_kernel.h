/* The compaction of a small run of slices at once. batch_kernels.py documents it. */
#ifndef STRATALOG_COMPACT_KERNEL_H
#define STRATALOG_COMPACT_KERNEL_H

#include "batch_kernels.h"

/* A slice of which records stay, and room for what follows from its bits. */
typedef struct {
    const uint8_t *data;
    size_t size;
    const uint8_t *keys; /* its key stream, proved before; its checksum tells whether these are the same bytes */
    size_t keys_size;
    uint32_t keys_crc;
    uint8_t *survivors; /* a bit for each record; those of records that are dropped become 0 */
    size_t survivors_bytes;
    uint32_t *ranks; /* a number for each 512 bits */
    uint64_t record_count;
    uint32_t crc;
    filter_rule rule;
} compacted_slice;

/* Memory of the output. `target` has room for the data of all slices, and where a rule may set a horizon for
 * COPY_GROWTH_BYTES more a record. The columns of the index have room for an interval for each HEADER_BYTES of data
 * or each interval, whichever is larger, and one more; those of `translated` and `sorted` for an entry for each 21 bytes
 * of key streams, and `keys` for the blocks of so many. */
typedef struct {
    uint8_t *target;
    int64_t *positions;
    int64_t *base_offsets;
    int64_t *max_timestamps;
    key_columns translated;
    key_columns sorted;
    uint8_t *keys;
} compact_memory;

typedef struct {
    size_t size;
    size_t interval_count;
    size_t keys_size;
    size_t keys_count;
    int64_t records_count;
    int64_t first_offset; /* -1 without records, like the next one, and the timestamps and their offset */
    int64_t last_offset;
    int64_t dropped_tombstone_count;
    int64_t tombstone_count;
    int64_t min_timestamp;
    int64_t max_timestamp;
    int64_t max_timestamp_offset;
    int64_t next_offset;
    int64_t last_base_offset;
    int64_t delete_horizon_ms;
    int32_t leader_epoch;
    uint32_t last_crc;
    uint32_t crc;
    uint32_t keys_crc;
    uint32_t fingerprint;
    bool has_delete_horizon;
} compact_result;

/* Compacts the slices, oldest first, into one that begins at `base_offset`. False if any of them is not sound, not plain,
 * or not what its bits say: Python takes them then. */
bool kernel_compact(compacted_slice *slices, size_t count, int64_t base_offset, size_t interval_bytes,
                    compact_memory *memory, compact_result *result);

#endif
