# Records from and to Python objects. A part of _kernels.pyx.

cdef struct sink:
    uint8_t *data
    size_t size
    size_t room


cdef int make_room(sink *target, size_t more) except -1:
    cdef size_t room = target.room
    cdef uint8_t *data
    if target.size + more <= room:
        return 0
    room = max(2 * room, target.size + more)
    data = <uint8_t *> PyMem_Realloc(target.data, room)
    if data == NULL:
        raise MemoryError
    target.data = data
    target.room = room
    return 0


cdef object as_bytes(object part):
    """Convert a key or value that is not a `bytes` object to one."""
    return bytes(memoryview(part))


cdef inline size_t part_size(object part):
    cdef Py_ssize_t size
    if part is None:
        return 1
    size = PyBytes_GET_SIZE(part)
    return <size_t> (varlong_size(size) + size)


cdef inline uint8_t *write_part(uint8_t *target, object part):
    cdef Py_ssize_t size
    if part is None:
        return write_varlong(target, -1)
    size = PyBytes_GET_SIZE(part)
    target = write_varlong(target, size)
    memcpy(target, PyBytes_AS_STRING(part), <size_t> size)
    return target + size


cdef list as_encoded(object headers, size_t *size):
    """The headers as alternating names and values, each of them bytes or None."""
    cdef list parts = []
    for name, value in headers:
        try:
            name = name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError("a header's name cannot be written as UTF-8") from error
        if value is not None and type(value) is not bytes:
            value = as_bytes(value)
        size[0] += part_size(name) + part_size(value)
        parts.append(name)
        parts.append(value)
    return parts


cdef int encode_record(sink *target, object record, int64_t offset_delta, int64_t base_timestamp) except -1:
    cdef int64_t timestamp_delta
    cdef size_t size, headers_size = 0
    cdef Py_ssize_t headers_count
    cdef uint8_t *position
    cdef list parts = None
    if type(record) is Record:
        _, timestamp_ms, key, value, headers = <tuple> record
    else:
        timestamp_ms, key, value, headers = record.timestamp_ms, record.key, record.value, record.headers
    if subtract_overflows(timestamp_of(timestamp_ms), base_timestamp, &timestamp_delta):
        raise InvalidRequestError("a record's timestamp is out of range", timestamp=timestamp_ms)
    if key is not None and type(key) is not bytes:
        key = as_bytes(key)
    if value is not None and type(value) is not bytes:
        value = as_bytes(value)
    headers_count = len(headers)
    if headers_count > 0:
        parts = as_encoded(headers, &headers_size)
    size = <size_t> (1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + varlong_size(headers_count))
    size += part_size(key) + part_size(value) + headers_size
    if target.size + <size_t> varlong_size(<int64_t> size) + size > <size_t> INT32_MAX:
        raise InvalidRequestError("the records are too large for one batch; send fewer at once")
    make_room(target, <size_t> varlong_size(<int64_t> size) + size)
    position = write_varlong(target.data + target.size, <int64_t> size)
    position[0] = 0
    position = write_varlong(position + 1, timestamp_delta)
    position = write_varlong(position, offset_delta)
    position = write_part(position, key)
    position = write_part(position, value)
    position = write_varlong(position, headers_count)
    if parts is not None:
        for part in parts:
            position = write_part(position, part)
    target.size = <size_t> (position - target.data)
    return 0


cdef int64_t timestamp_of(object number) except? -1:
    cdef int overflow = 0
    cdef int64_t timestamp_ms = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow != 0:
        raise InvalidRequestError("a record's timestamp is out of range", timestamp=number)
    return timestamp_ms


def encode_records(records, base_timestamp):
    """See ``kernels.encode_records``."""
    cdef sink target
    cdef int64_t base_ms = timestamp_of(base_timestamp)
    cdef int64_t offset_delta = 0
    memset(&target, 0, sizeof(target))
    try:
        make_room(&target, 4096)
        for record in records:
            encode_record(&target, record, offset_delta, base_ms)
            offset_delta += 1
        return PyBytes_FromStringAndSize(<char *> target.data, <Py_ssize_t> target.size)
    finally:
        PyMem_Free(target.data)


cdef inline object part_object(const uint8_t *part, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *> part, size)


cdef object decode_headers(const record_frame *frame):
    cdef const uint8_t *position
    cdef header_frame header
    cdef int32_t index, count = headers_begin(frame, &position)
    if count < 0:
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    headers = PyTuple_New(count)
    for index in range(count):
        if not headers_next(frame, &position, &header):
            raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
        try:
            name = PyUnicode_DecodeUTF8(<const char *> header.name, header.name_size, NULL)
        except UnicodeDecodeError as error:
            raise CorruptRecordError(MESSAGES[KERNEL_BAD_HEADER]) from error
        pair = (name, part_object(header.value, header.value_size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(headers, index, pair)
    if position != frame.end:
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    return headers


cdef inline void put_item(object record, Py_ssize_t index, object item):
    # The tuple takes over its own reference.
    Py_INCREF(item)
    PyTuple_SET_ITEM(record, index, item)


def decode_records(payload, int64_t records_count, int64_t base_offset, int64_t base_timestamp, append_time_ms):
    """See ``kernels.decode_records``."""
    cdef Export source = export(payload)
    cdef record_walk walk
    cdef record_frame frame
    cdef int64_t index, offset, timestamp_ms
    if not walk_begin(&walk, source.data, source.size, records_count):
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    records = []
    for index in range(records_count):
        if not walk_next(&walk, &frame):
            raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
        if add_overflows(base_offset, frame.offset_delta, &offset):
            raise CorruptRecordError(MESSAGES[KERNEL_BAD_OFFSET])
        if append_time_ms is not None:
            timestamp = append_time_ms
        elif add_overflows(base_timestamp, frame.timestamp_delta, &timestamp_ms):
            raise CorruptRecordError(MESSAGES[KERNEL_BAD_TIMESTAMP])
        else:
            timestamp = timestamp_ms
        headers = decode_headers(&frame)
        key = part_object(frame.key, frame.key_size)
        value = part_object(frame.value, frame.value_size)
        record = new_tuple_of(Record, 5)
        put_item(record, 0, offset)
        put_item(record, 1, timestamp)
        put_item(record, 2, key)
        put_item(record, 3, value)
        put_item(record, 4, headers)
        if not headers:
            # It cannot be part of a reference cycle, so the garbage collector need not visit it.
            PyObject_GC_UnTrack(record)
        records.append(record)
    if not walk_end(&walk):
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    return records


def span_records(payload, int64_t position, int64_t max_count, int64_t max_bytes):
    """See ``kernels.span_records``."""
    cdef Export source = export(payload)
    cdef const uint8_t *start
    cdef const uint8_t *end = source.data + source.size
    cdef const uint8_t *place
    cdef int32_t size
    cdef int64_t count = 0
    cdef bint is_sound = True
    if not 0 <= position <= <int64_t> source.size:
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    start = source.data + position
    with nogil:
        while count == 0 or (count < max_count and source.data + position < end):
            place = read_varint(source.data + position, end, &size)
            if place == NULL or size < 1 or size > end - place:
                is_sound = False
                break
            if count > 0 and place + size - start > max_bytes:
                break
            position = place + size - source.data
            count += 1
    if not is_sound:
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    return count, position
