# The declarations of record_frame.h and kernels.h that _kernels.pyx uses.

cdef extern from "record_frame.h" nogil:
    enum:
        MIN_RECORD_BYTES

    ctypedef struct record_frame:
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        const uint8_t *end
        int64_t timestamp_delta
        int32_t offset_delta
        int32_t key_size
        int32_t value_size

    ctypedef struct header_frame:
        const uint8_t *name
        const uint8_t *value
        int32_t name_size
        int32_t value_size

    ctypedef struct record_walk:
        pass

    bint walk_begin(record_walk *walk, const uint8_t *payload, size_t size, int64_t records_count)
    bint walk_next(record_walk *walk, record_frame *frame)
    bint walk_end(const record_walk *walk)
    const uint8_t *read_varint(const uint8_t *position, const uint8_t *end, int32_t *number)
    int32_t headers_begin(const record_frame *frame, const uint8_t **position)
    bint headers_next(const record_frame *frame, const uint8_t **position, header_frame *header)
    bint kernel_has_sound_headers(const record_frame *frame)
    uint8_t *write_varlong(uint8_t *target, int64_t number)
    ptrdiff_t varlong_size(int64_t number)
    bint add_overflows "__builtin_add_overflow"(int64_t left, int64_t right, int64_t *result)
    bint subtract_overflows "__builtin_sub_overflow"(int64_t left, int64_t right, int64_t *result)


cdef extern from "versions.h" nogil:
    ctypedef struct batch_versions:
        const uint8_t *header
        size_t header_size
        int64_t base_timestamp
        int64_t append_time
        bint has_append_time


cdef extern from "kernels.h" nogil:
    ctypedef enum kernel_status:
        KERNEL_OK
        KERNEL_BAD_FRAME
        KERNEL_BAD_HEADER
        KERNEL_BAD_OFFSET
        KERNEL_BAD_TIMESTAMP
        KERNEL_BAD_ORDER
        KERNEL_BAD_ORDINAL
        KERNEL_BAD_TOMBSTONE
        KERNEL_NO_MEMORY

    enum:
        HASH_KEY_BYTES
        COPY_GROWTH_BYTES

    ctypedef struct records_summary:
        int64_t tombstone_count
        int64_t null_key_count
        int64_t min_timestamp_delta
        int64_t max_timestamp_delta
        int64_t first_offset_delta
        int64_t last_offset_delta
        int64_t max_timestamp_offset_delta
        bint is_dense

    ctypedef struct key_columns:
        uint64_t *hash_high
        uint64_t *hash_low
        int64_t *version
        uint32_t *ordinal
        uint8_t *tombstone
        size_t count

    ctypedef struct merge_window:
        const uint8_t *hash_high
        const uint8_t *hash_low
        const uint8_t *ordinal
        const uint8_t *version
        size_t count
        uint8_t *survivors
        size_t survivors_bytes
        size_t consumed

    ctypedef struct key_stream:
        const uint8_t *data
        size_t size
        uint64_t entry_count
        uint64_t record_count
        uint32_t crc
        uint8_t *survivors
        size_t survivors_bytes

    ctypedef struct key_block:
        const uint8_t *hash_high
        const uint8_t *hash_low
        const uint8_t *ordinal
        const uint8_t *tombstone
        const uint8_t *version
        size_t count
        uint64_t limit_high
        uint64_t limit_low

    ctypedef struct ranked_survivors:
        const uint8_t *survivors
        size_t survivors_bytes
        const uint8_t *ranks
        size_t ranks_count
        uint64_t first_rank

    ctypedef struct copy_rule:
        int64_t first_offset_delta
        int64_t end_offset_delta
        int64_t timestamp_shift
        bint drop_tombstones

    ctypedef struct copy_result:
        size_t size
        int64_t count
        int64_t first_delta
        int64_t last_delta
        int64_t max_timestamp_delta
        int64_t tombstone_count
        int64_t dropped_tombstone_count

    ctypedef struct row_rule:
        int64_t base_offset
        int64_t base_timestamp
        int64_t first_offset
        int64_t end_offset
        int64_t append_time_ms
        bint has_append_time
        bint skips_keys
        bint skips_values
        bint skips_headers

    ctypedef struct row_sizes:
        size_t row_count
        size_t header_count
        size_t key_bytes
        size_t value_bytes
        size_t header_name_bytes
        size_t header_value_bytes

    ctypedef struct row_columns:
        int64_t *offset
        int64_t *timestamp_ms
        int32_t *key_offsets
        int32_t *value_offsets
        int32_t *header_list_offsets
        int32_t *header_name_offsets
        int32_t *header_value_offsets
        uint8_t *key_data
        uint8_t *key_validity
        uint8_t *value_data
        uint8_t *value_validity
        uint8_t *header_name_data
        uint8_t *header_value_data
        uint8_t *header_value_validity
        row_sizes held

    ctypedef struct column_part:
        const int32_t *offsets
        const uint8_t *data
        const uint8_t *validity
        size_t size

    ctypedef struct encode_columns_t "encode_columns":
        const int64_t *timestamp_ms
        const int32_t *header_list_offsets
        column_part key
        column_part value
        column_part header_name
        column_part header_value
        size_t header_count

    kernel_status kernel_scan(const uint8_t *payload, size_t size, int64_t records_count, int64_t last_offset_delta,
                              records_summary *summary)
    void kernel_siphash128(const uint8_t *key16, const uint8_t *data, size_t size, uint64_t *high, uint64_t *low)
    kernel_status kernel_hash_keys(const uint8_t *payload, size_t size, int64_t records_count,
                                   const uint8_t *hash_key16, uint32_t first_ordinal,
                                   const batch_versions *versions, key_columns *columns)
    kernel_status kernel_sort(const key_columns *input, key_columns *output)
    kernel_status kernel_check_keys(const uint8_t *hash_high, const uint8_t *hash_low, const uint8_t *ordinal,
                                    const uint8_t *tombstone, size_t count, uint64_t record_count)
    kernel_status kernel_merge(merge_window *windows, size_t windows_count, uint64_t limit_high, uint64_t limit_low)
    kernel_status kernel_merge_versions(merge_window *windows, size_t windows_count, uint64_t limit_high,
                                        uint64_t limit_low)
    size_t kernel_count_blocks(const uint8_t *data, size_t size)
    kernel_status kernel_merge_streams(const key_stream *streams, size_t streams_count, merge_window *windows,
                                       size_t room)
    kernel_status kernel_copy(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *survivors,
                              uint64_t first_ordinal, const copy_rule *rule, uint8_t *target, copy_result *result)
    kernel_status kernel_clear_dropped(const uint8_t *payload, size_t size, int64_t records_count,
                                       uint8_t *survivors, uint64_t first_ordinal, const copy_rule *rule)
    kernel_status kernel_translate(const key_block *block, const ranked_survivors *kept, key_columns *columns,
                                   size_t *taken)
    kernel_status kernel_translate_stream(const uint8_t *data, size_t size, const ranked_survivors *kept,
                                          key_columns *columns)
    kernel_status kernel_size_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                                   row_sizes *sizes)
    kernel_status kernel_fill_rows(const uint8_t *payload, size_t size, int64_t records_count, const row_rule *rule,
                                   const row_sizes *sizes, row_columns *columns)
    size_t kernel_encode_room(const encode_columns_t *columns, size_t first_row, size_t row_count)
    kernel_status kernel_encode_rows(const encode_columns_t *columns, size_t first_row, size_t row_count,
                                     int64_t base_timestamp, uint8_t *target, size_t room, size_t *size)
    uint32_t kernel_murmur2(const uint8_t *key, size_t size)
    uint32_t kernel_key_partition(const uint8_t *key, size_t size, uint32_t partition_count)
