# The compaction of a small run of slices. A part of _kernels.pyx.

cdef extern from "kernels.h" nogil:
    size_t kernel_keys_room(size_t count)


cdef extern from "compact_kernel.h" nogil:
    ctypedef struct compacted_slice:
        const uint8_t *data
        size_t size
        const uint8_t *keys
        size_t keys_size
        uint8_t *survivors
        size_t survivors_bytes
        uint32_t *ranks
        uint64_t record_count
        uint32_t crc
        filter_rule rule

    ctypedef struct compact_memory:
        uint8_t *target
        int64_t *positions
        int64_t *base_offsets
        int64_t *max_timestamps
        key_columns translated
        key_columns sorted
        uint8_t *keys

    ctypedef struct compact_result:
        size_t size
        size_t interval_count
        size_t keys_size
        size_t keys_count
        int64_t records_count
        int64_t first_offset
        int64_t last_offset
        int64_t dropped_tombstone_count
        int64_t tombstone_count
        int64_t min_timestamp
        int64_t max_timestamp
        int64_t max_timestamp_offset
        int64_t next_offset
        int64_t last_base_offset
        int64_t delete_horizon_ms
        int32_t leader_epoch
        uint32_t last_crc
        uint32_t crc
        uint32_t keys_crc
        uint32_t fingerprint
        bint has_delete_horizon

    bint kernel_compact(compacted_slice *slices, size_t count, int64_t base_offset, size_t interval_bytes,
                        compact_memory *memory, compact_result *result)


cdef enum:
    RANK_BYTES = 64
    KEY_ENTRY_BYTES = 21


cdef size_t place_slice(compacted_slice *place, object each, list exports) except? 0:
    """Fill `place` but for the room of its ranks; returns the bytes that its output may take."""
    cdef Export data, keys, bits
    cdef size_t growth = 0
    source, crc, record_count, key_stream, survivors, rule = <tuple> each
    data, keys, bits = export(source), export(key_stream), export(survivors, PyBUF_WRITABLE)
    exports += (data, keys, bits)
    place.data, place.size, place.crc = data.data, data.size, crc
    place.keys, place.keys_size = keys.data, keys.size
    place.survivors, place.survivors_bytes, place.record_count = bits.data, bits.size, record_count
    assert place.record_count <= 8 * <uint64_t> bits.size, "each record has a bit"
    exports.append(read_rule(&place.rule, rule))
    if place.rule.may_stamp and place.rule.has_tombstones:
        # A record has a size, so the growth of a plain slice is a multiple of its bytes.
        growth = COPY_GROWTH_BYTES * min(place.record_count, place.size // MIN_RECORD_BYTES)
    return place.size + growth


def compact_slices(slices, int64_t base_offset, size_t interval_bytes):
    """See ``batch_kernels.compact_slices``."""
    cdef size_t index, count = len(slices), target_bytes = 0, ranks_count = 0, keys_count = 0, intervals_count
    cdef Scratch places = scratch((count + 1) * sizeof(compacted_slice))
    cdef Scratch target, index_memory, ranks_memory, keys_memory, translated, ordered
    cdef compacted_slice *place = <compacted_slice *> places.data
    cdef uint32_t *ranks
    cdef compact_memory memory
    cdef compact_result result
    cdef bint is_done
    cdef list exports = []
    assert interval_bytes > 0, "an interval has bytes"
    for index in range(count):
        target_bytes += place_slice(&place[index], slices[index], exports)
        ranks_count += place[index].survivors_bytes // RANK_BYTES + 1
        keys_count += place[index].keys_size // KEY_ENTRY_BYTES + 1
    ranks_memory = scratch(4 * ranks_count + 1)
    ranks = <uint32_t *> ranks_memory.data
    for index in range(count):
        place[index].ranks = ranks
        ranks += place[index].survivors_bytes // RANK_BYTES + 1
    intervals_count = target_bytes // max(interval_bytes, <size_t> HEADER_SIZE) + 1
    index_memory = scratch(3 * 8 * intervals_count)
    memory.positions = <int64_t *> index_memory.data
    memory.base_offsets = memory.positions + intervals_count
    memory.max_timestamps = memory.base_offsets + intervals_count
    target, keys_memory = scratch(target_bytes + 1), scratch(kernel_keys_room(keys_count))
    memory.target, memory.keys = target.data, keys_memory.data
    translated, ordered = place_columns(&memory.translated, keys_count, False), place_columns(&memory.sorted, keys_count, False)
    with nogil:
        is_done = kernel_compact(place, count, base_offset, interval_bytes, &memory, &result)
    if not is_done:
        return None
    return CompactedSlices(
        PyBytes_FromStringAndSize(<char *> memory.target, <Py_ssize_t> result.size),
        result.crc,
        result.fingerprint,
        result.records_count,
        result.first_offset,
        result.last_offset,
        result.dropped_tombstone_count,
        result.tombstone_count,
        result.min_timestamp,
        result.max_timestamp,
        result.max_timestamp_offset,
        result.delete_horizon_ms if result.has_delete_horizon else None,
        result.next_offset,
        result.last_base_offset,
        result.leader_epoch,
        result.last_crc,
        PyBytes_FromStringAndSize(<char *> memory.positions, <Py_ssize_t> (8 * result.interval_count)),
        PyBytes_FromStringAndSize(<char *> memory.base_offsets, <Py_ssize_t> (8 * result.interval_count)),
        PyBytes_FromStringAndSize(<char *> memory.max_timestamps, <Py_ssize_t> (8 * result.interval_count)),
        PyBytes_FromStringAndSize(<char *> memory.keys, <Py_ssize_t> result.keys_size),
        result.keys_count,
        result.keys_crc,
    )
