# Hashes of a column of keys. A part of _kernels.pyx.

cdef extern from "key_column_hashes.h" nogil:
    bint kernel_hash_key_column(
        const uint8_t *bounds, bint is_wide, const uint8_t *data, size_t size, const int32_t *partitions,
        size_t count, size_t max_size, uint64_t *hashes, size_t *long_count)


def hash_key_column(bounds, bint is_wide, data, partitions, Py_ssize_t max_bytes, hashes):
    """See ``pipeline.lake.pure_key_hashes.hash_key_column``."""
    cdef Export places = export(bounds), source = export(data), numbers = export(partitions)
    cdef Export target = export(hashes, PyBUF_WRITABLE)
    cdef size_t count = target.size // 8, long_count = 0
    cdef bint lies_inside
    assert numbers.size == 4 * count, "each key has a partition of 32 bits, and a hash of 64"
    assert places.size == (8 if is_wide else 4) * (count + 1), "a key lies between two bounds"
    assert max_bytes >= 0, "a size is not negative"
    with nogil:
        lies_inside = kernel_hash_key_column(
            places.data, is_wide, source.data, source.size, <const int32_t *> numbers.data, count,
            <size_t> max_bytes, <uint64_t *> target.data, &long_count)
    assert lies_inside, "Arrow's keys lie in their data, in order"
    return long_count
