/* The kernels that walk rows of batches without the interpreter lock. batch_kernels.py documents them.
 *
 * All are safe on any bytes and re-entrant. They take batches one after the other and stop before the first that is not
 * sound; those that look at records stop before the first that is not plain. Python handles such a batch by itself. */
#ifndef STRATALOG_BATCH_KERNELS_H
#define STRATALOG_BATCH_KERNELS_H

#include "batch_output.h"
#include "kernels.h"
#include "transactions.h"

/* The size of the whole batches at the beginning of `data`, and their number of records. */
size_t kernel_whole_batches(const uint8_t *data, size_t size, int64_t *records_count);

/* The size of the plain batches at the beginning of `data`. */
size_t kernel_plain_batches(const uint8_t *data, size_t size);

/* The size of the bare batches at the beginning of `data`, and how many of them are data of transactions. */
size_t kernel_bare_batches(const uint8_t *data, size_t size, size_t *data_count);

/* The size of the batches at the beginning of `data` with true checksums that end at or below `end_offset`; the offset
 * after them, -1 without batches. */
size_t kernel_sound_batches(const uint8_t *data, size_t size, int64_t end_offset, int64_t first_offset,
                            int32_t leader_epoch, int64_t *next_offset);

/* The size of the batches that end at or below `offset` and follow `next_offset` and `leader_epoch` in order; moves
 * both on. Looks at headers only; the last batch may end beyond `size`. */
size_t kernel_skip_batches(const uint8_t *data, size_t size, int64_t offset, int64_t *next_offset,
                           int32_t *leader_epoch);

typedef struct {
    size_t position;
    size_t size;
    int64_t base_offset;
    int64_t last_offset;
    int64_t max_timestamp;
    int32_t leader_epoch;
    bool is_noted;
} batch_row;

/* Walks batches with true checksums, offsets that ascend from `next_offset` on and leader epochs that do not descend
 * from `leader_epoch` on, until there is no room for another row; returns the number of rows. */
size_t kernel_walk_batches(const uint8_t *data, size_t size, int64_t next_offset, int32_t leader_epoch,
                           batch_row *rows, size_t room);

/* Continues the CRC-32C of the fields that the checksum of a batch leaves out: base offset and leader epoch. */
uint32_t kernel_header_crc(uint32_t crc, int64_t base_offset, int32_t leader_epoch);

/* The same for all whole batches at the beginning of `data`. Looks at headers only. */
uint32_t kernel_headers_crc(const uint8_t *data, size_t size, uint32_t crc);

/* Continues the CRC-32C of `data`, batches whose own checksums are true: the records of large ones are not summed. */
uint32_t kernel_batches_crc(const uint8_t *data, size_t size, uint32_t crc);

/* The number of entries whose key is at most `limit`, which is not negative. The `count` entries ascend by a key of 4 or
 * 8 bytes at `key_position`, big-endian. */
size_t kernel_rank_entries(const uint8_t *entries, size_t count, size_t entry_size, size_t key_position,
                           size_t key_size, uint64_t limit);

typedef struct {
    size_t end_position; /* 0 if the first batch was not taken; nothing else is set then */
    int64_t records_count;
    int64_t tombstone_count;
    int64_t null_key_count;
    int64_t marker_count;
    int64_t first_base_offset;
    int64_t last_base_offset;
    int64_t next_offset;
    int64_t first_offset;
    int64_t last_offset;
    int64_t min_timestamp;
    int64_t max_timestamp;
    int64_t max_timestamp_offset;
    int64_t delete_horizon_ms;
    int32_t leader_epoch;
    uint32_t last_crc;
    uint32_t fingerprint; /* continued from what it was before */
    bool has_delete_horizon;
    bool is_transactional; /* some are part of a transaction */
} scan_result;

/* Proves the bare batches that begin in the first `begin_limit` bytes. */
void kernel_scan_batches(const uint8_t *data, size_t size, size_t begin_limit, scan_result *result);

typedef struct {
    int64_t first_offset;
    int64_t end_offset;
    int64_t drop_until_ms;
    int64_t stamp_ms;
    int64_t settled_end_offset;
    aborted_spans aborted;
    bool has_tombstones;
    bool may_drop;
    bool may_stamp;
} filter_rule;

typedef struct {
    batch_output output;
    size_t end_position;
    uint64_t next_ordinal;
    int64_t records_count;
    int64_t first_offset;
    int64_t last_offset;
    int64_t dropped_tombstone_count;
    uint32_t fingerprint; /* continued from what it was before */
} filter_result;

/* Takes plain batches, and with `open` also data of transactions, and markers of commits that stay; notes the data in
 * `open`, up to its room.
 * `survivors` has `bits_count` bits, or is NULL if all records are kept; the first record's is `first_ordinal`.
 * `target` has room for `size` bytes, and if the rule may set a horizon, for COPY_GROWTH_BYTES more a record. */
void kernel_filter_batches(const uint8_t *data, size_t size, uint8_t *survivors, uint64_t bits_count,
                           uint64_t first_ordinal, const filter_rule *rule, open_transactions *open, uint8_t *target,
                           filter_result *result);

/* Appends the key entries of plain batches. Fails if they have more records than the `room` of the columns. `rule`: the
 * times in it do not count; NULL if the columns have no versions. */
kernel_status kernel_hash_batches(const uint8_t *data, size_t size, const uint8_t *hash_key16, uint32_t first_ordinal,
                                  size_t room, const batch_versions *rule, key_columns *columns);

#endif
