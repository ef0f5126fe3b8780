# Rows of batches. A part of _kernels.pyx.

cdef extern from "crc32c.h" nogil:
    void kernel_crc32c_begin()
    uint32_t kernel_crc32c(uint32_t crc, const uint8_t *data, size_t size)
    uint32_t kernel_joined_crc(uint32_t crc, uint32_t next_crc, size_t next_size)
    uint32_t kernel_crc32c_by_tables(uint32_t crc, const uint8_t *data, size_t size)
    uint32_t kernel_crc32c_by_lanes(uint32_t crc, const uint8_t *data, size_t size)


cdef extern from "batch_frame.h" nogil:
    ctypedef struct batch_frame:
        const uint8_t *start
        size_t size
        int64_t base_offset
        int64_t next_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int32_t leader_epoch
        int32_t records_count
        uint16_t attributes

    enum:
        TIMESTAMP_TYPE_BIT

    bint batch_at(const uint8_t *data, size_t size, batch_frame *batch)
    bint is_plain(const batch_frame *batch)
    bint has_true_crc(const batch_frame *batch)
    const uint8_t *records_of(const batch_frame *batch)
    size_t records_bytes(const batch_frame *batch)
    void write_be32(uint8_t *field, uint32_t number)
    void write_be64(uint8_t *field, uint64_t number)


cdef enum:
    PROVED_CRC = 0
    PROVED_COUNT = 1
    PROVED_FIRST = 2
    PROVED_LAST = 3
    PROVED_FINGERPRINT = 4
    PROVED_TOMBSTONES = 5
    PROVED_MARKERS = 6
    PROVED_KEYLESS = 7
    PROVED_WIDTH = 8
    SUMMED_UNDER_LOCK_BYTES = 32768
    OFFSET_ENTRY_BYTES = 8
    TIME_ENTRY_BYTES = 12


cdef extern from "batch_kernels.h" nogil:
    ctypedef struct scan_result:
        size_t end_position
        int64_t records_count
        int64_t tombstone_count
        int64_t null_key_count
        int64_t marker_count
        int64_t first_base_offset
        int64_t last_base_offset
        int64_t next_offset
        int64_t first_offset
        int64_t last_offset
        int64_t min_timestamp
        int64_t max_timestamp
        int64_t max_timestamp_offset
        int64_t delete_horizon_ms
        int32_t leader_epoch
        uint32_t last_crc
        uint32_t fingerprint
        bint has_delete_horizon
        bint is_transactional

    ctypedef struct batch_row:
        size_t position
        size_t size
        int64_t base_offset
        int64_t last_offset
        int64_t max_timestamp
        int32_t leader_epoch
        bint is_noted

    ctypedef struct batch_output:
        size_t size
        size_t unchanged_begin
        size_t unchanged_end

    size_t kernel_whole_batches(const uint8_t *data, size_t size, int64_t *records_count)
    size_t kernel_plain_batches(const uint8_t *data, size_t size)
    size_t kernel_sound_batches(const uint8_t *data, size_t size, int64_t end_offset, int64_t first_offset,
                                int32_t leader_epoch, int64_t *next_offset)
    size_t kernel_skip_batches(const uint8_t *data, size_t size, int64_t offset, int64_t *next_offset,
                               int32_t *leader_epoch)
    size_t kernel_walk_batches(const uint8_t *data, size_t size, int64_t next_offset, int32_t leader_epoch,
                               batch_row *rows, size_t room)
    uint32_t kernel_header_crc(uint32_t crc, int64_t base_offset, int32_t leader_epoch)
    uint32_t kernel_headers_crc(const uint8_t *data, size_t size, uint32_t crc)
    uint32_t kernel_batches_crc(const uint8_t *data, size_t size, uint32_t crc)
    size_t kernel_rank_entries(const uint8_t *entries, size_t count, size_t entry_size, size_t key_position,
                               size_t key_size, uint64_t limit)
    void kernel_scan_batches(const uint8_t *data, size_t size, size_t begin_limit, scan_result *result)
    kernel_status kernel_hash_batches(const uint8_t *data, size_t size, const uint8_t *hash_key16,
                                      uint32_t first_ordinal, size_t room, const batch_versions *rule,
                                      key_columns *columns)


kernel_crc32c_begin()


def crc32c(data, uint32_t crc=0, *, bint by_tables=False, bint by_lanes=False):
    """See ``kernels.crc32c``. The keywords choose what a lesser processor would do: for tests."""
    cdef Export source = export(data)
    if by_tables:
        return kernel_crc32c_by_tables(crc, source.data, source.size)
    if by_lanes:
        return kernel_crc32c_by_lanes(crc, source.data, source.size)
    if source.size < SUMMED_UNDER_LOCK_BYTES:
        return kernel_crc32c(crc, source.data, source.size)
    with nogil:
        crc = kernel_crc32c(crc, source.data, source.size)
    return crc


def joined_crc(uint32_t crc, uint32_t next_crc, size_t next_size):
    """See ``kernels.joined_crc``."""
    return kernel_joined_crc(crc, next_crc, next_size)


def whole_batches(data):
    """See ``batch_kernels.whole_batches``."""
    cdef Export source = export(data)
    cdef int64_t records_count
    cdef size_t size
    with nogil:
        size = kernel_whole_batches(source.data, source.size, &records_count)
    return size, records_count


def sound_batches(data, int64_t end_offset, int64_t first_offset=0, int32_t leader_epoch=-1):
    """See ``batch_kernels.sound_batches``."""
    cdef Export source = export(data)
    cdef int64_t next_offset
    cdef size_t size
    with nogil:
        size = kernel_sound_batches(source.data, source.size, end_offset, first_offset, leader_epoch, &next_offset)
    return size, next_offset


def skip_batches(data, int64_t offset, int64_t next_offset, int32_t leader_epoch):
    """See ``batch_kernels.skip_batches``."""
    cdef Export source = export(data)
    # A few headers cost less than a release of the lock.
    cdef size_t size = kernel_skip_batches(source.data, source.size, offset, &next_offset, &leader_epoch)
    return size, next_offset, leader_epoch


def walk_batches(data, size_t position, int64_t data_position, int64_t next_offset, int32_t leader_epoch):
    """See ``batch_kernels.walk_batches``."""
    cdef Export source = export(data)
    cdef size_t room = MAX_ROW_COUNT
    cdef Scratch memory = scratch(room * sizeof(batch_row))
    cdef batch_row *rows = <batch_row *> memory.data
    cdef int64_t begin_position = data_position + <int64_t> position
    cdef size_t index, count
    assert position <= source.size, "positions lie in the data"
    with nogil:
        count = kernel_walk_batches(
            source.data + position, source.size - position, next_offset, leader_epoch, rows, room)
    walked = PyList_New(<Py_ssize_t> count)
    for index in range(count):
        row = new_tuple_of(BatchRow, 7)
        put_item(row, 0, begin_position + <int64_t> rows[index].position)
        put_item(row, 1, rows[index].size)
        put_item(row, 2, rows[index].base_offset)
        put_item(row, 3, rows[index].last_offset)
        put_item(row, 4, rows[index].max_timestamp)
        put_item(row, 5, rows[index].leader_epoch)
        put_item(row, 6, rows[index].is_noted)
        # It holds numbers only, so it cannot be part of a reference cycle.
        PyObject_GC_UnTrack(row)
        Py_INCREF(row)
        PyList_SET_ITEM(walked, <Py_ssize_t> index, row)
    return walked


def index_rows(rows, int64_t interval_bytes, int64_t segment_base_offset, progress):
    """See ``batch_kernels.index_rows``."""
    cdef Scratch memory = scratch((OFFSET_ENTRY_BYTES + TIME_ENTRY_BYTES) * <size_t> len(rows) + 1)
    cdef uint8_t *offsets = memory.data
    cdef uint8_t *times = memory.data + OFFSET_ENTRY_BYTES * <size_t> len(rows)
    cdef uint8_t *offsets_end = offsets
    cdef uint8_t *times_end = times
    cdef int64_t bytes_since_entry, newest_ms, newest_offset, entered_ms, position, last_offset, max_timestamp_ms
    cdef uint32_t headers_crc
    cdef tuple row
    bytes_since_entry, newest_ms, newest_offset, entered_ms, headers_crc = <tuple> progress
    for each in <list?> rows:
        row = <tuple> each
        last_offset, max_timestamp_ms = row[3], row[4]
        headers_crc = kernel_header_crc(headers_crc, row[2], row[5])
        if max_timestamp_ms > newest_ms:
            newest_ms, newest_offset = max_timestamp_ms, last_offset
        if bytes_since_entry > interval_bytes:
            position = row[0]
            assert 0 <= last_offset - segment_base_offset <= INT32_MAX and 0 <= position <= INT32_MAX, "fits"
            write_be32(offsets_end, <uint32_t> (last_offset - segment_base_offset))
            write_be32(offsets_end + 4, <uint32_t> position)
            offsets_end += OFFSET_ENTRY_BYTES
            bytes_since_entry = 0
            if newest_ms > entered_ms:
                assert newest_offset >= segment_base_offset, "fits"
                entered_ms = newest_ms
                write_be64(times_end, <uint64_t> newest_ms)
                write_be32(times_end + 8, <uint32_t> (newest_offset - segment_base_offset))
                times_end += TIME_ENTRY_BYTES
        bytes_since_entry += <int64_t> row[1]
    return IndexRows(
        PyBytes_FromStringAndSize(<char *> offsets, offsets_end - offsets),
        PyBytes_FromStringAndSize(<char *> times, times_end - times),
        IndexProgress(bytes_since_entry, newest_ms, newest_offset, entered_ms, headers_crc),
    )


def headers_crc(data, uint32_t crc):
    """See ``batch_kernels.headers_crc``."""
    cdef Export source = export(data)
    cdef uint32_t after
    with nogil:
        after = kernel_headers_crc(source.data, source.size, crc)
    return after


def batches_crc(data, uint32_t crc=0):
    """See ``batch_kernels.batches_crc``."""
    cdef Export source = export(data)
    with nogil:
        crc = kernel_batches_crc(source.data, source.size, crc)
    return crc


def rank_entries(data, size_t entry_size, size_t key_position, size_t key_size, int64_t limit):
    """See ``batch_kernels.rank_entries``."""
    # Keeps the lock: another thread may wait for it to let a bytearray grow, which it cannot while exported.
    cdef Export source = export(data)
    assert key_size in (4, 8) and key_position + key_size <= entry_size, "a key of an entry"
    if limit < 0:
        return 0
    return kernel_rank_entries(
        source.data, source.size // entry_size, entry_size, key_position, key_size, <uint64_t> limit)


def scan_batches(data, size_t position, size_t begin_limit, uint32_t fingerprint):
    """See ``batch_kernels.scan_batches``."""
    cdef Export source = export(data)
    cdef scan_result result
    assert position <= begin_limit <= source.size, "positions lie in the data"
    result.fingerprint = fingerprint
    with nogil:
        kernel_scan_batches(source.data + position, source.size - position, begin_limit - position, &result)
    # By position: names would take as long as the whole look at a small batch.
    return ScannedBatches(
        position + result.end_position,
        result.fingerprint,
        result.records_count,
        result.tombstone_count,
        result.null_key_count,
        result.first_base_offset,
        result.leader_epoch,
        result.last_base_offset,
        result.last_crc,
        result.next_offset,
        result.first_offset,
        result.last_offset,
        result.min_timestamp,
        result.max_timestamp,
        result.max_timestamp_offset,
        result.delete_horizon_ms if result.has_delete_horizon else None,
        result.marker_count,
        bool(result.is_transactional),
    )


cdef bint prove_slice(const uint8_t *data, size_t size, int64_t *target) noexcept nogil:
    """Write the numbers of a slice, in the order of `PROVED_COLUMNS`; False if not all of it was taken."""
    cdef scan_result scanned
    cdef size_t position = 0
    memset(target, 0, PROVED_WIDTH * sizeof(int64_t))
    target[PROVED_FIRST] = target[PROVED_LAST] = -1
    scanned.fingerprint = 0
    while position < size:
        kernel_scan_batches(data + position, size - position, size - position, &scanned)
        if scanned.end_position == 0:
            return False
        if target[PROVED_COUNT] == 0:
            target[PROVED_FIRST] = scanned.first_offset
        target[PROVED_COUNT] += scanned.records_count
        target[PROVED_LAST] = scanned.last_offset
        target[PROVED_TOMBSTONES] += scanned.tombstone_count
        target[PROVED_MARKERS] += scanned.marker_count
        target[PROVED_KEYLESS] += scanned.null_key_count
        position += scanned.end_position
    target[PROVED_CRC] = kernel_batches_crc(data, size, 0)
    target[PROVED_FINGERPRINT] = scanned.fingerprint
    return True


def prove_slices(data, sizes):
    """See ``batch_kernels.prove_slices``."""
    cdef Export source = export(data), all_sizes = export_numbers(sizes), exported
    cdef const int64_t *size = <const int64_t *> all_sizes.data
    cdef size_t number = 0, count = all_sizes.size // 8, position = 0
    cdef uint32_t crc = 0
    cdef int64_t *target
    assert PROVED_WIDTH == len(PROVED_COLUMNS), "each number has its place"
    numbers = ONE_ZERO * (PROVED_WIDTH * count)
    exported = export(numbers, PyBUF_WRITABLE)
    target = <int64_t *> exported.data
    with nogil:
        while number < count and 0 <= size[number] and <size_t> size[number] <= source.size - position:
            if not prove_slice(source.data + position, <size_t> size[number], target):
                break
            crc = kernel_joined_crc(crc, <uint32_t> target[PROVED_CRC], <size_t> size[number])
            position += <size_t> size[number]
            target += PROVED_WIDTH
            number += 1
    return numbers if number == count else numbers[: PROVED_WIDTH * number], crc


def hash_batches(data, hash_key16, int64_t first_ordinal, entries, rule=None):
    """See ``batch_kernels.hash_batches``."""
    cdef Export source = export(data)
    cdef Export key = export(hash_key16)
    cdef Export name = None
    cdef batch_versions found
    cdef key_columns columns
    cdef int64_t records_count
    cdef kernel_status status
    assert key.size == HASH_KEY_BYTES, "a hash key has 16 bytes"
    with nogil:
        kernel_whole_batches(source.data, source.size, &records_count)
    if <size_t> records_count > source.size // MIN_RECORD_BYTES:
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    if first_ordinal < 0 or first_ordinal > <int64_t> UINT32_MAX - records_count + 1:
        raise CorruptRecordError("a slice has more records than can be numbered", first_ordinal=first_ordinal)
    if rule is not None:
        name = read_versions(&found, rule.header)
    memory = place_columns(&columns, <size_t> records_count, require_columns(entries, rule is not None))
    with nogil:
        status = kernel_hash_batches(
            source.data, source.size, key.data, <uint32_t> first_ordinal, <size_t> records_count,
            NULL if columns.version == NULL else &found, &columns)
    check_status(status)
    append_columns(entries, &columns)


def merge_key_streams(streams):
    """See ``batch_kernels.merge_key_streams``."""
    cdef size_t index, count = len(streams), blocks_count = 0
    cdef Scratch places = scratch((count + 1) * sizeof(key_stream))
    cdef Scratch windows
    cdef key_stream *place = <key_stream *> places.data
    cdef uint64_t record_count
    cdef Export exported
    cdef kernel_status status
    cdef list exports = [], survivors = []
    for index in range(count):
        data, entry_count, crc, record_count = <tuple> streams[index]
        exported = export(data)
        exports.append(exported)
        place[index].data = exported.data
        place[index].size = exported.size
        place[index].entry_count = entry_count
        place[index].record_count = record_count
        place[index].crc = crc
        bitmap = bytearray((record_count + 7) // 8)
        survivors.append(bitmap)
        exported = export(bitmap, PyBUF_WRITABLE)
        exports.append(exported)
        place[index].survivors = exported.data
        place[index].survivors_bytes = exported.size
        blocks_count += kernel_count_blocks(place[index].data, place[index].size)
    windows = scratch((blocks_count + 1) * sizeof(merge_window))
    with nogil:
        status = kernel_merge_streams(place, count, <merge_window *> windows.data, blocks_count)
    return survivors if status == KERNEL_OK else None
