# Columns of numbers. A part of _kernels.pyx.

cdef extern from "number_kernels.h" nogil:
    enum:
        NUMBER_TEXT_BYTES

    size_t kernel_format_numbers(const int64_t *numbers, size_t count, uint8_t *target)
    bint kernel_parse_numbers(const uint8_t *text, size_t size, int64_t *numbers, size_t count)
    bint kernel_differences(
        const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target)
    bint kernel_sums(const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target)
    bint kernel_running_sums(const int64_t *values, size_t count, int64_t *target)
    bint kernel_steps_behind(
        const int64_t *values, const int64_t *groups, const int64_t *sizes, size_t count,
        int64_t *ends, size_t ends_count, int64_t *target)
    bint kernel_places_behind(
        const int64_t *steps, const int64_t *groups, const int64_t *sizes, size_t count,
        int64_t *ends, size_t ends_count, int64_t *target)


cdef object ONE_ZERO = array("q", [0])


cdef Export export_numbers(object column):
    # An array's items are aligned, and it cannot change its size while it is exported.
    if type(column) is not array or column.typecode != "q":
        raise InvalidRequestError(NO_COLUMN)
    return export(column)


cdef Export export_others(object column, Export values):
    cdef Export result = export_numbers(column)
    if result.size != values.size:
        raise InvalidRequestError(OTHER_LENGTH)
    return result


cdef object filled(object target, bint fits):
    if not fits:
        raise InvalidRequestError(NUMBER_TOO_LARGE)
    return target


def format_numbers(numbers):
    """See ``number_columns.format_numbers``."""
    cdef Export source = export_numbers(numbers)
    cdef size_t count = source.size // 8
    cdef Scratch memory = scratch(2 + NUMBER_TEXT_BYTES * count)
    cdef size_t size = kernel_format_numbers(<const int64_t *> source.data, count, memory.data)
    return PyUnicode_DecodeUTF8(<const char *> memory.data, <Py_ssize_t> size, NULL)


def parse_numbers(str text not None, Py_ssize_t count):
    """See ``number_columns.parse_numbers``."""
    cdef Py_ssize_t size = 0
    cdef const char *data
    if not text.isascii():
        raise CorruptRecordError(NOT_NUMBERS)
    data = PyUnicode_AsUTF8AndSize(text, &size)
    # Each number takes a digit and what is behind it, so a false count takes no more memory than the text.
    if count <= 0 or count > size // 2:
        raise CorruptRecordError(NOT_NUMBERS)
    numbers = ONE_ZERO * count
    cdef Export target = export(numbers, PyBUF_WRITABLE)
    if not kernel_parse_numbers(<const uint8_t *> data, <size_t> size, <int64_t *> target.data, <size_t> count):
        raise CorruptRecordError(NOT_NUMBERS)
    return numbers


def differences(values, others, int shift):
    """See ``number_columns.differences``."""
    cdef Export source = export_numbers(values)
    cdef Export other = export_others(others, source)
    cdef size_t count = source.size // 8
    numbers = ONE_ZERO * count
    cdef Export target = export(numbers, PyBUF_WRITABLE)
    return filled(numbers, kernel_differences(
        <const int64_t *> source.data, <const int64_t *> other.data, count, shift, <int64_t *> target.data))


def sums(values, others, int shift):
    """See ``number_columns.sums``."""
    cdef Export source = export_numbers(values)
    cdef Export other = export_others(others, source)
    cdef size_t count = source.size // 8
    numbers = ONE_ZERO * count
    cdef Export target = export(numbers, PyBUF_WRITABLE)
    return filled(numbers, kernel_sums(
        <const int64_t *> source.data, <const int64_t *> other.data, count, shift, <int64_t *> target.data))


def running_sums(values):
    """See ``number_columns.running_sums``."""
    cdef Export source = export_numbers(values)
    cdef size_t count = source.size // 8
    numbers = ONE_ZERO * count
    cdef Export target = export(numbers, PyBUF_WRITABLE)
    return filled(numbers, kernel_running_sums(<const int64_t *> source.data, count, <int64_t *> target.data))


cdef object behind(object values, object groups, object sizes, bint is_steps):
    cdef Export source = export_numbers(values)
    cdef Export group = export_others(groups, source)
    cdef Export size = export_others(sizes, source)
    cdef size_t count = source.size // 8
    cdef Scratch ends = scratch(source.size + 1)
    memset(ends.data, 0, source.size)
    numbers = ONE_ZERO * count
    cdef Export target = export(numbers, PyBUF_WRITABLE)
    cdef bint fits
    if is_steps:
        fits = kernel_steps_behind(
            <const int64_t *> source.data, <const int64_t *> group.data, <const int64_t *> size.data, count,
            <int64_t *> ends.data, count, <int64_t *> target.data)
    else:
        fits = kernel_places_behind(
            <const int64_t *> source.data, <const int64_t *> group.data, <const int64_t *> size.data, count,
            <int64_t *> ends.data, count, <int64_t *> target.data)
    return filled(numbers, fits)


def steps_behind(values, groups, sizes):
    """See ``number_columns.steps_behind``."""
    return behind(values, groups, sizes, True)


def places_behind(steps, groups, sizes):
    """See ``number_columns.places_behind``."""
    return behind(steps, groups, sizes, False)


cdef enum:
    SKIPPED = 0
    NUMBER = 1
    PAIRS = 100


cdef int64_t number_of(object value) except? -1:
    """A number of 64 bits, signed or unsigned, as a signed one with the same bits."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_Check(value):
        raise InvalidRequestError(OTHER_SHAPE)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return number
    try:
        return <int64_t> PyLong_AsUnsignedLongLong(value)
    except OverflowError as error:
        raise InvalidRequestError(NUMBER_TOO_LARGE) from error


cdef int require_tuple(object value, Py_ssize_t size) except -1:
    if not PyTuple_Check(value) or (size >= 0 and PyTuple_GET_SIZE(value) != size):
        raise InvalidRequestError(OTHER_SHAPE)
    return 0


cdef int put_numbers(object value, Py_ssize_t size, int64_t *target, size_t step) except -1:
    """Write the numbers of a tuple, one in `step` places."""
    cdef Py_ssize_t index
    require_tuple(value, size)
    for index in range(size):
        target[<size_t> index * step] = number_of((<tuple> value)[index])
    return 0


cdef object pairs_column(list values, int64_t *target):
    """All pairs of the tuples; `target` gets the number of those up to each tuple."""
    cdef size_t index, size = 0, count = <size_t> len(values)
    cdef Export place
    for index in range(count):
        require_tuple(values[index], -1)
        size += <size_t> PyTuple_GET_SIZE(values[index])
        target[index] = <int64_t> size
    pairs = ONE_ZERO * (2 * size)
    place = export(pairs, PyBUF_WRITABLE)
    size = 0
    for value in values:
        for pair in <tuple> value:
            put_numbers(pair, 2, <int64_t *> place.data + size, 1)
            size += 2
    return pairs


cdef size_t column_count(object shape) except? 0:
    cdef size_t width = 0
    cdef Py_ssize_t kind
    for kind in shape:
        width += 1 if kind == PAIRS else <size_t> (kind if kind >= 0 else 1 - kind)
    return width


def tuple_columns(rows, shape):
    """See ``number_columns.tuple_columns``."""
    cdef list all_rows = list(rows), lists = []
    cdef size_t index, count = <size_t> len(all_rows)
    cdef Py_ssize_t kind, place = 0, size = <Py_ssize_t> len(shape)
    cdef int64_t *target
    cdef Export exported
    for row in all_rows:
        require_tuple(row, size)
    columns = ONE_ZERO * (column_count(shape) * count)
    exported = export(columns, PyBUF_WRITABLE)
    target = <int64_t *> exported.data
    for place in range(size):
        kind = shape[place]
        if kind == PAIRS:
            lists.append(pairs_column([(<tuple> row)[place] for row in all_rows], target))
            target += count
            continue
        if kind < 0:
            for index in range(count):
                target[index] = (<tuple> all_rows[index])[place] is not None
            target += count
        for index in range(count):
            value = (<tuple> all_rows[index])[place]
            if kind < 0 and value is None:
                continue
            if kind == NUMBER or kind == -NUMBER:
                target[index] = number_of(value)
            elif kind != SKIPPED:
                put_numbers(value, kind if kind > 0 else -kind, target + index, count)
        target += count * <size_t> (kind if kind >= 0 else -kind)
    return columns, lists
