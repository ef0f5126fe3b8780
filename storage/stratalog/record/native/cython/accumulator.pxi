# The records that a producer sends, as bytes in the batches of their partitions. A part of _kernels.pyx.
#
# The interpreter lock guards it all: between the choice of a record's batch and the last byte of the record no Python
# code runs. So `send` makes its handle, asks the clock and converts the record's parts before, a batch makes its receipt
# on demand, and neither a handle nor a batch is an object of the garbage collector, whose runs call Python code.

cdef extern from *:
    """
    #include <time.h>

    static int64_t wall_time_ms(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }
    """
    int64_t wall_time_ms()


cdef enum:
    FIRST_ROOM_BYTES = 1024


cdef size_t BATCH_HEADER_BYTES = HEADER_SIZE
cdef int64_t MAX_SECTION_BYTES = INT32_MAX - HEADER_SIZE


cdef struct record_part:
    const uint8_t *data
    # -1 for null.
    int64_t size


@cython.freelist(4096)
@cython.no_gc
@cython.final
cdef class Delivery:
    """See ``record_accumulator``."""

    cdef object source
    cdef int64_t number
    cdef readonly int64_t timestamp_ms

    def __init__(self, source, int64_t index, int64_t timestamp_ms):
        self.source = source
        self.number = index
        self.timestamp_ms = timestamp_ms

    def follow(self, Delivery other not None):
        """See ``record_accumulator``."""
        self.source = other.source
        self.number = other.number

    @property
    def receipt(self):
        return self.source.receipt

    @property
    def index(self):
        return self.number

    @property
    def is_done(self):
        return self.source.receipt.is_settled(self.number)

    def __await__(self):
        return self.source.receipt.wait(self).__await__()

    def result(self, timeout_s=None):
        """See ``record_accumulator``."""
        return self.source.receipt.result(self, timeout_s)


@cython.final
cdef class KnownTopic:
    """The partitions of a topic and their batches."""

    cdef str name
    cdef str topic_id
    cdef int32_t partition_count
    cdef int32_t current_partition
    cdef list batches
    # No batch of the topic may be larger.
    cdef int64_t max_batch_bytes
    # `send` passes its records to `send_early`.
    cdef bint is_held


@cython.no_gc
@cython.final
cdef class OpenBatch:
    """See ``record_accumulator``."""

    cdef KnownTopic known
    cdef object make_receipt
    cdef object made_receipt
    cdef readonly int32_t partition
    cdef readonly int64_t record_count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef sink section
    # The size of the section that was taken.
    cdef size_t taken_bytes

    @property
    def topic(self):
        return self.known.name

    @property
    def topic_id(self):
        return self.known.topic_id

    @property
    def size_bytes(self):
        return self.taken_bytes + self.section.size

    @property
    def receipt(self):
        if self.made_receipt is None:
            made = self.make_receipt(self.known.name, self.partition)
            # Another thread may have made one meanwhile.
            if self.made_receipt is None:
                self.made_receipt = made
        return self.made_receipt

    def take_section(self):
        """See ``record_accumulator``."""
        cdef Section taken = Section.__new__(Section)
        # It stays until it is acknowledged, and half of its room may be empty. Less room needs no copy.
        cdef uint8_t *fitted = <uint8_t *> PyMem_Realloc(self.section.data, self.section.size)
        taken.data = self.section.data if fitted == NULL else fitted
        taken.size = <Py_ssize_t> self.section.size
        self.taken_bytes += self.section.size
        memset(&self.section, 0, sizeof(self.section))
        return memoryview(taken)

    def __dealloc__(self):
        PyMem_Free(self.section.data)


@cython.final
cdef class Section:
    """The bytes of a batch that is complete."""

    cdef uint8_t *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __dealloc__(self):
        PyMem_Free(self.data)


cdef int place_bytes(object part, record_part *target) except -1:
    """Point at the bytes of a text, or of a bytes object, which the caller holds."""
    cdef Py_ssize_t size
    if part is None:
        target.data = NULL
        target.size = -1
        return 0
    if type(part) is str:
        target.data = <const uint8_t *> PyUnicode_AsUTF8AndSize(part, &size)
        target.size = size
        return 0
    target.data = <const uint8_t *> PyBytes_AS_STRING(part)
    target.size = PyBytes_GET_SIZE(part)
    return 0


cdef object plain(object part, str kind):
    """The part as one that `place_bytes` takes."""
    if part is None or type(part) is bytes or type(part) is str:
        return part
    if isinstance(part, str):
        return part.encode()
    try:
        return bytes(memoryview(part))
    except TypeError:
        raise TypeError(f"{kind} is text, bytes or None, not {type(part).__name__}") from None


cdef inline int64_t record_part_bytes(const record_part *part) noexcept nogil:
    return varlong_size(part.size) + max(part.size, 0)


cdef inline uint8_t *write_record_part(uint8_t *target, const record_part *part) noexcept nogil:
    target = write_varlong(target, part.size)
    if part.size <= 0:
        return target
    memcpy(target, part.data, <size_t> part.size)
    return target + part.size


cdef bytes encoded_headers(object headers, int64_t *count):
    """Headers in the form of the format, without their number."""
    cdef sink target
    cdef record_part name
    cdef record_part value
    cdef uint8_t *position
    memset(&target, 0, sizeof(target))
    count[0] = 0
    if isinstance(headers, Mapping):
        headers = headers.items()
    try:
        for header_name, header_value in headers:
            if not isinstance(header_name, str):
                raise TypeError(f"a header's name is text, not {type(header_name).__name__}")
            header_name = plain(header_name, "a header's name")
            header_value = plain(header_value, "a header's value")
            place_bytes(header_name, &name)
            place_bytes(header_value, &value)
            make_room(&target, <size_t> (record_part_bytes(&name) + record_part_bytes(&value)))
            position = write_record_part(target.data + target.size, &name)
            position = write_record_part(position, &value)
            target.size = <size_t> (position - target.data)
            count[0] += 1
        return PyBytes_FromStringAndSize(<char *> target.data, <Py_ssize_t> target.size)
    finally:
        PyMem_Free(target.data)


cdef class RecordAccumulator:
    """See ``record_accumulator``."""

    cdef readonly int64_t buffered_bytes
    cdef readonly int64_t max_buffered_bytes
    cdef int64_t batch_bytes
    cdef object make_receipt
    cdef object now_ms
    cdef dict topics
    cdef list opened
    cdef list full

    def __init__(self, int64_t batch_bytes, int64_t max_buffered_bytes, make_receipt, now_ms=None):
        self.batch_bytes = batch_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.make_receipt = make_receipt
        self.now_ms = now_ms
        self.topics = {}
        self.opened = []
        self.full = []

    def wake(self):
        """See ``record_accumulator``."""

    def refuse_record(self):
        """See ``record_accumulator``."""
        raise NotImplementedError

    def refuse_size(self, topic, size_bytes, max_bytes):
        """See ``record_accumulator``."""
        raise NotImplementedError

    def send_early(self, topic, key, value, partition, timestamp_ms, headers_count, headers):
        """See ``record_accumulator``."""
        raise NotImplementedError

    @cython.binding(False)
    def send(self, topic, key=None, value=None, *, partition=None, timestamp_ms=None, headers=None):
        """send(topic, key=None, value=None, *, partition=None, timestamp_ms=None, headers=None) -> Delivery

        Buffer a record, and return the handle of its delivery. See ``record_accumulator``."""
        cdef record_part key_part
        cdef record_part value_part
        cdef record_part header_part
        cdef int64_t headers_count = 0, timestamp
        cdef int32_t number
        cdef KnownTopic known
        cdef PyObject *found
        cdef Delivery delivery
        if self.buffered_bytes > self.max_buffered_bytes:
            self.refuse_record()
        if type(key) is not bytes:
            key = plain(key, "a record's key")
        if type(value) is not bytes:
            value = plain(value, "a record's value")
        place_bytes(key, &key_part)
        place_bytes(value, &value_part)
        header_part.data = NULL
        header_part.size = 0
        if headers is not None:
            headers = encoded_headers(headers, &headers_count)
            header_part.data = <const uint8_t *> PyBytes_AS_STRING(headers)
            header_part.size = PyBytes_GET_SIZE(headers)
        timestamp = self.time_of(timestamp_ms)
        number = -1
        if partition is not None:
            partition = number = as_partition(partition)
        found = PyDict_GetItemWithError(self.topics, topic)
        if found == NULL:
            return self.send_early(topic, key, value, partition, timestamp, headers_count, headers)
        known = <KnownTopic> found
        if known.is_held or number >= known.partition_count:
            return self.send_early(topic, key, value, partition, timestamp, headers_count, headers)
        delivery = Delivery.__new__(Delivery)
        if self.max_buffered_bytes < 0:
            # It has ended while the record was converted.
            self.refuse_record()
        self.append(known, number, &key_part, &value_part, timestamp, &header_part, headers_count, delivery)
        return delivery

    def send_encoded(self, topic, key, value, partition, int64_t timestamp_ms, int64_t headers_count, headers):
        """See ``record_accumulator``."""
        cdef record_part key_part
        cdef record_part value_part
        cdef record_part header_part
        cdef int32_t number
        cdef KnownTopic known = <KnownTopic> self.topics[topic]
        cdef Delivery delivery = Delivery.__new__(Delivery)
        place_bytes(key, &key_part)
        place_bytes(value, &value_part)
        header_part.data = NULL
        header_part.size = 0
        if headers is not None:
            header_part.data = <const uint8_t *> PyBytes_AS_STRING(<bytes?> headers)
            header_part.size = PyBytes_GET_SIZE(headers)
        number = -1 if partition is None else as_partition(partition)
        assert number < known.partition_count, "the caller knows the number of partitions"
        self.append(known, number, &key_part, &value_part, timestamp_ms, &header_part, headers_count, delivery)
        return delivery

    def send_rows(self, str topic not None, rows, size_t first_row):
        """See ``record_accumulator``."""
        cdef rows_columns columns
        cdef sink headers
        cdef record_part key_part
        cdef record_part value_part
        cdef record_part header_part
        cdef int64_t headers_count, timestamp
        cdef int32_t number
        cdef size_t row = first_row, row_count = rows.row_count
        cdef list exports = []
        cdef KnownTopic known = <KnownTopic> self.topics[topic]
        cdef Delivery delivery = Delivery.__new__(Delivery)
        cdef dict spans = {}
        place_rows_columns(&columns, rows, exports)
        memset(&headers, 0, sizeof(headers))
        now_ms = self.time_of(None)
        try:
            while row < row_count and self.buffered_bytes <= self.max_buffered_bytes:
                place_row(&columns.key, row, &key_part)
                place_row(&columns.value, row, &value_part)
                write_row_headers(&columns, row, &headers, &headers_count)
                header_part.data = headers.data
                header_part.size = <int64_t> headers.size
                timestamp = -1 if columns.timestamp_ms == NULL else columns.timestamp_ms[row]
                if timestamp < 0:
                    timestamp = now_ms
                number = -1 if columns.partition == NULL else columns.partition[row]
                if number >= known.partition_count:
                    raise InvalidRequestError(
                        "the topic has fewer partitions; choose a lower number",
                        partition=number,
                        partition_count=known.partition_count,
                    )
                self.append(
                    known, number, &key_part, &value_part, timestamp, &header_part, headers_count, delivery)
                span = spans.get(delivery.source)
                if span is None:
                    spans[delivery.source] = [delivery.number, delivery.number + 1]
                else:
                    (<list> span)[1] = delivery.number + 1
                row += 1
        finally:
            PyMem_Free(headers.data)
        return row, [SentRows(batch.receipt, first, end) for batch, (first, end) in spans.items()]

    def partition_count(self, topic):
        """See ``record_accumulator``."""
        cdef PyObject *found = PyDict_GetItemWithError(self.topics, topic)
        return 0 if found == NULL else (<KnownTopic> found).partition_count

    def hold_topic(self, str topic not None, int32_t partition_count, int32_t first_partition, *,
                   str topic_id not None="", max_batch_bytes=None):
        """See ``record_accumulator``."""
        cdef KnownTopic known
        cdef int32_t number
        cdef int64_t limit_bytes = INT32_MAX if max_batch_bytes is None else max_batch_bytes
        assert 0 <= first_partition < partition_count
        known = self.topics.get(topic)
        if known is not None and known.topic_id != topic_id:
            self.forget_topic(topic)
            known = None
        if known is None:
            known = KnownTopic.__new__(KnownTopic)
            known.name = topic
            known.topic_id = topic_id
            known.batches = []
            known.current_partition = first_partition
            known.is_held = True
            self.topics[topic] = known
        known.is_held = True
        known.max_batch_bytes = limit_bytes
        for number in range(partition_count, <int32_t> len(known.batches)):
            self.close_at(known, number)
        # In place, without a new list: that could run the collector, and with it a `send` into the old one.
        while len(known.batches) < partition_count:
            known.batches.append(None)
        del known.batches[partition_count:]
        known.partition_count = partition_count
        known.current_partition %= partition_count

    def open_topic(self, topic):
        """See ``record_accumulator``."""
        (<KnownTopic> self.topics[topic]).is_held = False

    def forget_topic(self, topic):
        """See ``record_accumulator``."""
        cdef KnownTopic known = self.topics.get(topic)
        cdef int32_t number
        if known is not None:
            for number in range(known.partition_count):
                self.close_at(known, number)
            del self.topics[topic]

    def take_batches(self):
        """See ``record_accumulator``."""
        opened, full = self.opened, self.full
        self.opened, self.full = [], []
        return opened, full

    def close_batch(self, OpenBatch batch not None):
        """See ``record_accumulator``."""
        cdef KnownTopic known = batch.known
        if batch.partition < known.partition_count and known.batches[batch.partition] is batch:
            self.close_at(known, batch.partition)

    def close_all(self):
        """See ``record_accumulator``."""
        cdef KnownTopic known
        cdef int32_t number
        for known in self.topics.values():
            for number in range(known.partition_count):
                self.close_at(known, number)

    def reserve(self, int64_t size_bytes):
        """See ``record_accumulator``."""
        assert size_bytes >= 0
        self.buffered_bytes += size_bytes

    def release(self, int64_t size_bytes):
        """See ``record_accumulator``."""
        assert 0 <= size_bytes <= self.buffered_bytes
        self.buffered_bytes -= size_bytes

    def end(self):
        """See ``record_accumulator``."""
        self.max_buffered_bytes = -1

    cdef int64_t time_of(self, object timestamp_ms) except -1:
        cdef int overflow = 0
        cdef int64_t timestamp
        if timestamp_ms is None:
            if self.now_ms is not None:
                return self.now_ms()
            return wall_time_ms()
        try:
            timestamp = PyLong_AsLongLongAndOverflow(index_of(timestamp_ms), &overflow)
        except TypeError:
            timestamp = -1
        if timestamp < 0 or overflow != 0:
            raise InvalidRequestError(
                "a timestamp must be a whole number of milliseconds, at least 0 and below 2^63",
                timestamp_ms=timestamp_ms,
            )
        return timestamp

    cdef int32_t choose(self, KnownTopic known, const record_part *key) noexcept:
        if key.size < 0:
            return known.current_partition
        return <int32_t> kernel_key_partition(key.data, <size_t> key.size, <uint32_t> known.partition_count)

    cdef int append(self, KnownTopic known, int32_t given, const record_part *key, const record_part *value,
                    int64_t timestamp_ms, const record_part *headers, int64_t headers_count,
                    Delivery delivery) except -1:
        """Add a record to the open batch of its partition: the given one, or for -1 that of its key."""
        cdef bint was_quiet = not self.opened and not self.full
        cdef int32_t number = given if given >= 0 else self.choose(known, key)
        cdef OpenBatch batch = <OpenBatch> known.batches[number]
        cdef int64_t fixed_bytes, record_bytes, alone_bytes
        cdef int64_t batch_bytes = min(self.batch_bytes, known.max_batch_bytes)
        cdef uint8_t *position
        # All parts whose size does not depend on the batch.
        fixed_bytes = 1 + record_part_bytes(key) + record_part_bytes(value) + varlong_size(headers_count) + headers.size
        if fixed_bytes > MAX_SECTION_BYTES - 32:
            raise InvalidRequestError("the record is too large for a batch; make it smaller", size_bytes=fixed_bytes)
        # With the timestamp and the number of a batch's first record, which take a byte each.
        alone_bytes = BATCH_HEADER_BYTES + varlong_size(fixed_bytes + 2) + fixed_bytes + 2
        if alone_bytes > known.max_batch_bytes:
            self.refuse_size(known.name, alone_bytes, known.max_batch_bytes)
        while batch is not None:
            record_bytes = framed_bytes(batch, fixed_bytes, timestamp_ms)
            if <int64_t> (BATCH_HEADER_BYTES + batch.section.size) + record_bytes <= batch_bytes:
                break
            self.close_at(known, number)
            if given < 0 and key.size < 0:
                # Records without a key go to the next partition now, and so does this one.
                number = known.current_partition
            batch = <OpenBatch> known.batches[number]
        if batch is None:
            batch = OpenBatch.__new__(OpenBatch)
            batch.known = known
            batch.make_receipt = self.make_receipt
            batch.partition = number
            batch.base_timestamp = batch.max_timestamp = timestamp_ms
            record_bytes = framed_bytes(batch, fixed_bytes, timestamp_ms)
            make_room(&batch.section, <size_t> max(record_bytes, FIRST_ROOM_BYTES))
            known.batches[number] = batch
            self.opened.append(batch)
        else:
            make_room(&batch.section, <size_t> record_bytes)
        position = batch.section.data + batch.section.size
        position = write_varlong(
            position,
            fixed_bytes + varlong_size(timestamp_ms - batch.base_timestamp) + varlong_size(batch.record_count),
        )
        position[0] = 0
        position = write_varlong(position + 1, timestamp_ms - batch.base_timestamp)
        position = write_varlong(position, batch.record_count)
        position = write_record_part(position, key)
        position = write_record_part(position, value)
        position = write_varlong(position, headers_count)
        if headers.size > 0:
            memcpy(position, headers.data, <size_t> headers.size)
        delivery.source = batch
        delivery.number = batch.record_count
        delivery.timestamp_ms = timestamp_ms
        batch.section.size += <size_t> record_bytes
        batch.record_count += 1
        batch.max_timestamp = max(batch.max_timestamp, timestamp_ms)
        self.buffered_bytes += record_bytes
        if <int64_t> (BATCH_HEADER_BYTES + batch.section.size) >= batch_bytes:
            self.close_at(known, number)
        if was_quiet and (self.opened or self.full):
            self.wake()
        return 0

    cdef int close_at(self, KnownTopic known, int32_t number) except -1:
        batch = known.batches[number]
        if batch is not None:
            known.batches[number] = None
            self.full.append(batch)
            if number == known.current_partition:
                known.current_partition = (number + 1) % known.partition_count
        return 0


cdef inline int64_t framed_bytes(OpenBatch batch, int64_t fixed_bytes, int64_t timestamp_ms) noexcept:
    """The size of a record as the next one of the batch, with its size field."""
    cdef int64_t body_bytes = (
        fixed_bytes + varlong_size(timestamp_ms - batch.base_timestamp) + varlong_size(batch.record_count)
    )
    return varlong_size(body_bytes) + body_bytes


cdef int32_t as_partition(object partition) except -1:
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(index_of(partition), &overflow)
    if number < 0 or number > INT32_MAX or overflow != 0:
        raise InvalidRequestError("a partition is a number from 0 to 2^31 - 1", partition=partition)
    return <int32_t> number
