# Records to columns. A part of _kernels.pyx.

# The bytearrays of ColumnBuffers, in the order in which row_columns names them.
cdef tuple BYTE_COLUMNS = (
    "key_data", "key_validity", "value_data", "value_validity",
    "header_name_data", "header_value_data", "header_value_validity",
)


cdef int append_rows(Export source, int64_t records_count, const row_rule *rule, const row_sizes *sizes,
                     list grown, object columns) except -1:
    """Fill the room at the ends of the byte columns, then append the number columns."""
    cdef size_t rows = sizes.row_count, headers = sizes.header_count
    cdef Scratch memory = scratch(rows * (8 + 8 + 4 + 4 + 4) + headers * (4 + 4) + 1)
    cdef row_columns target
    cdef kernel_status status
    cdef list exports = [export(column, PyBUF_WRITABLE) for column in grown]
    target.offset = <int64_t *> memory.data
    target.timestamp_ms = target.offset + rows
    target.key_offsets = <int32_t *> (target.timestamp_ms + rows)
    target.value_offsets = target.key_offsets + rows
    target.header_list_offsets = target.value_offsets + rows
    target.header_name_offsets = target.header_list_offsets + rows
    target.header_value_offsets = target.header_name_offsets + headers
    target.held.key_bytes = (<Export> exports[0]).size - sizes.key_bytes
    target.held.row_count = (<Export> exports[1]).size - rows
    target.held.value_bytes = (<Export> exports[2]).size - sizes.value_bytes
    target.held.header_name_bytes = (<Export> exports[4]).size - sizes.header_name_bytes
    target.held.header_value_bytes = (<Export> exports[5]).size - sizes.header_value_bytes
    target.held.header_count = (<Export> exports[6]).size - headers
    target.key_data = (<Export> exports[0]).data + target.held.key_bytes
    target.key_validity = (<Export> exports[1]).data + target.held.row_count
    target.value_data = (<Export> exports[2]).data + target.held.value_bytes
    target.value_validity = (<Export> exports[3]).data + (<Export> exports[3]).size - rows
    target.header_name_data = (<Export> exports[4]).data + target.held.header_name_bytes
    target.header_value_data = (<Export> exports[5]).data + target.held.header_value_bytes
    target.header_value_validity = (<Export> exports[6]).data + target.held.header_count
    with nogil:
        status = kernel_fill_rows(source.data, source.size, records_count, rule, sizes, &target)
    check_status(status)
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
    rule.base_offset = base_offset
    rule.base_timestamp = base_timestamp
    rule.first_offset = first_offset
    rule.end_offset = end_offset
    rule.has_append_time = append_time_ms is not None
    rule.append_time_ms = 0 if append_time_ms is None else append_time_ms
    with nogil:
        status = kernel_size_rows(source.data, source.size, records_count, &rule, &sizes)
    check_status(status)
    byte_columns = [<bytearray?> getattr(columns, name) for name in BYTE_COLUMNS]
    held = [len(column) for column in byte_columns]
    more = (
        sizes.key_bytes, sizes.row_count, sizes.value_bytes, sizes.row_count,
        sizes.header_name_bytes, sizes.header_value_bytes, sizes.header_count,
    )
    if any([size + added > MAX_COLUMN_BYTES for size, added in zip(held, more)]):
        raise InvalidRequestError("a column would exceed 2 GiB; take the rows out more often")
    try:
        for column, size, added in zip(byte_columns, held, more):
            PyByteArray_Resize(column, size + added)
        append_rows(source, records_count, &rule, &sizes, byte_columns, columns)
    except BaseException:
        restore(columns, byte_columns, held)
        raise
    return sizes.row_count


cdef int restore(object columns, list byte_columns, list held) except -1:
    """Take back what a call has appended before it failed."""
    for column, size in zip(byte_columns, held):
        PyByteArray_Resize(column, size)
    rows, headers = held[1], held[6]
    del columns.offset[rows:]
    del columns.timestamp_ms[rows:]
    for offsets in (columns.key_offsets, columns.value_offsets, columns.header_list_offsets):
        del offsets[rows + 1:]
    for offsets in (columns.header_name_offsets, columns.header_value_offsets):
        del offsets[headers + 1:]
    return 0
