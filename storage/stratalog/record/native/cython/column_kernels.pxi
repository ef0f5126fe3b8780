# Records to columns, and back. A part of _kernels.pyx.

# Indexes of ColumnBuffers' byte columns in the lists below.
cdef enum:
    KEY_DATA
    KEY_VALIDITY
    VALUE_DATA
    VALUE_VALIDITY
    NAME_DATA
    HEADER_VALUE_DATA
    HEADER_VALUE_VALIDITY
    BYTE_COLUMNS_COUNT

cdef size_t MAX_BYTES = MAX_COLUMN_BYTES


cdef list byte_columns_of(object columns):
    return [
        <bytearray?> columns.key_data,
        <bytearray?> columns.key_validity,
        <bytearray?> columns.value_data,
        <bytearray?> columns.value_validity,
        <bytearray?> columns.header_name_data,
        <bytearray?> columns.header_value_data,
        <bytearray?> columns.header_value_validity,
    ]


cdef int place_rows(row_columns *target, uint8_t *memory, size_t rows, size_t headers) except -1:
    """Lay out the number columns in `memory`, one after the other."""
    target.offset = <int64_t *> memory
    target.timestamp_ms = target.offset + rows
    target.key_offsets = <int32_t *> (target.timestamp_ms + rows)
    target.value_offsets = target.key_offsets + rows
    target.header_list_offsets = target.value_offsets + rows
    target.header_name_offsets = target.header_list_offsets + rows
    target.header_value_offsets = target.header_name_offsets + headers
    return 0


cdef int append_numbers(row_columns *target, size_t rows, size_t headers, object columns) except -1:
    if rows > 0:
        columns.offset.frombytes(memory_view(target.offset, rows * 8))
        columns.timestamp_ms.frombytes(memory_view(target.timestamp_ms, rows * 8))
        columns.key_offsets.frombytes(memory_view(target.key_offsets, rows * 4))
        columns.value_offsets.frombytes(memory_view(target.value_offsets, rows * 4))
        columns.header_list_offsets.frombytes(memory_view(target.header_list_offsets, rows * 4))
    if headers > 0:
        columns.header_name_offsets.frombytes(memory_view(target.header_name_offsets, headers * 4))
        columns.header_value_offsets.frombytes(memory_view(target.header_value_offsets, headers * 4))
    return 0


cdef int append_rows(Export source, int64_t records_count, const row_rule *rule, const row_sizes *sizes,
                     const size_t *held, list byte_columns, object columns) except -1:
    """Fill the room at the ends of the byte columns, then append the number columns."""
    cdef size_t rows = sizes.row_count, headers = sizes.header_count
    cdef Scratch memory = scratch(rows * (8 + 8 + 4 + 4 + 4) + headers * (4 + 4) + 1)
    cdef Export exported
    cdef uint8_t *ends[BYTE_COLUMNS_COUNT]
    cdef row_columns target
    cdef kernel_status status
    cdef int index
    # Exported, so that no other thread can resize them while they are filled without the lock.
    cdef list exports = []
    for index in range(BYTE_COLUMNS_COUNT):
        exported = export(byte_columns[index], PyBUF_WRITABLE)
        ends[index] = exported.data + held[index]
        exports.append(exported)
    place_rows(&target, memory.data, rows, headers)
    target.held.row_count = held[KEY_VALIDITY]
    target.held.header_count = held[HEADER_VALUE_VALIDITY]
    target.held.key_bytes = held[KEY_DATA]
    target.held.value_bytes = held[VALUE_DATA]
    target.held.header_name_bytes = held[NAME_DATA]
    target.held.header_value_bytes = held[HEADER_VALUE_DATA]
    target.key_data = ends[KEY_DATA]
    target.key_validity = ends[KEY_VALIDITY]
    target.value_data = ends[VALUE_DATA]
    target.value_validity = ends[VALUE_VALIDITY]
    target.header_name_data = ends[NAME_DATA]
    target.header_value_data = ends[HEADER_VALUE_DATA]
    target.header_value_validity = ends[HEADER_VALUE_VALIDITY]
    with nogil:
        status = kernel_fill_rows(source.data, source.size, records_count, rule, sizes, &target)
    check_status(status)
    append_numbers(&target, rows, headers, columns)
    return 0


def decode_columns(
    payload,
    int64_t records_count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_time_ms,
    int64_t first_offset,
    int64_t end_offset,
    columns,
):
    """See ``kernels.decode_columns``."""
    cdef Export source = export(payload)
    cdef row_rule rule
    cdef row_sizes sizes
    cdef kernel_status status
    cdef size_t held[BYTE_COLUMNS_COUNT]
    cdef size_t more[BYTE_COLUMNS_COUNT]
    cdef int index
    rule.base_offset = base_offset
    rule.base_timestamp = base_timestamp
    rule.first_offset = first_offset
    rule.end_offset = end_offset
    rule.has_append_time = append_time_ms is not None
    rule.append_time_ms = 0 if append_time_ms is None else append_time_ms
    with nogil:
        status = kernel_size_rows(source.data, source.size, records_count, &rule, &sizes)
    check_status(status)
    more[KEY_DATA], more[KEY_VALIDITY] = sizes.key_bytes, sizes.row_count
    more[VALUE_DATA], more[VALUE_VALIDITY] = sizes.value_bytes, sizes.row_count
    more[NAME_DATA] = sizes.header_name_bytes
    more[HEADER_VALUE_DATA], more[HEADER_VALUE_VALIDITY] = sizes.header_value_bytes, sizes.header_count
    byte_columns = byte_columns_of(columns)
    for index in range(BYTE_COLUMNS_COUNT):
        held[index] = <size_t> len(<bytearray> byte_columns[index])
        if held[index] + more[index] > MAX_BYTES:
            raise InvalidRequestError("a column would exceed 2 GiB; take the rows out more often")
    try:
        for index in range(BYTE_COLUMNS_COUNT):
            PyByteArray_Resize(byte_columns[index], <Py_ssize_t> (held[index] + more[index]))
        append_rows(source, records_count, &rule, &sizes, held, byte_columns, columns)
    except BaseException:
        restore(columns, byte_columns, held)
        raise
    return sizes.row_count


cdef int restore(object columns, list byte_columns, const size_t *held) except -1:
    """Remove the bytes that a call appended before it failed."""
    cdef int index
    for index in range(BYTE_COLUMNS_COUNT):
        PyByteArray_Resize(byte_columns[index], <Py_ssize_t> held[index])
    rows, headers = held[KEY_VALIDITY], held[HEADER_VALUE_VALIDITY]
    del columns.offset[rows:]
    del columns.timestamp_ms[rows:]
    for offsets in (columns.key_offsets, columns.value_offsets, columns.header_list_offsets):
        del offsets[rows + 1:]
    for offsets in (columns.header_name_offsets, columns.header_value_offsets):
        del offsets[headers + 1:]
    return 0


cdef dict ENCODE_MESSAGES = {
    KERNEL_BAD_FRAME: "a column's offsets do not ascend inside its data",
    KERNEL_BAD_HEADER: "a header's name cannot be written as UTF-8",
    KERNEL_BAD_TIMESTAMP: "a record's timestamp is out of range",
}


cdef const uint8_t *numbers_of(object column, size_t count, size_t number_bytes, list exports) except? NULL:
    """A column of `count` numbers, which stay in place as long as the list lives."""
    cdef Export exported = export(column)
    if exported.size != count * number_bytes:
        raise InvalidRequestError("the columns do not have the same number of rows")
    exports.append(exported)
    return exported.data


cdef int place_part(column_part *part, object offsets, object data, object validity, size_t count,
                    list exports) except -1:
    cdef Export exported = export(data)
    exports.append(exported)
    part.data = exported.data
    part.size = exported.size
    part.offsets = <const int32_t *> numbers_of(offsets, count + 1, 4, exports)
    part.validity = NULL
    if validity is not None:
        part.validity = numbers_of(validity, count, 1, exports)
    return 0


def encode_columns(columns, size_t first_row, size_t row_count, int64_t base_timestamp):
    """See ``kernels.encode_columns``."""
    cdef encode_columns_t source
    cdef size_t rows = len(columns.timestamp_ms), room, size = 0
    cdef list exports = []
    cdef Scratch memory
    cdef kernel_status status
    assert first_row <= rows and row_count <= rows - first_row, "rows are in the columns"
    source.header_count = len(columns.header_value_validity)
    source.timestamp_ms = <const int64_t *> numbers_of(columns.timestamp_ms, rows, 8, exports)
    source.header_list_offsets = <const int32_t *> numbers_of(columns.header_list_offsets, rows + 1, 4, exports)
    place_part(&source.key, columns.key_offsets, columns.key_data, columns.key_validity, rows, exports)
    place_part(&source.value, columns.value_offsets, columns.value_data, columns.value_validity, rows, exports)
    place_part(&source.header_name, columns.header_name_offsets, columns.header_name_data, None,
               source.header_count, exports)
    place_part(&source.header_value, columns.header_value_offsets, columns.header_value_data,
               columns.header_value_validity, source.header_count, exports)
    room = kernel_encode_room(&source, first_row, row_count)
    memory = scratch(room + 1)
    with nogil:
        status = kernel_encode_rows(&source, first_row, row_count, base_timestamp, memory.data, room, &size)
    if status != KERNEL_OK:
        raise InvalidRequestError(ENCODE_MESSAGES[status])
    if size > <size_t> INT32_MAX:
        raise InvalidRequestError("the records are too large for one batch; send fewer at once")
    return PyBytes_FromStringAndSize(<char *> memory.data, <Py_ssize_t> size)
