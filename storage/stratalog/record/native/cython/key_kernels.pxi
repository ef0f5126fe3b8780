# Hash, sort and merge keys. A part of _kernels.pyx.

def siphash128(key16, data):
    """See ``kernels.siphash128``."""
    cdef Export key = export(key16)
    cdef Export source = export(data)
    cdef uint64_t high, low
    assert key.size == HASH_KEY_BYTES, "a hash key has 16 bytes"
    with nogil:
        kernel_siphash128(key.data, source.data, source.size, &high, &low)
    return high, low


def murmur2(key):
    """See ``kernels.murmur2``."""
    cdef Export source = export(key)
    return kernel_murmur2(source.data, source.size)


cdef Export read_versions(batch_versions *versions, object header, int64_t base_timestamp=0, append_time=None):
    """Fill `versions`; returns the memory of the header's name."""
    cdef Export name = None
    versions.header = NULL
    versions.header_size = 0
    if header is not None:
        name = export(header)
        versions.header = name.data
        versions.header_size = name.size
    versions.base_timestamp = base_timestamp
    versions.has_append_time = append_time is not None
    versions.append_time = 0 if append_time is None else append_time
    return name


cdef bint require_columns(object entries, bint has_versions) except -1:
    assert (entries.version is not None) == has_versions, "entries have versions if their source has"
    return has_versions


cdef Scratch place_columns(key_columns *columns, size_t count, bint has_versions):
    """Room for `count` entries, the columns one after the other."""
    cdef Scratch memory = scratch(count * (8 + 8 + (8 if has_versions else 0) + 4 + 1) + 1)
    columns.hash_high = <uint64_t *> memory.data
    columns.hash_low = columns.hash_high + count
    columns.version = <int64_t *> (columns.hash_low + count) if has_versions else NULL
    columns.ordinal = <uint32_t *> (columns.hash_low + (2 * count if has_versions else count))
    columns.tombstone = <uint8_t *> (columns.ordinal + count)
    columns.count = 0
    return memory


cdef int append_columns(object entries, key_columns *columns) except -1:
    cdef size_t count = columns.count
    if count > 0:
        entries.hash_high.frombytes(memory_view(columns.hash_high, count * 8))
        entries.hash_low.frombytes(memory_view(columns.hash_low, count * 8))
        entries.ordinal.frombytes(memory_view(columns.ordinal, count * 4))
        entries.tombstone.extend(memory_view(columns.tombstone, count))
        if columns.version != NULL:
            entries.version.frombytes(memory_view(columns.version, count * 8))
    return 0


def hash_keys(payload, int64_t records_count, hash_key16, int64_t first_ordinal, entries, versions=None):
    """See ``kernels.hash_keys``."""
    cdef Export source = export(payload)
    cdef Export key = export(hash_key16)
    cdef Export name = None
    cdef batch_versions found
    cdef key_columns columns
    cdef record_walk walk
    cdef kernel_status status
    assert key.size == HASH_KEY_BYTES, "a hash key has 16 bytes"
    if not walk_begin(&walk, source.data, source.size, records_count):
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    if first_ordinal < 0 or first_ordinal > <int64_t> UINT32_MAX - records_count + 1:
        raise CorruptRecordError("a slice has more records than can be numbered", first_ordinal=first_ordinal)
    if versions is not None:
        name = read_versions(&found, versions.header, versions.base_timestamp, versions.append_time_ms)
    memory = place_columns(&columns, <size_t> records_count, require_columns(entries, versions is not None))
    with nogil:
        status = kernel_hash_keys(
            source.data, source.size, records_count, key.data, <uint32_t> first_ordinal,
            NULL if columns.version == NULL else &found, &columns)
    check_status(status)
    append_columns(entries, &columns)


def sort_key_entries(entries):
    """See ``kernels.sort_key_entries``."""
    cdef Export high = export(entries.hash_high)
    cdef Export low = export(entries.hash_low)
    cdef Export ordinal = export(entries.ordinal)
    cdef Export tombstone = export(entries.tombstone)
    cdef Export version
    cdef key_columns columns, ordered
    cdef kernel_status status
    columns.count = tombstone.size
    assert high.size == low.size == columns.count * 8, "lengths differ"
    assert ordinal.size == columns.count * 4, "lengths differ"
    columns.hash_high = <uint64_t *> high.data
    columns.hash_low = <uint64_t *> low.data
    columns.ordinal = <uint32_t *> ordinal.data
    columns.tombstone = tombstone.data
    columns.version = NULL
    if entries.version is not None:
        version = export(entries.version)
        assert version.size == columns.count * 8, "lengths differ"
        columns.version = <int64_t *> version.data
    memory = place_columns(&ordered, columns.count, columns.version != NULL)
    with nogil:
        status = kernel_sort(&columns, &ordered)
    check_status(status)
    result = KeyEntries(has_versions=columns.version != NULL)
    append_columns(result, &ordered)
    return result


cdef dict KEY_FAULTS = {
    KERNEL_OK: None,
    KERNEL_BAD_ORDER: KEYS_NOT_SORTED,
    KERNEL_BAD_ORDINAL: ORDINAL_TOO_HIGH,
    KERNEL_BAD_TOMBSTONE: TOMBSTONE_NOT_A_BIT,
}


def key_columns_fault(hash_high, hash_low, ordinal, tombstone, uint64_t record_count):
    """See ``kernels.key_columns_fault``."""
    cdef Export high = export(hash_high)
    cdef Export low = export(hash_low)
    cdef Export number = export(ordinal)
    cdef Export bit = export(tombstone)
    cdef size_t count = bit.size
    cdef kernel_status status
    assert high.size == low.size == count * 8, "lengths differ"
    assert number.size == count * 4, "lengths differ"
    with nogil:
        status = kernel_check_keys(high.data, low.data, number.data, bit.data, count, record_count)
    return KEY_FAULTS[status]


cdef Export window_column(object column, int64_t start, int64_t count, size_t width):
    cdef Export exported = export(column)
    cdef size_t held = exported.size // width
    if start < 0 or count < 0:
        raise CorruptRecordError("a key stream window cannot have a negative size")
    if <size_t> start > held or <size_t> count > held - <size_t> start:
        raise CorruptRecordError("a key stream ends before its last entry")
    return exported


def merge_windows(windows, limit, survivors):
    """See ``kernels.merge_windows``."""
    cdef size_t index, count = len(windows), versions_count = 0
    cdef uint64_t limit_high = UINT64_MAX, limit_low = UINT64_MAX
    cdef merge_window *target
    cdef int64_t start, entries_count
    cdef Export column
    cdef kernel_status status
    assert count == <size_t> len(survivors), "each window needs its survivor bits"
    if limit is not None:
        limit_high, limit_low = limit
    memory = scratch((count + 1) * sizeof(merge_window))
    memset((<Scratch> memory).data, 0, (count + 1) * sizeof(merge_window))
    # The exports must live until the merge is over.
    exports = []
    for index in range(count):
        window = windows[index]
        target = <merge_window *> (<Scratch> memory).data + index
        start, entries_count = window.start, window.count
        target.count = <size_t> entries_count
        column = window_column(window.hash_high, start, entries_count, 8)
        target.hash_high = column.data + 8 * start
        exports.append(column)
        column = window_column(window.hash_low, start, entries_count, 8)
        target.hash_low = column.data + 8 * start
        exports.append(column)
        column = window_column(window.ordinal, start, entries_count, 4)
        target.ordinal = column.data + 4 * start
        exports.append(column)
        if window.version is not None:
            column = window_column(window.version, start, entries_count, 8)
            target.version = column.data + 8 * start
            exports.append(column)
            versions_count += 1
        column = export(survivors[index], PyBUF_WRITABLE)
        target.survivors = column.data
        target.survivors_bytes = column.size
        exports.append(column)
    if versions_count not in (0, count):
        raise CorruptRecordError(VERSIONS_DIFFER)
    target = <merge_window *> (<Scratch> memory).data
    with nogil:
        if versions_count > 0:
            status = kernel_merge_versions(target, count, limit_high, limit_low)
        else:
            status = kernel_merge(target, count, limit_high, limit_low)
    check_status(status)
    return [target[index].consumed for index in range(count)]


cdef list keep_records(ranked_survivors *target, object kept):
    """Fill `target`; returns the exports that must outlive its use."""
    cdef Export bits, ranks
    survivors, numbers, first_rank = <tuple> kept
    target.first_rank = first_rank
    target.survivors = NULL
    target.survivors_bytes = 0
    target.ranks = NULL
    target.ranks_count = 0
    if survivors is None:
        return []
    bits = export(survivors)
    ranks = export(numbers)
    target.survivors = bits.data
    target.survivors_bytes = bits.size
    target.ranks = ranks.data
    target.ranks_count = ranks.size // 4
    return [bits, ranks]


def translate_keys(window, limit, kept, entries):
    """See ``kernels.translate_keys``."""
    cdef key_block block
    cdef ranked_survivors records
    cdef key_columns columns
    cdef kernel_status status
    cdef size_t taken = 0
    cdef int64_t start = window.start, count = window.count
    cdef Export high = window_column(window.hash_high, start, count, 8)
    cdef Export low = window_column(window.hash_low, start, count, 8)
    cdef Export ordinal = window_column(window.ordinal, start, count, 4)
    cdef Export tombstone = window_column(window.tombstone, start, count, 1)
    cdef Export version
    block.limit_high = block.limit_low = UINT64_MAX
    if limit is not None:
        block.limit_high, block.limit_low = limit
    block.hash_high = high.data + 8 * start
    block.hash_low = low.data + 8 * start
    block.ordinal = ordinal.data + 4 * start
    block.tombstone = tombstone.data + start
    block.count = <size_t> count
    block.version = NULL
    if (window.version is None) != (entries.version is None):
        raise CorruptRecordError(VERSIONS_DIFFER)
    if window.version is not None:
        version = window_column(window.version, start, count, 8)
        block.version = version.data + 8 * start
    exports = keep_records(&records, kept)
    memory = place_columns(&columns, block.count, block.version != NULL)
    with nogil:
        status = kernel_translate(&block, &records, &columns, &taken)
    check_status(status)
    append_columns(entries, &columns)
    return taken


def translate_key_stream(data, kept, entries):
    """See ``kernels.translate_key_stream``."""
    cdef Export source = export(data)
    cdef ranked_survivors records
    cdef key_columns columns
    cdef kernel_status status
    exports = keep_records(&records, kept)
    memory = place_columns(&columns, source.size // 21 + 1, require_columns(entries, False))
    with nogil:
        status = kernel_translate_stream(source.data, source.size, &records, &columns)
    check_status(status)
    append_columns(entries, &columns)
