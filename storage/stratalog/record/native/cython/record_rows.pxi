# Rows of columns as the parts of records. A part of _kernels.pyx.

cdef extern from "utf8.h" nogil:
    bint is_utf8(const uint8_t *text, size_t size)


cdef struct rows_columns:
    column_part key
    column_part value
    column_part header_name
    column_part header_value
    const int32_t *header_list_offsets
    const int64_t *timestamp_ms
    const int32_t *partition
    size_t header_count


cdef int place_rows_columns(rows_columns *columns, object rows, list exports) except -1:
    cdef size_t count = rows.row_count
    cdef Export exported
    memset(columns, 0, sizeof(columns[0]))
    if rows.key is not None:
        place_part(&columns.key, rows.key.offsets, rows.key.data, rows.key.validity, count, exports)
    if rows.value is not None:
        place_part(&columns.value, rows.value.offsets, rows.value.data, rows.value.validity, count, exports)
    if rows.timestamp_ms is not None:
        columns.timestamp_ms = <const int64_t *> numbers_of(rows.timestamp_ms, count, 8, exports)
    if rows.partition is not None:
        columns.partition = <const int32_t *> numbers_of(rows.partition, count, 4, exports)
    if rows.headers is not None:
        headers = rows.headers
        columns.header_list_offsets = <const int32_t *> numbers_of(headers.list_offsets, count + 1, 4, exports)
        exported = export(headers.name.offsets)
        if exported.size < 4:
            raise InvalidRequestError("the columns do not have the same number of rows")
        columns.header_count = exported.size // 4 - 1
        place_part(&columns.header_name, headers.name.offsets, headers.name.data, None, columns.header_count, exports)
        place_part(&columns.header_value, headers.value.offsets, headers.value.data, headers.value.validity,
                   columns.header_count, exports)
    return 0


cdef int place_row(const column_part *column, size_t row, record_part *target) except -1:
    cdef int64_t begin, end
    target.data = NULL
    target.size = -1
    if column.offsets == NULL:
        return 0
    begin, end = column.offsets[row], column.offsets[row + 1]
    if begin < 0 or end < begin or <size_t> end > column.size:
        raise InvalidRequestError("a column's offsets do not ascend inside its data")
    if column.validity == NULL or column.validity[row]:
        target.data = column.data + begin
        target.size = end - begin
    return 0


cdef int write_row_headers(const rows_columns *columns, size_t row, sink *target, int64_t *count) except -1:
    """Replace the contents of `target` by the headers of a row."""
    cdef record_part name
    cdef record_part value
    cdef int64_t begin, end, index
    cdef uint8_t *position
    target.size = 0
    count[0] = 0
    if columns.header_list_offsets == NULL:
        return 0
    begin, end = columns.header_list_offsets[row], columns.header_list_offsets[row + 1]
    if begin < 0 or end < begin or <size_t> end > columns.header_count:
        raise InvalidRequestError("a column's offsets do not ascend inside its data")
    for index in range(begin, end):
        place_row(&columns.header_name, <size_t> index, &name)
        place_row(&columns.header_value, <size_t> index, &value)
        if not is_utf8(name.data, <size_t> name.size):
            raise InvalidRequestError("a header's name cannot be written as UTF-8")
        make_room(target, <size_t> (record_part_bytes(&name) + record_part_bytes(&value)))
        position = write_record_part(target.data + target.size, &name)
        position = write_record_part(position, &value)
        target.size = <size_t> (position - target.data)
    count[0] = end - begin
    return 0
