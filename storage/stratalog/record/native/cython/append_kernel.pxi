# The batches that clients append. A part of _kernels.pyx.

cdef extern from "append_kernel.h" nogil:
    enum:
        MAGIC_POSITION

    ctypedef struct append_limits:
        size_t max_batch_bytes
        int64_t earliest_ms
        int64_t latest_ms
        bint must_have_keys

    ctypedef struct accepted_request:
        int64_t offset_count
        int64_t max_timestamp
        int64_t batch_count
        bint has_producer

    bint kernel_accept_append(
        const uint8_t *data, size_t size, const append_limits *limits, accepted_request *accepted)
    void kernel_stamp(uint8_t *header, int64_t base_offset, int32_t leader_epoch)


cdef enum:
    # A request up to this size takes less time than a change of threads.
    ACCEPTED_UNDER_LOCK_BYTES = 8192
    # A request whose batches are smaller is copied: two parts for each would take more time, and be joined later.
    STAMPED_IN_COPY_BYTES = 32768


def accept_append(data, int64_t max_batch_bytes, int64_t earliest_ms, int64_t latest_ms, bint must_have_keys):
    """See ``batch_kernels.accept_append``."""
    cdef Export source = export(data)
    cdef append_limits limits
    cdef accepted_request accepted
    cdef bint is_accepted
    limits.max_batch_bytes = <size_t> max_batch_bytes
    limits.earliest_ms = earliest_ms
    limits.latest_ms = latest_ms
    limits.must_have_keys = must_have_keys
    if source.size <= ACCEPTED_UNDER_LOCK_BYTES:
        is_accepted = kernel_accept_append(source.data, source.size, &limits, &accepted)
    else:
        with nogil:
            is_accepted = kernel_accept_append(source.data, source.size, &limits, &accepted)
    if not is_accepted:
        return None
    return accepted.offset_count, accepted.max_timestamp, bool(accepted.has_producer)


def stamp_batches(data, int64_t base_offset, int32_t leader_epoch):
    """See ``batch_kernels.stamp_batches``."""
    cdef Export source = export(data)
    cdef batch_frame batch
    cdef size_t position = 0, batch_count = 0
    cdef int64_t last_offset
    cdef uint8_t *copied = NULL
    cdef bytes prefix
    cdef list parts = [], appended = []
    while position < source.size:
        if not batch_at(source.data + position, source.size - position, &batch):
            raise AssertionError("only whole batches are stamped")
        position += batch.size
        batch_count += 1
    if source.size < batch_count * STAMPED_IN_COPY_BYTES:
        prefix = PyBytes_FromStringAndSize(<char *> source.data, <Py_ssize_t> source.size)
        copied = <uint8_t *> PyBytes_AS_STRING(prefix)
        parts.append(prefix)
    view = None if copied else memoryview(data)
    position = 0
    while position < source.size:
        if not batch_at(source.data + position, source.size - position, &batch):
            break
        if copied:
            kernel_stamp(copied + position, base_offset, leader_epoch)
        else:
            prefix = PyBytes_FromStringAndSize(<char *> batch.start, MAGIC_POSITION)
            kernel_stamp(<uint8_t *> PyBytes_AS_STRING(prefix), base_offset, leader_epoch)
            parts.append(prefix)
            parts.append(view[position + MAGIC_POSITION : position + batch.size])
        last_offset = base_offset + batch.next_offset - batch.base_offset - 1
        appended.append(AppendedBatch(batch.size, base_offset, last_offset, batch.max_timestamp, leader_epoch))
        base_offset = last_offset + 1
        position += batch.size
    return parts, appended
