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


cdef struct column_section:
    # Records of one batch.
    const uint8_t *data
    size_t size
    int64_t records_count
    row_rule rule
    row_sizes sizes


cdef enum:
    MAX_SECTION_COUNT = 1024


cdef void add_sizes(row_sizes *total, const row_sizes *sizes) noexcept nogil:
    total.row_count += sizes.row_count
    total.header_count += sizes.header_count
    total.key_bytes += sizes.key_bytes
    total.value_bytes += sizes.value_bytes
    total.header_name_bytes += sizes.header_name_bytes
    total.header_value_bytes += sizes.header_value_bytes


cdef void step_over(row_columns *target, const row_sizes *sizes) noexcept nogil:
    """Move the target behind rows that are filled."""
    target.offset += sizes.row_count
    target.timestamp_ms += sizes.row_count
    target.key_offsets += sizes.row_count
    target.value_offsets += sizes.row_count
    target.header_list_offsets += sizes.row_count
    target.header_name_offsets += sizes.header_count
    target.header_value_offsets += sizes.header_count
    target.key_data += sizes.key_bytes
    target.key_validity += sizes.row_count
    target.value_data += sizes.value_bytes
    target.value_validity += sizes.row_count
    target.header_name_data += sizes.header_name_bytes
    target.header_value_data += sizes.header_value_bytes
    target.header_value_validity += sizes.header_count
    add_sizes(&target.held, sizes)


cdef kernel_status fill_sections(const column_section *sections, size_t count, row_columns *target) noexcept nogil:
    cdef size_t index
    cdef kernel_status status
    for index in range(count):
        status = kernel_fill_rows(sections[index].data, sections[index].size, sections[index].records_count,
                                  &sections[index].rule, &sections[index].sizes, target)
        if status != KERNEL_OK:
            return status
        step_over(target, &sections[index].sizes)
    return KERNEL_OK


cdef int fill_columns(const column_section *sections, size_t count, const row_sizes *sizes, const size_t *held,
                      list byte_columns, object columns) except -1:
    """Fill the room at the ends of the byte columns, then append the number columns."""
    cdef size_t rows = sizes.row_count, headers = sizes.header_count
    cdef Scratch memory = scratch(rows * (8 + 8 + 4 + 4 + 4) + headers * (4 + 4) + 1)
    cdef Export exported
    cdef uint8_t *ends[BYTE_COLUMNS_COUNT]
    cdef row_columns target, filled
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
    filled = target
    with nogil:
        status = fill_sections(sections, count, &filled)
    check_status(status)
    append_numbers(&target, rows, headers, columns)
    return 0


cdef int append_sections(const column_section *sections, size_t count, object columns) except -1:
    """Append the rows of sections, which were sized before."""
    cdef row_sizes sizes
    cdef size_t held[BYTE_COLUMNS_COUNT]
    cdef size_t more[BYTE_COLUMNS_COUNT]
    cdef size_t section
    cdef int index
    memset(&sizes, 0, sizeof(sizes))
    for section in range(count):
        add_sizes(&sizes, &sections[section].sizes)
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
        fill_columns(sections, count, &sizes, held, byte_columns, columns)
    except BaseException:
        restore(columns, byte_columns, held)
        raise
    return 0


cdef int choose_columns(row_rule *rule, object columns) except -1:
    rule.skips_keys = not columns.wants_keys
    rule.skips_values = not columns.wants_values
    rule.skips_headers = not columns.wants_headers
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
    cdef column_section section
    cdef kernel_status status
    section.data, section.size, section.records_count = source.data, source.size, records_count
    section.rule.base_offset = base_offset
    section.rule.base_timestamp = base_timestamp
    section.rule.first_offset = first_offset
    section.rule.end_offset = end_offset
    section.rule.has_append_time = append_time_ms is not None
    section.rule.append_time_ms = 0 if append_time_ms is None else append_time_ms
    choose_columns(&section.rule, columns)
    with nogil:
        status = kernel_size_rows(section.data, section.size, records_count, &section.rule, &section.sizes)
    check_status(status)
    append_sections(&section, 1, columns)
    return section.sizes.row_count


cdef size_t size_sections(Export source, size_t *position, int64_t max_bytes, const row_rule *rule,
                          column_section *sections, int32_t *leader_epoch) noexcept nogil:
    """Prove and size plain batches from the position on, which moves behind them; returns their number."""
    cdef batch_frame batch
    cdef column_section *section
    cdef size_t count = 0, start = position[0]
    while count < MAX_SECTION_COUNT and batch_at(source.data + position[0], source.size - position[0], &batch):
        if not is_plain(&batch) or (count > 0 and <int64_t> (position[0] + batch.size - start) > max_bytes):
            break
        if not has_true_crc(&batch):
            break
        section = &sections[count]
        section.data, section.size, section.records_count = records_of(&batch), records_bytes(&batch), batch.records_count
        section.rule = rule[0]
        section.rule.base_offset = batch.base_offset
        section.rule.base_timestamp = batch.base_timestamp
        section.rule.has_append_time = batch.attributes & TIMESTAMP_TYPE_BIT
        section.rule.append_time_ms = batch.max_timestamp
        if kernel_size_rows(section.data, section.size, section.records_count, &section.rule, &section.sizes) != KERNEL_OK:
            break
        position[0] += batch.size
        leader_epoch[0] = batch.leader_epoch
        count += 1
    return count


def decode_column_batches(data, size_t position, int64_t max_bytes, int64_t first_offset, int64_t end_offset, columns):
    """See ``batch_kernels.decode_column_batches``."""
    cdef Export source = export(data)
    cdef Scratch memory = scratch(MAX_SECTION_COUNT * sizeof(column_section))
    cdef column_section *sections = <column_section *> memory.data
    cdef row_rule rule
    cdef size_t count
    cdef int32_t leader_epoch = -1
    assert position <= source.size, "positions lie in the data"
    memset(&rule, 0, sizeof(rule))
    rule.first_offset, rule.end_offset = first_offset, end_offset
    choose_columns(&rule, columns)
    with nogil:
        count = size_sections(source, &position, max_bytes, &rule, sections, &leader_epoch)
    append_sections(sections, count, columns)
    return position, leader_epoch


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
