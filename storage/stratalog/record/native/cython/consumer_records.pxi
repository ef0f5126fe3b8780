# Records as consumers get them. A part of _kernels.pyx.

cdef extern from *:
    """
    /* Awaiting an object of the type calls `send`, so that its result needs no StopIteration. */
    static void set_send(PyObject *type, PySendResult (*send)(PyObject *, PyObject *, PyObject **))
    {
        ((PyTypeObject *)type)->tp_as_async->am_send = send;
        PyType_Modified((PyTypeObject *)type);
    }
    """
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    void set_send(object type, PySendResult (*send)(PyObject *, PyObject *, PyObject **) noexcept)


cdef object UTF8 = "utf-8"


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class ConsumerRecord:
    """See ``pure_consumer_records.ConsumerRecord``."""

    cdef readonly str topic
    cdef readonly object key
    cdef readonly object value
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int32_t partition
    # None without headers; bytes, as they lie in the log, until the first look; then the tuple.
    cdef object raw_headers

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp_ms, key, value,
                 headers=()):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.raw_headers = tuple(headers) or None

    @property
    def headers(self):
        cdef record_frame frame
        cdef object raw = self.raw_headers
        if raw is None:
            return ()
        if type(raw) is bytes:
            frame.headers = <const uint8_t *> PyBytes_AS_STRING(raw)
            frame.end = frame.headers + PyBytes_GET_SIZE(raw)
            self.raw_headers = decode_headers(&frame)
        return self.raw_headers

    @property
    def timestamp(self):
        return moment_of(self.timestamp_ms)

    @property
    def is_tombstone(self):
        return self.value is None

    def __eq__(self, other):
        if type(other) is not ConsumerRecord:
            return NotImplemented
        return fields_of(self) == fields_of(other)

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return ConsumerRecord, fields_of(self)

    def __repr__(self):
        return record_text(self)


cdef tuple fields_of(ConsumerRecord record):
    return (record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value,
            record.headers)


cdef struct reading_rule:
    # What is the same for all records of a call.
    int64_t first_offset
    int64_t end_offset
    int32_t partition


cdef inline object decoded_part(const uint8_t *part, int32_t size, object decode):
    if size < 0:
        return None
    if decode is None:
        return PyBytes_FromStringAndSize(<const char *> part, size)
    if decode is UTF8:
        return PyUnicode_DecodeUTF8(<const char *> part, size, NULL)
    return decode(PyBytes_FromStringAndSize(<const char *> part, size))


cdef kernel_status append_consumer_records(
    list target, const uint8_t *payload, size_t size, int64_t records_count, int64_t base_offset,
    int64_t base_timestamp, bint has_append_time, int64_t append_time_ms, const reading_rule *rule, str topic,
    object decode_key, object decode_value,
) except? KERNEL_NO_MEMORY:
    """Append the records of a section to a list. After any other status than KERNEL_OK some may be there."""
    cdef record_walk walk
    cdef record_frame frame
    cdef int64_t index, offset
    cdef int64_t timestamp_ms = append_time_ms
    cdef ConsumerRecord record
    if not walk_begin(&walk, payload, size, records_count):
        return KERNEL_BAD_FRAME
    for index in range(records_count):
        if not walk_next(&walk, &frame):
            return KERNEL_BAD_FRAME
        if add_overflows(base_offset, frame.offset_delta, &offset):
            return KERNEL_BAD_OFFSET
        if not has_append_time and add_overflows(base_timestamp, frame.timestamp_delta, &timestamp_ms):
            return KERNEL_BAD_TIMESTAMP
        if not kernel_has_sound_headers(&frame):
            return KERNEL_BAD_FRAME
        if offset < rule.first_offset or offset >= rule.end_offset:
            continue
        record = ConsumerRecord.__new__(ConsumerRecord)
        record.topic = topic
        record.partition = rule.partition
        record.offset = offset
        record.timestamp_ms = timestamp_ms
        record.key = decoded_part(frame.key, frame.key_size, decode_key)
        record.value = decoded_part(frame.value, frame.value_size, decode_value)
        if frame.headers[0] != 0:
            record.raw_headers = PyBytes_FromStringAndSize(<const char *> frame.headers, frame.end - frame.headers)
        target.append(record)
    return KERNEL_OK if walk_end(&walk) else KERNEL_BAD_FRAME


def decode_consumer_records(payload, int64_t records_count, header, reading):
    """See ``consumer_records.decode_consumer_records``."""
    cdef Export source = export(payload)
    cdef reading_rule rule = rule_of(reading)
    cdef object append_time_ms = header.append_time_ms
    cdef list records = []
    check_status(append_consumer_records(
        records, source.data, source.size, records_count, header.base_offset, header.base_timestamp,
        append_time_ms is not None, 0 if append_time_ms is None else append_time_ms, &rule, reading.topic,
        interned(reading.decode_key), interned(reading.decode_value)))
    return records


cdef reading_rule rule_of(object reading) except *:
    cdef reading_rule rule
    rule.first_offset, rule.end_offset, rule.partition = reading.first_offset, reading.end_offset, reading.partition
    return rule


cdef object interned(object decode):
    """The decoder, with every "utf-8" the same object."""
    return UTF8 if decode == UTF8 else decode


def decode_consumer_batches(
    data, size_t position, size_t max_count, int64_t max_bytes, reading, list records not None,
):
    """See ``consumer_records.decode_consumer_batches``."""
    cdef Export source = export(data)
    cdef batch_frame batch
    cdef reading_rule rule = rule_of(reading)
    cdef str topic = reading.topic
    cdef object decode_key = interned(reading.decode_key), decode_value = interned(reading.decode_value)
    cdef kernel_status status
    cdef bint is_sound
    cdef int64_t taken_bytes = 0
    cdef Py_ssize_t held
    cdef int32_t leader_epoch = -1
    assert position <= source.size, "positions lie in the data"
    while batch_at(source.data + position, source.size - position, &batch) and is_plain(&batch):
        held = len(records)
        if held + <size_t> batch.records_count > max_count or taken_bytes + <int64_t> batch.size > max_bytes:
            break
        with nogil:
            is_sound = has_true_crc(&batch)
        if not is_sound:
            break
        status = append_consumer_records(
            records, records_of(&batch), records_bytes(&batch), batch.records_count, batch.base_offset,
            batch.base_timestamp, batch.attributes & TIMESTAMP_TYPE_BIT, batch.max_timestamp, &rule, topic, decode_key,
            decode_value)
        if status != KERNEL_OK:
            del records[held:]
            break
        taken_bytes += <int64_t> batch.size
        position += batch.size
        leader_epoch = batch.leader_epoch
    return position, taken_bytes, leader_epoch


@cython.final
@cython.freelist(8)
cdef class RecordCursor:
    """See ``pure_consumer_records.RecordCursor``."""

    cdef list records
    cdef Py_ssize_t index
    cdef object next_list

    def __init__(self, next_list):
        self.records = []
        self.index = 0
        self.next_list = next_list

    def peek(self):
        return self.records[self.index] if self.index < len(self.records) else None

    def take_rest(self):
        rest = self.records[self.index:]
        self.records = []
        self.index = 0
        return rest

    def __aiter__(self):
        return self

    def __anext__(self):
        if self.index < len(self.records):
            return self
        return self.refilled()

    async def refilled(self):
        cdef object record
        while self.index >= len(self.records):
            self.records = await self.next_list()
            self.index = 0
        record = self.records[self.index]
        self.index += 1
        return record

    # Awaiting the cursor returns the next record at once: `__anext__` returns the cursor only if it has one.
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(take_next(self))


cdef object take_next(RecordCursor cursor):
    record = cursor.records[cursor.index]
    cursor.index += 1
    return record


cdef PySendResult send_next(PyObject *cursor, PyObject *value, PyObject **result) noexcept:
    try:
        record = take_next(<RecordCursor> cursor)
    except BaseException as error:
        PyErr_SetObject(type(error), error)
        result[0] = NULL
        return PYGEN_ERROR
    Py_INCREF(record)
    result[0] = <PyObject *> record
    return PYGEN_RETURN


set_send(RecordCursor, send_next)
