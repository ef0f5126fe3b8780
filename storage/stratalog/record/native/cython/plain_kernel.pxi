# Plain records of a message. A part of _kernels.pyx.

cdef extern from "plain_kernel.h" nogil:
    ctypedef struct plain_summary:
        int64_t records_count
        int64_t section_bytes
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t bad_timestamp

    ctypedef struct plain_place:
        int64_t partition
        int64_t other_index
        int64_t other_partition

    kernel_status kernel_measure_plain(const uint8_t *message, size_t size, int64_t now, plain_summary *summary)
    kernel_status kernel_write_plain(
        const uint8_t *message, size_t size, int64_t now, const plain_summary *summary, uint8_t *target)
    kernel_status kernel_place_plain(
        const uint8_t *message, size_t size, uint32_t partition_count, plain_place *place)


cdef int check_plain(kernel_status status, int64_t timestamp=0) except -1:
    if status == KERNEL_OK:
        return 0
    if status == KERNEL_BAD_TIMESTAMP:
        raise InvalidRequestError(NEGATIVE_TIMESTAMP, timestamp_ms=timestamp)
    raise InvalidRequestError(NO_NAME if status == KERNEL_BAD_HEADER else NO_RECORDS)


def encode_plain(message, int64_t now_ms, int64_t max_bytes):
    """See ``plain_records.encode_plain``."""
    cdef Export source = export(message)
    cdef plain_summary summary
    cdef kernel_status status
    cdef object section
    cdef uint8_t *target
    with nogil:
        status = kernel_measure_plain(source.data, source.size, now_ms, &summary)
    check_plain(status, summary.bad_timestamp)
    require_plain(summary.records_count, summary.section_bytes, max_bytes)
    section = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> summary.section_bytes)
    target = <uint8_t *> PyBytes_AS_STRING(section)
    with nogil:
        status = kernel_write_plain(source.data, source.size, now_ms, &summary, target)
    check_plain(status)
    return PlainSection(section, summary.records_count, summary.base_timestamp, summary.max_timestamp)


def place_plain(message, uint32_t partition_count):
    """See ``plain_records.place_plain``."""
    cdef Export source = export(message)
    cdef plain_place place
    cdef kernel_status status
    assert partition_count > 0
    with nogil:
        status = kernel_place_plain(source.data, source.size, partition_count, &place)
    check_plain(status)
    if place.other_index >= 0:
        return KeyPlace(place.partition, place.other_index, place.other_partition)
    return KeyPlace(None if place.partition < 0 else place.partition)
