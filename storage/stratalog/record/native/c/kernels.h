/* The kernels that work without the interpreter lock. kernels.py documents them.
 *
 * All are safe on any bytes and re-entrant; none recurses, and only the sort and the merge of versions allocate, in
 * proportion to the number of their entries. Columns of a merge are little-endian and need not be aligned; the module refuses to be imported
 * on machines of another byte order, where the pure-Python kernels serve. */
#ifndef STRATALOG_KERNELS_H
#define STRATALOG_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    KERNEL_OK = 0,
    KERNEL_BAD_FRAME,     /* a record or a header has a bad frame */
    KERNEL_BAD_HEADER,    /* a header's name is not UTF-8 */
    KERNEL_BAD_OFFSET,    /* an offset is out of range */
    KERNEL_BAD_TIMESTAMP, /* a timestamp is out of range */
    KERNEL_BAD_ORDER,     /* a key stream is not sorted */
    KERNEL_BAD_ORDINAL,   /* a key stream points behind its slice */
    KERNEL_BAD_TOMBSTONE, /* a tombstone bit is no bit */
    KERNEL_NO_MEMORY,
} kernel_status;

enum { HASH_KEY_BYTES = 16, COPY_GROWTH_BYTES = 13 };

typedef struct {
    int64_t tombstone_count;
    int64_t null_key_count;
    int64_t min_timestamp_delta;
    int64_t max_timestamp_delta;
    int64_t first_offset_delta; /* -1 without records, like the next two */
    int64_t last_offset_delta;
    int64_t max_timestamp_offset_delta; /* of the first record with the highest timestamp */
    bool is_dense;
} records_summary;

kernel_status kernel_scan(const uint8_t *payload, size_t size, int64_t records_count, int64_t last_offset_delta,
                          records_summary *summary);

/* The columns of key entries, each with room for `records_count` more. */
typedef struct {
    uint64_t *hash_high;
    uint64_t *hash_low;
    int64_t *version; /* NULL without versions */
    uint32_t *ordinal;
    uint8_t *tombstone;
    size_t count;
} key_columns;

typedef struct batch_versions batch_versions; /* in versions.h */

void kernel_siphash128(const uint8_t *key16, const uint8_t *data, size_t size, uint64_t *high, uint64_t *low);

/* The same for many. */
void kernel_siphash128_each(const uint8_t *key16, const uint8_t *const *data, const size_t *sizes, size_t count,
                            uint64_t *high, uint64_t *low);

/* `versions`: NULL if the columns have none. */
kernel_status kernel_hash_keys(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *hash_key16,
                               uint32_t first_ordinal, const batch_versions *versions, key_columns *columns);

/* Sorts `input` into `output`, whose columns have as much room; sets its count. Both have versions, or neither. */
kernel_status kernel_sort(const key_columns *input, key_columns *output);

typedef struct {
    const uint8_t *hash_high;
    const uint8_t *hash_low;
    const uint8_t *ordinal;
    const uint8_t *version; /* NULL without versions */
    size_t count;
    uint8_t *survivors;
    size_t survivors_bytes;
    size_t consumed;    /* 0 before, the result afterwards */
    size_t range_start; /* used by the merge */
} merge_window;

/* Proves `count` entries: hashes ascend strictly, ordinals are below `record_count`, tombstones are bits. */
kernel_status kernel_check_keys(const uint8_t *hash_high, const uint8_t *hash_low, const uint8_t *ordinal,
                                const uint8_t *tombstone, size_t count, uint64_t record_count);

kernel_status kernel_merge(merge_window *windows, size_t windows_count, uint64_t limit_high, uint64_t limit_low);

/* The same for windows that all have versions: the highest one of a hash wins, and the newest of these. */
kernel_status kernel_merge_versions(merge_window *windows, size_t windows_count, uint64_t limit_high,
                                    uint64_t limit_low);

/* A whole key stream, and the facts that must be true of it. */
typedef struct {
    const uint8_t *data;
    size_t size;
    uint64_t entry_count;
    uint64_t record_count;
    uint32_t crc;
    uint8_t *survivors; /* zeros, a bit for each record */
    size_t survivors_bytes;
} key_stream;

/* The number of blocks of a stream by their sizes, which are not proved. */
size_t kernel_count_blocks(const uint8_t *data, size_t size);

/* Proves the streams, oldest first, and merges them. `windows` has room for all of their blocks. Any status but
 * KERNEL_OK means that a stream is not sound or has an unknown form; do not use the bits then. */
kernel_status kernel_merge_streams(const key_stream *streams, size_t streams_count, merge_window *windows, size_t room);

/* The bytes that an encoded key stream of so many entries takes at most. */
size_t kernel_keys_room(size_t count);

/* Encodes sorted entries as a key stream; returns its size. */
size_t kernel_encode_stream(const key_columns *entries, uint8_t *target);

/* Sorted entries of a key stream; those up to the limit are taken. */
typedef struct {
    const uint8_t *hash_high;
    const uint8_t *hash_low;
    const uint8_t *ordinal;
    const uint8_t *tombstone;
    const uint8_t *version; /* NULL without versions; the columns have some if the block has */
    size_t count;
    uint64_t limit_high;
    uint64_t limit_low;
} key_block;

/* The records of a slice that stay. */
typedef struct {
    const uint8_t *survivors; /* a bit for each record; NULL if all stay */
    size_t survivors_bytes;
    const uint8_t *ranks; /* for each 512 bits a number of 32 bits: how many are set before them */
    size_t ranks_count;
    uint64_t first_rank; /* the ordinal of the first one in the output */
} ranked_survivors;

/* Appends the entries of records that stay, with their ordinals in the output. There is room for the whole block. */
kernel_status kernel_translate(const key_block *block, const ranked_survivors *kept, key_columns *columns, size_t *taken);

/* The same for all blocks of a stream without versions that was proved before. There is room for one entry for each 21 bytes. */
kernel_status kernel_translate_stream(const uint8_t *data, size_t size, const ranked_survivors *kept, key_columns *columns);

typedef struct {
    int64_t first_offset_delta;
    int64_t end_offset_delta;
    int64_t timestamp_shift;
    bool drop_tombstones;
} copy_rule;

typedef struct {
    size_t size;
    int64_t count;
    int64_t first_delta;
    int64_t last_delta;
    int64_t max_timestamp_delta;
    int64_t tombstone_count;
    int64_t dropped_tombstone_count;
} copy_result;

/* `survivors` has a bit for each record from `first_ordinal` on; the caller has checked that. `target` has room for
 * the payload, and with a timestamp shift for COPY_GROWTH_BYTES more a record. */
kernel_status kernel_copy(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *survivors,
                          uint64_t first_ordinal, const copy_rule *rule, uint8_t *target, copy_result *result);

/* Clears the bits of the records that a copy by this rule has left out. */
kernel_status kernel_clear_dropped(const uint8_t *payload, size_t size, int64_t records_count, uint8_t *survivors,
                                   uint64_t first_ordinal, const copy_rule *rule);

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t first_offset;
    int64_t end_offset;
    int64_t append_time_ms;
    bool has_append_time;
    bool skips_keys; /* they keep their validity and lose their bytes */
    bool skips_values;
    bool skips_headers; /* no record has any */
} row_rule;

/* The room that the rows of a payload take. */
typedef struct {
    size_t row_count;
    size_t header_count;
    size_t key_bytes;
    size_t value_bytes;
    size_t header_name_bytes;
    size_t header_value_bytes;
} row_sizes;

/* Memory of the sizes in row_sizes. Offsets are positions in the data, after the former contents of the columns. */
typedef struct {
    int64_t *offset;
    int64_t *timestamp_ms;
    int32_t *key_offsets;
    int32_t *value_offsets;
    int32_t *header_list_offsets;
    int32_t *header_name_offsets;
    int32_t *header_value_offsets;
    uint8_t *key_data;
    uint8_t *key_validity;
    uint8_t *value_data;
    uint8_t *value_validity;
    uint8_t *header_name_data;
    uint8_t *header_value_data;
    uint8_t *header_value_validity;
    row_sizes held; /* sizes of the columns' contents: before, and afterwards */
} row_columns;

/* Proves the whole payload and sizes the rows that `rule` takes. */
kernel_status kernel_size_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                               row_sizes *sizes);

/* Fills the memory, whose size is `sizes`. Fails only if the payload has changed since kernel_size_rows measured it. */
kernel_status kernel_fill_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                               const row_sizes *sizes, row_columns *columns);

/* A column of variable size to be read: it has one offset more than rows. */
typedef struct {
    const int32_t *offsets;
    const uint8_t *data;
    const uint8_t *validity; /* NULL if there are no nulls */
    size_t size;             /* of the data */
} column_part;

/* Columns; the numbers of rows and headers follow from the numbers of offsets. */
typedef struct {
    const int64_t *timestamp_ms;
    const int32_t *header_list_offsets;
    column_part key;
    column_part value;
    column_part header_name;
    column_part header_value;
    size_t header_count;
} encode_columns;

/* The most room that rows need, if their offsets ascend. */
size_t kernel_encode_room(const encode_columns *columns, size_t first_row, size_t row_count);

/* Writes rows as records with the offset deltas 0, 1, 2 and so on; sets the written size. */
kernel_status kernel_encode_rows(const encode_columns *columns, size_t first_row, size_t row_count,
                                 int64_t base_timestamp, uint8_t *target, size_t room, size_t *size);

uint32_t kernel_murmur2(const uint8_t *key, size_t size);

/* The partition of a key by the rule of Kafka's clients: murmur2 without its sign bit, modulo the count. */
static inline uint32_t kernel_key_partition(const uint8_t *key, size_t size, uint32_t partition_count)
{
    return (kernel_murmur2(key, size) & 0x7fffffff) % partition_count;
}

#endif
