# The slices of small partitions: their survivors, and their compaction. A part of _kernels.pyx.

cdef extern from "kernels.h" nogil:
    size_t kernel_keys_room(size_t count)


cdef extern from "compact_kernel.h" nogil:
    ctypedef struct compacted_slice:
        const uint8_t *data
        size_t size
        const uint8_t *keys
        size_t keys_size
        uint32_t keys_crc
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
    PLAIN_CODEC = 1
    COMPACTED_WIDTH = 20


@cython.final
cdef class Run:
    """The columns of one run. They stay in place as long as this object lives."""

    cdef tuple names
    cdef Export exported
    cdef Export exported_offsets
    cdef const int64_t *numbers
    cdef const int64_t *base_offsets
    cdef size_t first
    cdef size_t count
    cdef size_t table_count

    cdef int64_t number(self, size_t place, size_t index) noexcept nogil:
        return self.numbers[place * self.table_count + index]

    cdef object name(self, size_t index):
        return <object> PyTuple_GET_ITEM(self.names, <Py_ssize_t> (self.first + index))


cdef Run run_of(object source, size_t width):
    """`width`: the number of columns at the least."""
    cdef Run run = Run.__new__(Run)
    cdef size_t end
    names, base_offsets, numbers, run.first, end = <tuple> source
    run.names, run.exported, run.exported_offsets = names, export_numbers(numbers), export_numbers(base_offsets)
    run.table_count = <size_t> PyTuple_GET_SIZE(run.names)
    assert run.first <= end <= run.table_count, "each run is in its table"
    assert 8 * width * run.table_count <= run.exported.size, "each slice has a number in each column"
    assert 8 * run.table_count == run.exported_offsets.size, "each slice has a base offset"
    run.count = end - run.first
    run.numbers = <const int64_t *> run.exported.data + run.first
    run.base_offsets = <const int64_t *> run.exported_offsets.data + run.first
    return run


cdef size_t width_of(tuple places) except? 0:
    assert min(places) >= 0, "columns are counted from 0"
    return <size_t> max(places) + 1


@cython.final
cdef class Pieces:
    """Parts of objects in memory, by the names of these."""

    cdef dict places
    cdef list exports
    cdef Scratch firsts

    cdef const uint8_t *find(self, object name, int64_t position, int64_t size) except? NULL:
        """These bytes of an object; NULL if they are not here."""
        cdef PyObject *found = PyDict_GetItemWithError(self.places, name)
        cdef Export exported
        cdef int64_t first
        if found == NULL:
            return NULL
        exported = <Export> self.exports[<object> found]
        first = (<int64_t *> self.firsts.data)[<size_t> <object> found]
        if position < first or size < 0 or <size_t> size > exported.size:
            return NULL
        if <uint64_t> position - <uint64_t> first > exported.size - <size_t> size:
            return NULL
        return exported.data + (position - first)


cdef Pieces pieces_of(dict sources):
    cdef Pieces pieces = Pieces.__new__(Pieces)
    cdef size_t index = 0
    pieces.places, pieces.exports, pieces.firsts = {}, [], scratch(8 * <size_t> len(sources) + 1)
    for name, (first, data) in sources.items():
        pieces.places[name] = index
        pieces.exports.append(export(data))
        (<int64_t *> pieces.firsts.data)[index] = first
        index += 1
    return pieces


cdef size_t bits_bytes(uint64_t record_count) noexcept nogil:
    return <size_t> ((record_count + 7) // 8)


cdef bint has_bits(const uint8_t *bits, size_t size) noexcept nogil:
    cdef size_t index
    for index in range(size):
        if bits[index]:
            return True
    return False


cdef size_t run_bits_bytes(Run run, size_t record_count) noexcept:
    cdef size_t index, size = 0
    for index in range(run.count):
        size += bits_bytes(<uint64_t> run.number(record_count, index))
    return size


def run_ranges(runs, tuple places, survivors=None):
    """See ``batch_kernels.run_ranges``."""
    cdef size_t index, number, size, width = width_of(places), count = 0
    cdef size_t position_place, size_place, record_place
    cdef dict found = {}
    cdef list all_runs = [run_of(source, width) for source in runs]
    cdef Scratch memory
    cdef int64_t *begins
    cdef int64_t *ends
    cdef int64_t position, size_bytes
    cdef const uint8_t *bits = NULL
    cdef Export exported
    cdef PyObject *place
    cdef Run run
    position_place, size_place, record_place = places
    for run in all_runs:
        count += run.count
    memory = scratch(16 * count + 1)
    begins = <int64_t *> memory.data
    ends = begins + count
    for number in range(<size_t> len(all_runs)):
        run = <Run> all_runs[number]
        if survivors is not None:
            exported = export(survivors[number])
            assert exported.size == run_bits_bytes(run, record_place), "each record has a bit"
            bits = exported.data
        for index in range(run.count):
            position, size_bytes = run.number(position_place, index), run.number(size_place, index)
            if survivors is not None:
                size = bits_bytes(<uint64_t> run.number(record_place, index))
                bits += size
                if not has_bits(bits - size, size):
                    continue
            if size_bytes <= 0:
                continue
            place = PyDict_GetItemWithError(found, run.name(index))
            if place == NULL:
                count = <size_t> len(found)
                found[run.name(index)] = count
                begins[count], ends[count] = position, position + size_bytes
            else:
                count = <size_t> <object> place
                begins[count] = min(begins[count], position)
                ends[count] = max(ends[count], position + size_bytes)
    return {name: (begins[<size_t> one], ends[<size_t> one]) for name, one in found.items()}


def run_sums(runs, tuple places):
    """See ``batch_kernels.run_sums``."""
    cdef list all_runs = list(runs)
    cdef size_t index, place, width = width_of(places), number = 0
    sums = ONE_ZERO * (len(places) * len(all_runs))
    cdef Export exported = export(sums, PyBUF_WRITABLE)
    cdef int64_t *target = <int64_t *> exported.data
    cdef Run run
    for source in all_runs:
        run = run_of(source, width)
        for place in places:
            for index in range(run.count):
                if add_overflows(target[number], run.number(place, index), &target[number]):
                    raise InvalidRequestError(NUMBER_TOO_LARGE)
            number += 1
    return sums


cdef struct decided_run:
    size_t count
    bint is_decided


cdef bint place_streams(Run run, tuple places, int64_t signed_id, int64_t max_bytes, Pieces pieces,
                        key_stream *stream) except? True:
    """Fill a place for each slice, but for its bits; False if they are not decided here."""
    cdef size_t index, has_place, position_place, size_place, entries_place, crc_place, hash_place, record_place
    cdef int64_t size
    has_place, position_place, size_place, entries_place, crc_place, hash_place, record_place = places
    for index in range(run.count):
        size = run.number(size_place, index)
        if run.number(has_place, index) == 0 or run.number(hash_place, index) != signed_id or size > max_bytes:
            return False
        stream[index].data = pieces.find(run.name(index), run.number(position_place, index), size)
        if stream[index].data == NULL:
            return False
        stream[index].size = <size_t> size
        stream[index].entry_count = <uint64_t> run.number(entries_place, index)
        stream[index].record_count = <uint64_t> run.number(record_place, index)
        stream[index].crc = <uint32_t> run.number(crc_place, index)
        stream[index].survivors_bytes = bits_bytes(stream[index].record_count)
    return True


def decide_runs(runs, tuple places, hash_key_id, int64_t max_bytes, dict keys):
    """See ``batch_kernels.decide_runs``."""
    cdef size_t index, number, blocks_count, most_blocks = 0, count = 0, width = width_of(places)
    cdef int64_t signed_id = number_of(hash_key_id)
    cdef list all_runs = [run_of(source, width) for source in runs], found = [], exports = []
    cdef size_t runs_count = <size_t> len(all_runs)
    cdef Pieces pieces = pieces_of(keys)
    cdef Scratch streams, windows, decided_memory = scratch((runs_count + 1) * sizeof(decided_run))
    cdef decided_run *decided = <decided_run *> decided_memory.data
    cdef key_stream *stream
    cdef uint8_t *bits
    cdef Export exported
    cdef Run run
    for run in all_runs:
        count += run.count
    streams = scratch((count + 1) * sizeof(key_stream))
    stream = <key_stream *> streams.data
    for number in range(runs_count):
        run = <Run> all_runs[number]
        decided[number].is_decided = place_streams(run, places, signed_id, max_bytes, pieces, stream)
        decided[number].count = run.count
        if not decided[number].is_decided:
            found.append(None)
            continue
        blocks_count = count = 0
        for index in range(run.count):
            blocks_count += kernel_count_blocks(stream[index].data, stream[index].size)
            count += stream[index].survivors_bytes
        most_blocks = max(most_blocks, blocks_count)
        bitmaps = bytearray(count)
        exported = export(bitmaps, PyBUF_WRITABLE)
        found.append(bitmaps)
        exports.append(exported)
        bits = exported.data
        for index in range(run.count):
            stream[index].survivors = bits
            bits += stream[index].survivors_bytes
        stream += run.count
    windows = scratch((most_blocks + 1) * sizeof(merge_window))
    stream = <key_stream *> streams.data
    with nogil:
        for number in range(runs_count):
            if decided[number].is_decided:
                decided[number].is_decided = kernel_merge_streams(
                    stream, decided[number].count, <merge_window *> windows.data, most_blocks) == KERNEL_OK
                stream += decided[number].count
    return [found[number] if decided[number].is_decided else None for number in range(runs_count)]


cdef struct small_run:
    size_t first
    size_t count
    size_t target_bytes
    size_t keys_count
    size_t intervals_count
    int64_t base_offset
    bint is_taken
    compact_memory memory
    compact_result result


cdef bint place_slices(Run run, tuple places, const uint8_t *bits, uint8_t *copied_bits, Pieces data, Pieces keys,
                       object rule, small_run *found, compacted_slice *place) except? True:
    """Fill a place for each slice with survivors, but for the room of its ranks; False if they are not taken."""
    cdef size_t index, size, position_place, size_place, crc_place, record_place, end_place, tombstones_place
    cdef size_t codecs_place, keys_position_place, keys_size_place, keys_crc_place
    cdef int64_t log_start_offset
    cdef filter_rule filtering
    (position_place, size_place, crc_place, record_place, end_place, tombstones_place, codecs_place, keys_position_place,
     keys_size_place, keys_crc_place) = places
    log_start_offset, drop_until_ms, stamp_ms, filtering.settled_end_offset = <tuple> rule
    assert run.count > 0, "each run has slices"
    filtering.may_drop, filtering.may_stamp = drop_until_ms is not None, stamp_ms is not None
    filtering.drop_until_ms = drop_until_ms if filtering.may_drop else 0
    filtering.stamp_ms = stamp_ms if filtering.may_stamp else 0
    filtering.aborted.spans = NULL
    filtering.aborted.count = 0
    found.base_offset = run.base_offsets[0]
    found.count = found.target_bytes = found.keys_count = 0
    for index in range(run.count):
        size = bits_bytes(<uint64_t> run.number(record_place, index))
        bits += size
        if not has_bits(bits - size, size):
            continue
        place.size, place.keys_size = <size_t> run.number(size_place, index), <size_t> run.number(keys_size_place, index)
        place.data = data.find(run.name(index), run.number(position_place, index), run.number(size_place, index))
        place.keys = keys.find(
            run.name(index), run.number(keys_position_place, index), run.number(keys_size_place, index))
        if run.number(codecs_place, index) != PLAIN_CODEC or place.data == NULL or place.keys == NULL:
            return False
        memcpy(copied_bits, bits - size, size)
        place.survivors, place.survivors_bytes = copied_bits, size
        copied_bits += size
        place.crc, place.keys_crc = <uint32_t> run.number(crc_place, index), <uint32_t> run.number(keys_crc_place, index)
        place.record_count = <uint64_t> run.number(record_place, index)
        place.rule = filtering
        place.rule.first_offset = max(run.base_offsets[index], log_start_offset)
        place.rule.end_offset = run.number(end_place, index)
        place.rule.has_tombstones = run.number(tombstones_place, index) > 0
        found.target_bytes += place.size
        if filtering.may_stamp and place.rule.has_tombstones:
            # A record has a size, so the growth of a plain slice is a multiple of its bytes.
            found.target_bytes += COPY_GROWTH_BYTES * min(place.record_count, place.size // MIN_RECORD_BYTES)
        found.keys_count += place.keys_size // KEY_ENTRY_BYTES + 1
        found.count += 1
        place += 1
    return True


cdef size_t put_index_columns(const small_run *run, char *target) noexcept nogil:
    """Write the columns of an index, one behind the other; returns their bytes."""
    cdef size_t size = 8 * run.result.interval_count
    memcpy(target, run.memory.positions, size)
    memcpy(target + size, run.memory.base_offsets, size)
    memcpy(target + 2 * size, run.memory.max_timestamps, size)
    return 3 * size


cdef void put_compacted(const compact_result *result, int64_t *target) noexcept nogil:
    """Write the numbers of a slice, in the order of `COMPACTED_COLUMNS`."""
    target[0] = <int64_t> result.size
    target[1] = result.crc
    target[2] = result.fingerprint
    target[3] = result.records_count
    target[4] = result.first_offset
    target[5] = result.last_offset
    target[6] = result.dropped_tombstone_count
    target[7] = result.tombstone_count
    target[8] = result.min_timestamp
    target[9] = result.max_timestamp
    target[10] = result.max_timestamp_offset
    target[11] = result.has_delete_horizon
    target[12] = result.delete_horizon_ms if result.has_delete_horizon else 0
    target[13] = result.last_base_offset
    target[14] = result.leader_epoch
    target[15] = result.last_crc
    target[16] = <int64_t> result.interval_count
    target[17] = <int64_t> result.keys_size
    target[18] = <int64_t> result.keys_count
    target[19] = result.keys_crc


cdef object compacted_of(const small_run *found, size_t runs_count, size_t slices_count, const uint8_t *data, size_t size,
                         const uint8_t *keys, size_t keys_size):
    """The slices of all runs that were taken."""
    cdef size_t number, intervals_count = 0
    cdef Export exported
    cdef int64_t *target
    cdef char *index
    for number in range(runs_count):
        if found[number].is_taken:
            intervals_count += found[number].result.interval_count
    columns = PyBytes_FromStringAndSize(<char *> NULL, <Py_ssize_t> (24 * intervals_count))
    index = PyBytes_AS_STRING(columns)
    numbers = ONE_ZERO * (COMPACTED_WIDTH * slices_count)
    exported = export(numbers, PyBUF_WRITABLE)
    target = <int64_t *> exported.data
    for number in range(runs_count):
        if found[number].is_taken:
            put_compacted(&found[number].result, target)
            index += put_index_columns(&found[number], index)
            target += COMPACTED_WIDTH
    return CompactedSlices(
        PyBytes_FromStringAndSize(<const char *> data, <Py_ssize_t> size),
        columns,
        PyBytes_FromStringAndSize(<const char *> keys, <Py_ssize_t> keys_size),
        numbers,
    )


def compact_runs(runs, tuple places, survivors, dict data, dict keys, rules, size_t interval_bytes):
    """See ``batch_kernels.compact_runs``."""
    cdef size_t index, number, count = 0, bits_count = 0, ranks_count = 0, target_bytes = 0, keys_bytes = 0
    cdef size_t most_keys = 0, intervals_count = 0, slices_count = 0, width = width_of(places), record_place = places[3]
    cdef list all_runs = [run_of(source, width) for source in runs], all_bits = [export(bitmaps) for bitmaps in survivors]
    cdef size_t runs_count = <size_t> len(all_runs)
    cdef Pieces data_pieces = pieces_of(data), key_pieces = pieces_of(keys)
    cdef Scratch places_memory, bits_memory, ranks_memory, target, index_memory, keys_memory, translated, ordered
    cdef Scratch found_memory = scratch((runs_count + 1) * sizeof(small_run))
    cdef small_run *found = <small_run *> found_memory.data
    cdef compacted_slice *place
    cdef key_columns translated_columns, sorted_columns
    cdef uint32_t *ranks
    cdef Export bits
    cdef Run run
    assert interval_bytes > 0, "an interval has bytes"
    assert COMPACTED_WIDTH == len(COMPACTED_COLUMNS), "each number has its place"
    assert len(rules) == len(all_bits) == len(all_runs), "each run has survivors and a rule"
    for number in range(runs_count):
        run, bits = <Run> all_runs[number], <Export> all_bits[number]
        assert bits.size == run_bits_bytes(run, record_place), "each record has a bit"
        count, bits_count = count + run.count, bits_count + bits.size
    places_memory, bits_memory = scratch((count + 1) * sizeof(compacted_slice)), scratch(bits_count + 1)
    count = bits_count = 0
    for number in range(runs_count):
        run, bits = <Run> all_runs[number], <Export> all_bits[number]
        place = <compacted_slice *> places_memory.data + count
        found[number].first = count
        found[number].is_taken = place_slices(
            run, places, bits.data, bits_memory.data + bits_count, data_pieces, key_pieces, rules[number],
            &found[number], place)
        bits_count += bits.size
        if not found[number].is_taken:
            continue
        count += found[number].count
        for index in range(found[number].count):
            ranks_count += place[index].survivors_bytes // RANK_BYTES + 1
        target_bytes += found[number].target_bytes
        keys_bytes += kernel_keys_room(found[number].keys_count)
        most_keys = max(most_keys, found[number].keys_count)
        found[number].intervals_count = found[number].target_bytes // max(interval_bytes, <size_t> HEADER_SIZE) + 1
        intervals_count += found[number].intervals_count
    ranks_memory, target = scratch(4 * ranks_count + 1), scratch(target_bytes + 1)
    index_memory, keys_memory = scratch(24 * intervals_count + 1), scratch(keys_bytes + 1)
    translated = place_columns(&translated_columns, most_keys, False)
    ordered = place_columns(&sorted_columns, most_keys, False)
    ranks = <uint32_t *> ranks_memory.data
    place = <compacted_slice *> places_memory.data
    for index in range(count):
        place[index].ranks = ranks
        ranks += place[index].survivors_bytes // RANK_BYTES + 1
    target_bytes = keys_bytes = intervals_count = 0
    with nogil:
        for number in range(runs_count):
            if not found[number].is_taken:
                continue
            found[number].memory.target = target.data + target_bytes
            found[number].memory.keys = keys_memory.data + keys_bytes
            found[number].memory.translated = translated_columns
            found[number].memory.sorted = sorted_columns
            found[number].memory.positions = <int64_t *> index_memory.data + 3 * intervals_count
            found[number].memory.base_offsets = found[number].memory.positions + found[number].intervals_count
            found[number].memory.max_timestamps = found[number].memory.base_offsets + found[number].intervals_count
            intervals_count += found[number].intervals_count
            found[number].is_taken = kernel_compact(
                place + found[number].first, found[number].count, found[number].base_offset, interval_bytes,
                &found[number].memory, &found[number].result)
            if found[number].is_taken:
                # The next slice lies right behind this one. Together they are no larger than their rooms.
                target_bytes += found[number].result.size
                keys_bytes += found[number].result.keys_size
                slices_count += 1
    taken = bytes([found[number].is_taken for number in range(runs_count)])
    return taken, compacted_of(found, runs_count, slices_count, target.data, target_bytes, keys_memory.data, keys_bytes)
