# The offset map and the filter of the log cleaner, and the filter of object compaction. A part of _kernels.pyx.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize

from array import array as int_array

from stratalog.record.native.cleaned_batches import CleanedBatches, CleanedRecords

cdef extern from "transactions.h" nogil:
    ctypedef struct aborted_span:
        pass

    ctypedef struct aborted_spans:
        const aborted_span *spans
        size_t count

    ctypedef struct open_transaction:
        bint is_kept

    ctypedef struct open_transactions:
        open_transaction *entries
        size_t count
        size_t room

    ctypedef struct producer_epoch:
        pass

    size_t kernel_aborted_spans(const uint8_t *entries, size_t count, int64_t start_offset, int64_t end_offset,
                                aborted_span *spans)
    open_transaction *open_of(const open_transactions *open, int64_t producer_id)
    void note_data(open_transactions *open, int64_t producer_id, bint is_kept)
    void end_transaction(open_transactions *open, int64_t producer_id)


cdef extern from "offset_map.h" nogil:
    ctypedef struct map_state "offset_map":
        uint64_t count
        uint64_t slots_count
        uint64_t max_entries
        int64_t latest_offset
        bint is_full
        bint is_closed
        int64_t *versions

    ctypedef struct map_slot:
        pass

    ctypedef struct put_result:
        size_t end_position
        int64_t next_offset

    ctypedef struct clean_rule:
        int64_t now_ms
        int64_t horizon_ms
        const int64_t *kept_empty
        size_t kept_empty_count
        aborted_spans aborted
        const producer_epoch *kept_epochs
        size_t kept_epochs_count

    ctypedef struct judged_record:
        pass

    ctypedef struct clean_room:
        size_t target_bytes
        size_t judged_count
        size_t data_count
        size_t control_count

    ctypedef struct clean_memory:
        judged_record *judged
        uint8_t *target
        int64_t *dropped_aborts
        open_transactions *open

    ctypedef struct clean_result:
        batch_output output
        size_t end_position
        int64_t next_offset
        int64_t records_in
        int64_t records_kept
        int64_t null_key_count
        int64_t dropped_tombstone_count
        int64_t aborted_count
        int64_t dropped_marker_count
        size_t dropped_aborts_count
        bint has_waiting_marker
        int64_t earliest_horizon
        int64_t latest_horizon

    ctypedef struct kept_records:
        size_t size
        int64_t count
        int64_t max_timestamp_delta
        int64_t tombstone_count
        int64_t dropped_tombstone_count
        int64_t null_key_count

    bint kernel_map_begin(map_state *map, const uint8_t *hash_key16, uint64_t capacity, uint64_t max_entries,
                          const batch_versions *rule)
    void kernel_map_end(map_state *map)
    bint kernel_map_check(const map_state *map)
    int64_t kernel_map_get(const map_state *map, const uint8_t *key, size_t size)
    kernel_status kernel_put_records(map_state *map, const uint8_t *payload, size_t size, int64_t records_count,
                                     int64_t base_offset, int64_t first_offset, int64_t last_offset_delta,
                                     const batch_versions *versions)
    void kernel_put_batches(map_state *map, const uint8_t *data, size_t size, int64_t first_offset,
                            int64_t stop_offset, const aborted_spans *aborted, put_result *result)
    void kernel_measure_clean(const uint8_t *data, size_t size, const map_state *map, const clean_rule *rule,
                              clean_room *room)
    void kernel_clean_batches(const uint8_t *data, size_t size, const map_state *map, const clean_rule *rule,
                              const clean_room *room, const clean_memory *memory, clean_result *result)
    kernel_status kernel_clean_records(const uint8_t *payload, size_t size, int64_t records_count, int64_t base_offset,
                                       int64_t last_offset_delta, const map_state *map,
                                       const batch_versions *versions, bint drop_tombstones, int64_t timestamp_shift,
                                       judged_record *judged, uint8_t *target, kept_records *kept)


cdef extern from "batch_kernels.h" nogil:
    ctypedef struct filter_rule:
        int64_t first_offset
        int64_t end_offset
        int64_t drop_until_ms
        int64_t stamp_ms
        int64_t settled_end_offset
        aborted_spans aborted
        bint has_tombstones
        bint may_drop
        bint may_stamp

    ctypedef struct filter_result:
        batch_output output
        size_t end_position
        uint64_t next_ordinal
        int64_t records_count
        int64_t first_offset
        int64_t last_offset
        int64_t dropped_tombstone_count
        uint32_t fingerprint

    size_t kernel_bare_batches(const uint8_t *data, size_t size, size_t *data_count)
    void kernel_filter_batches(const uint8_t *data, size_t size, uint8_t *survivors, uint64_t bits_count,
                               uint64_t first_ordinal, const filter_rule *rule, open_transactions *open,
                               uint8_t *target, filter_result *result)


cdef enum:
    SLOT_BYTES = 24
    SLOT_VERSION_BYTES = 8

assert sizeof(map_slot) == SLOT_BYTES
cdef uint64_t MAX_CAPACITY = UINT64_MAX // (2 * SLOT_BYTES)


cdef Export int64_values(values):
    """Export the values as int64 numbers; an `array("q")` is read in place, others are copied."""
    if not isinstance(values, int_array) or values.typecode != "q":
        values = int_array("q", values)
    return export(values)


cdef aborted_spans spans_of(Export values):
    cdef aborted_spans result
    assert values.size % sizeof(aborted_span) == 0, "a span has three numbers"
    result.spans = <const aborted_span *> values.data
    result.count = values.size // sizeof(aborted_span)
    return result


def aborted_spans_in(entries, int64_t start_offset, int64_t end_offset):
    """See ``offset_map.aborted_spans_in``."""
    cdef Export source = export(entries)
    cdef size_t count = source.size // 34, found
    cdef aborted_span *spans
    assert source.size % 34 == 0, "whole entries"
    room = PyByteArray_FromStringAndSize(NULL, count * sizeof(aborted_span))
    spans = <aborted_span *> PyByteArray_AS_STRING(room)
    with nogil:
        found = kernel_aborted_spans(source.data, count, start_offset, end_offset, spans)
    values = int_array("q")
    values.frombytes(memoryview(room)[:found * sizeof(aborted_span)])
    return values


@cython.final
cdef class OpenTransactions:
    """See ``pure_clean_kernels.OpenTransactions``."""

    cdef open_transactions open

    def __dealloc__(self):
        PyMem_Free(self.open.entries)

    def __len__(self):
        return <Py_ssize_t> self.open.count

    cdef int make_room(self, size_t more) except -1:
        """Make room for that many more."""
        cdef size_t room = self.open.count + more
        cdef void *entries
        if room <= self.open.room:
            return 0
        room += room // 2
        entries = PyMem_Realloc(self.open.entries, room * sizeof(open_transaction))
        if entries == NULL:
            raise MemoryError
        self.open.entries = <open_transaction *> entries
        self.open.room = room
        return 0

    def on_data(self, int64_t producer_id, *, bint is_kept):
        self.make_room(1)
        note_data(&self.open, producer_id, is_kept)

    def on_marker(self, int64_t producer_id):
        cdef open_transaction *found = open_of(&self.open, producer_id)
        is_kept = None if found == NULL else bool(found.is_kept)
        end_transaction(&self.open, producer_id)
        return is_kept


@cython.final
cdef class OffsetMap:
    """See ``pure_offset_map.OffsetMap``."""

    cdef map_state map
    cdef Export header
    cdef readonly object rule

    def __init__(self, hash_key16, uint64_t capacity, double load_factor, rule=None):
        cdef Export key = export(hash_key16)
        cdef batch_versions versions
        cdef bint has_versions = rule is not None
        cdef map_state *place = &self.map
        cdef uint64_t max_entries
        cdef bint is_there
        assert key.size == HASH_KEY_BYTES, "a hash key has 16 bytes"
        assert 0 < capacity, "a map has at least one slot"
        assert 0.0 < load_factor <= 1.0, "a part of the slots is used, or all"
        assert place.slots_count == 0, "a map is made once"
        if capacity > MAX_CAPACITY:
            raise MemoryError
        max_entries = max(1, int(capacity * load_factor))
        self.rule = rule
        if has_versions:
            self.header = read_versions(&versions, rule.header)
        with nogil:
            is_there = kernel_map_begin(place, key.data, capacity, max_entries, &versions if has_versions else NULL)
        if not is_there:
            raise MemoryError

    def __dealloc__(self):
        cdef map_state *place = &self.map
        # Freeing many pages takes time.
        with nogil:
            kernel_map_end(place)

    @staticmethod
    def slots_for(memory_bytes, *, has_versions=False):
        return max(1, memory_bytes // (SLOT_BYTES + (SLOT_VERSION_BYTES if has_versions else 0)) - 1)

    @property
    def memory_bytes(self):
        return self.map.slots_count * (SLOT_BYTES + (0 if self.map.versions == NULL else SLOT_VERSION_BYTES))

    @property
    def max_entries(self):
        return self.map.max_entries

    @property
    def latest_offset(self):
        return self.map.latest_offset

    @property
    def is_full(self):
        return self.map.is_full

    def __len__(self):
        return <Py_ssize_t> self.map.count

    def check(self):
        cdef map_state *place = &self.map
        cdef bint is_sound
        with nogil:
            is_sound = kernel_map_check(place)
        assert is_sound, "keys lie at their homes or behind, in the order of their hashes"

    def get(self, key):
        cdef Export source = export(key)
        cdef int64_t offset = kernel_map_get(&self.map, source.data, source.size)
        return None if offset < 0 else offset

    def put_records(self, payload, int64_t records_count, int64_t base_offset, int64_t first_offset,
                    int64_t last_offset_delta, versions=None):
        cdef Export source = export(payload)
        cdef Export name = None
        cdef batch_versions found
        cdef map_state *place = &self.map
        cdef kernel_status status
        assert base_offset >= 0, "offsets are not negative"
        name = self.read_versions_of(&found, versions)
        with nogil:
            status = kernel_put_records(
                place, source.data, source.size, records_count, base_offset, first_offset, last_offset_delta,
                NULL if place.versions == NULL else &found)
        check_status(status)

    cdef Export read_versions_of(self, batch_versions *found, object versions):
        assert (versions is not None) == (self.map.versions != NULL), "a map with versions compares those of records"
        if versions is None:
            return None
        return read_versions(found, versions.header, versions.base_timestamp, versions.append_time_ms)

    def close(self):
        assert self.map.versions != NULL, "by offsets, no earlier record counts"
        self.map.is_closed = True
        self.map.is_full = False

    def put_batches(self, data, size_t position, int64_t first_offset, int64_t stop_offset, aborted=()):
        cdef Export source = export(data)
        cdef Export spans = int64_values(aborted)
        cdef aborted_spans known = spans_of(spans)
        cdef map_state *place = &self.map
        cdef put_result result
        assert position <= source.size, "positions lie in the data"
        with nogil:
            kernel_put_batches(place, source.data + position, source.size - position, first_offset, stop_offset,
                               &known, &result)
        return position + result.end_position, result.next_offset

    def skip_to(self, int64_t offset):
        assert not self.map.is_full, "what comes behind a key that was refused is not looked at"
        if not self.map.is_closed and self.map.latest_offset < offset:
            self.map.latest_offset = offset


def clean_batches(data, size_t position, OffsetMap offset_map, rule, OpenTransactions transactions):
    """See ``offset_map.clean_batches``."""
    cdef Export source = export(data)
    cdef Export last_offsets, spans, epochs
    cdef map_state *place = &offset_map.map
    cdef clean_rule cleaning
    cdef clean_room room
    cdef clean_result result
    cdef clean_memory memory
    cdef Scratch judged, dropped
    assert position <= source.size, "positions lie in the data"
    cleaning.now_ms, cleaning.horizon_ms, kept_empty, aborted, kept_epochs = <tuple> rule
    last_offsets, spans, epochs = int64_values(kept_empty), int64_values(aborted), int64_values(kept_epochs)
    assert epochs.size % sizeof(producer_epoch) == 0, "a producer's epoch has two numbers"
    cleaning.kept_empty = <const int64_t *> last_offsets.data
    cleaning.kept_empty_count = last_offsets.size // sizeof(int64_t)
    cleaning.aborted = spans_of(spans)
    cleaning.kept_epochs = <const producer_epoch *> epochs.data
    cleaning.kept_epochs_count = epochs.size // sizeof(producer_epoch)
    with nogil:
        kernel_measure_clean(source.data + position, source.size - position, place, &cleaning, &room)
    judged = scratch(room.judged_count * sizeof(judged_record))
    dropped = scratch(room.control_count * sizeof(int64_t) + 1)
    transactions.make_room(room.data_count)
    made = PyByteArray_FromStringAndSize(NULL, <Py_ssize_t> room.target_bytes)
    memory.judged = <judged_record *> judged.data
    memory.target = <uint8_t *> PyByteArray_AS_STRING(made)
    memory.dropped_aborts = <int64_t *> dropped.data
    memory.open = &transactions.open
    with nogil:
        kernel_clean_batches(
            source.data + position, source.size - position, place, &cleaning, &room, &memory, &result)
    if result.output.size == 0:
        kept = memoryview(data)[position + result.output.unchanged_begin:position + result.output.unchanged_end]
    else:
        PyByteArray_Resize(made, <Py_ssize_t> result.output.size)
        kept = made
    return CleanedBatches(
        data=kept,
        end_position=position + result.end_position,
        next_offset=result.next_offset,
        records_in=result.records_in,
        records_kept=result.records_kept,
        null_key_count=result.null_key_count,
        dropped_tombstone_count=result.dropped_tombstone_count,
        aborted_count=result.aborted_count,
        dropped_marker_count=result.dropped_marker_count,
        dropped_aborts=tuple([memory.dropped_aborts[index] for index in range(result.dropped_aborts_count)]),
        has_waiting_marker=bool(result.has_waiting_marker),
        earliest_horizon_ms=result.earliest_horizon,
        latest_horizon_ms=result.latest_horizon,
    )


def clean_records(
    payload,
    int64_t records_count,
    int64_t base_offset,
    OffsetMap offset_map,
    *,
    int64_t last_offset_delta,
    bint drop_tombstones,
    int64_t timestamp_shift,
    versions=None,
):
    """See ``offset_map.clean_records``."""
    cdef Export source = export(payload)
    cdef Export name = None
    cdef batch_versions found
    cdef map_state *place = &offset_map.map
    cdef kept_records kept
    cdef kernel_status status
    cdef record_walk walk
    cdef Scratch judged, memory
    cdef size_t room = source.size
    assert base_offset >= 0, "offsets are not negative"
    if not walk_begin(&walk, source.data, source.size, records_count):
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    if timestamp_shift != 0:
        room += COPY_GROWTH_BYTES * <size_t> records_count
    name = offset_map.read_versions_of(&found, versions)
    judged = scratch(<size_t> records_count * sizeof(judged_record) + 1)
    memory = scratch(room + 1)
    with nogil:
        status = kernel_clean_records(
            source.data, source.size, records_count, base_offset, last_offset_delta, place,
            NULL if place.versions == NULL else &found, drop_tombstones, timestamp_shift,
            <judged_record *> judged.data, memory.data, &kept)
    check_status(status)
    return CleanedRecords(
        PyBytes_FromStringAndSize(<char *> memory.data, <Py_ssize_t> kept.size),
        kept.count,
        kept.max_timestamp_delta,
        kept.tombstone_count,
        kept.dropped_tombstone_count,
        kept.null_key_count,
    )


cdef Export read_rule(filter_rule *filtering, rule):
    """Fill `filtering`; returns the memory of its aborted spans."""
    cdef Export spans
    (filtering.first_offset, filtering.end_offset, filtering.has_tombstones, drop_until_ms, stamp_ms,
     filtering.settled_end_offset, aborted) = <tuple> rule
    spans = int64_values(aborted)
    filtering.aborted = spans_of(spans)
    filtering.may_drop = drop_until_ms is not None
    filtering.drop_until_ms = 0 if drop_until_ms is None else drop_until_ms
    filtering.may_stamp = stamp_ms is not None
    filtering.stamp_ms = 0 if stamp_ms is None else stamp_ms
    return spans


def filter_batches(data, size_t position, survivors, uint64_t first_ordinal, rule, uint32_t fingerprint,
                   OpenTransactions transactions=None):
    """See ``batch_kernels.filter_batches``."""
    cdef Export source = export(data)
    cdef Export bits = None
    cdef Export spans
    cdef open_transactions *open = NULL
    cdef filter_rule filtering
    cdef filter_result result
    cdef uint8_t *bitmap = NULL
    cdef uint64_t bits_count = 0
    cdef size_t size, room, data_count
    cdef Scratch memory
    spans = read_rule(&filtering, rule)
    assert position <= source.size, "positions lie in the data"
    if transactions is None:
        size = kernel_plain_batches(source.data + position, source.size - position)
    else:
        size = kernel_bare_batches(source.data + position, source.size - position, &data_count)
        transactions.make_room(data_count)
        open = &transactions.open
    room = size
    if survivors is not None:
        bits = export(survivors, PyBUF_WRITABLE)
        bitmap = bits.data
        bits_count = <uint64_t> bits.size * 8
        assert first_ordinal <= bits_count, "the first record has a bit"
        if filtering.may_stamp and filtering.has_tombstones:
            room += COPY_GROWTH_BYTES * min(size // MIN_RECORD_BYTES, <size_t> (bits_count - first_ordinal))
    result.fingerprint = fingerprint
    memory = scratch(room + 1)
    with nogil:
        kernel_filter_batches(source.data + position, size, bitmap, bits_count, first_ordinal,
                              &filtering, open, memory.data, &result)
    if result.output.size == 0:
        kept = memoryview(data)[position + result.output.unchanged_begin:position + result.output.unchanged_end]
    else:
        kept = PyBytes_FromStringAndSize(<char *> memory.data, <Py_ssize_t> result.output.size)
    # By position: names would take as long as the whole look at a small batch.
    return FilteredBatches(
        kept,
        position + result.end_position,
        result.next_ordinal,
        result.fingerprint,
        result.records_count,
        result.first_offset,
        result.last_offset,
        result.dropped_tombstone_count,
    )
