# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled kernels: hand-written C for the bytes, this file for the Python objects around it.

``kernels``, ``batch_kernels``, ``consumer_records``, ``offset_map`` and ``number_columns`` document each function and class. Those for
single records and headers have twins in plain Python; those for rows of batches save their callers the work batch by
batch. The bytes are exported buffers, so they stay in place while the interpreter lock is released. Only `encode_records`,
`decode_records` and those for consumers' records keep the lock, because they make and read Python objects all the time,
and those for columns of numbers, because a call is shorter than a change of threads.
"""

import sys
from array import array
from collections.abc import Mapping
from operator import index as index_of

cimport cython

from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer)
from cpython.bytearray cimport PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetObject
from cpython.list cimport PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_AsUnsignedLongLong, PyLong_Check
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport INT32_MAX, UINT32_MAX, UINT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.record.native.batch_filter import COMPACTED_COLUMNS, CompactedSlices, FilteredBatches
from stratalog.record.native.batch_row import MAX_ROW_COUNT, AppendedBatch, BatchRow, IndexProgress, IndexRows
from stratalog.record.header import HEADER_SIZE
from stratalog.record.columns import MAX_COLUMN_BYTES
from stratalog.record.native.key_entries import (
    KEYS_NOT_SORTED, ORDINAL_TOO_HIGH, TOMBSTONE_NOT_A_BIT, VERSIONS_DIFFER, KeyEntries)
from stratalog.record.record import Record
from stratalog.record.native.pure_consumer_records import record_text
from stratalog.record.pure_number_columns import NO_COLUMN, NOT_NUMBERS, NUMBER_TOO_LARGE, OTHER_LENGTH, OTHER_SHAPE
from stratalog.record.plain.plain_section import (
    NEGATIVE_TIMESTAMP, NO_NAME, NO_RECORDS, KeyPlace, PlainSection, require_plain)
from stratalog.record.record_rows import SentRows
from stratalog.record.record_time import moment_of
from stratalog.record.records_summary import CopiedRecords, RecordsSummary
from stratalog.record.native.scanned_batches import PROVED_COLUMNS, ScannedBatches

if sys.byteorder != "little":
    raise ImportError("the compiled kernels are for little-endian machines")


cdef extern from *:
    """
    /* An empty tuple of a subclass, to be filled at once. */
    static PyObject *new_tuple_of(PyObject *type, Py_ssize_t size)
    {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    }
    """
    object new_tuple_of(object type, Py_ssize_t size)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    void PyObject_GC_UnTrack(object)


include "cython/kernels.pxi"


cdef dict MESSAGES = {
    KERNEL_BAD_FRAME: "a record is not framed well; the batch's bytes were changed",
    KERNEL_BAD_HEADER: "a header's name is not UTF-8",
    KERNEL_BAD_OFFSET: "a record lies behind the last offset of its batch",
    KERNEL_BAD_TIMESTAMP: "a record's timestamp is out of range",
    KERNEL_BAD_ORDER: "the key stream is not sorted; make it again from the slice's data",
    KERNEL_BAD_ORDINAL: "a key stream points behind its slice",
}


cdef int check_status(kernel_status status) except -1:
    if status == KERNEL_OK:
        return 0
    if status == KERNEL_NO_MEMORY:
        raise MemoryError
    raise CorruptRecordError(MESSAGES[status])


@cython.freelist(32)
@cython.final
cdef class Export:
    """The bytes of an object. They stay in place as long as the Export lives."""

    cdef Py_buffer view
    cdef bint is_held
    cdef uint8_t *data
    cdef size_t size

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)


cdef Export export(object source, int flags=PyBUF_SIMPLE):
    cdef Export result = Export.__new__(Export)
    PyObject_GetBuffer(source, &result.view, flags)
    result.is_held = True
    result.data = <uint8_t *> result.view.buf
    result.size = <size_t> result.view.len
    return result


@cython.freelist(8)
@cython.final
cdef class Scratch:
    """Memory that is freed with this object."""

    cdef uint8_t *data

    def __dealloc__(self):
        PyMem_Free(self.data)


cdef Scratch scratch(size_t size):
    cdef Scratch result = Scratch.__new__(Scratch)
    result.data = <uint8_t *> PyMem_Malloc(size)
    if result.data == NULL:
        raise MemoryError
    return result


cdef object memory_view(void *data, size_t size):
    return PyMemoryView_FromMemory(<char *> data, <Py_ssize_t> size, PyBUF_READ)


def scan_records(payload, int64_t records_count, int64_t last_offset_delta):
    """See ``kernels.scan_records``."""
    cdef Export source = export(payload)
    cdef records_summary summary
    cdef kernel_status status
    with nogil:
        status = kernel_scan(source.data, source.size, records_count, last_offset_delta, &summary)
    check_status(status)
    return RecordsSummary(
        summary.tombstone_count,
        summary.null_key_count,
        summary.max_timestamp_delta,
        summary.is_dense,
        summary.min_timestamp_delta,
        summary.first_offset_delta,
        summary.last_offset_delta,
        summary.max_timestamp_offset_delta,
    )


def copy_records(
    payload,
    int64_t records_count,
    survivors,
    int64_t first_ordinal,
    *,
    int64_t first_offset_delta,
    int64_t end_offset_delta,
    bint drop_tombstones,
    int64_t timestamp_shift,
):
    """See ``kernels.copy_records``."""
    cdef Export source = export(payload)
    cdef Export bits = export(survivors)
    cdef copy_rule rule
    cdef copy_result result
    cdef record_walk walk
    cdef kernel_status status
    cdef Scratch memory
    cdef size_t room = source.size
    cdef int64_t bits_count = <int64_t> bits.size * 8
    if not walk_begin(&walk, source.data, source.size, records_count):
        raise CorruptRecordError(MESSAGES[KERNEL_BAD_FRAME])
    if first_ordinal < 0 or first_ordinal > bits_count or records_count > bits_count - first_ordinal:
        raise CorruptRecordError("the slice has more records than survivor bits", first_ordinal=first_ordinal)
    rule.first_offset_delta = first_offset_delta
    rule.end_offset_delta = end_offset_delta
    rule.timestamp_shift = timestamp_shift
    rule.drop_tombstones = drop_tombstones
    if timestamp_shift != 0:
        room += COPY_GROWTH_BYTES * <size_t> records_count
    memory = scratch(room + 1)
    with nogil:
        status = kernel_copy(
            source.data, source.size, records_count, bits.data, <uint64_t> first_ordinal, &rule, memory.data, &result)
    check_status(status)
    return CopiedRecords(
        PyBytes_FromStringAndSize(<char *> memory.data, <Py_ssize_t> result.size),
        result.count,
        result.first_delta,
        result.last_delta,
        result.max_timestamp_delta,
        result.tombstone_count,
        result.dropped_tombstone_count,
    )


def clear_dropped(
    payload,
    int64_t records_count,
    survivors,
    int64_t first_ordinal,
    *,
    int64_t first_offset_delta,
    int64_t end_offset_delta,
    bint drop_tombstones,
):
    """See ``kernels.clear_dropped``."""
    cdef Export source = export(payload)
    cdef Export bits = export(survivors, PyBUF_WRITABLE)
    cdef int64_t bits_count = <int64_t> bits.size * 8
    cdef copy_rule rule
    cdef kernel_status status
    if first_ordinal < 0 or first_ordinal > bits_count or records_count > bits_count - first_ordinal:
        raise CorruptRecordError("the slice has more records than survivor bits", first_ordinal=first_ordinal)
    rule.first_offset_delta = first_offset_delta
    rule.end_offset_delta = end_offset_delta
    rule.timestamp_shift = 0
    rule.drop_tombstones = drop_tombstones
    with nogil:
        status = kernel_clear_dropped(
            source.data, source.size, records_count, bits.data, <uint64_t> first_ordinal, &rule)
    check_status(status)


include "cython/object_kernels.pxi"
include "cython/key_kernels.pxi"
include "cython/batch_kernels.pxi"
include "cython/column_kernels.pxi"
include "cython/clean_kernels.pxi"
include "cython/consumer_records.pxi"
include "cython/accumulator.pxi"
include "cython/record_rows.pxi"
include "cython/number_columns.pxi"
include "cython/key_column_hashes.pxi"
include "cython/compact_kernel.pxi"
include "cython/plain_kernel.pxi"
include "cython/append_kernel.pxi"
