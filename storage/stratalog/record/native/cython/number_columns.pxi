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
    ROWS_AHEAD = 4


cdef extern from *:
    """
    #define prefetch(address) __builtin_prefetch(address)
    """
    void prefetch(const void *address) noexcept


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


cdef int put_numbers(PyObject *value, Py_ssize_t size, int64_t *target, size_t step) except -1:
    """Write the numbers of a tuple, one in `step` places."""
    cdef Py_ssize_t index
    require_tuple(<object> value, size)
    for index in range(size):
        target[<size_t> index * step] = number_of(<object> PyTuple_GET_ITEM(<object> value, index))
    return 0


cdef object pairs_column(list rows, Py_ssize_t place, const int64_t *counts):
    """All pairs of the tuples at that place of the rows; `counts` has the number of those up to each row."""
    cdef size_t count = <size_t> len(rows), size = 0
    pairs = ONE_ZERO * (2 * (<size_t> counts[count - 1] if count > 0 else 0))
    cdef Export exported = export(pairs, PyBUF_WRITABLE)
    if exported.size == 0:
        return pairs
    for row in rows:
        for pair in <tuple> (<tuple> row)[place]:
            put_numbers(<PyObject *> pair, 2, <int64_t *> exported.data + size, 1)
            size += 2
    return pairs


cdef struct field_shape:
    Py_ssize_t kind
    int64_t *target


cdef int put_field(PyObject *value, const field_shape *field, size_t row, size_t count) except -1:
    """Write the numbers of a field of a row into its columns."""
    cdef int64_t *target = field.target + row
    cdef Py_ssize_t kind = field.kind
    if kind == PAIRS:
        require_tuple(<object> value, -1)
        target[0] = ((target - 1)[0] if row > 0 else 0) + PyTuple_GET_SIZE(<object> value)
        return 0
    if kind < 0:
        target[0] = value != <PyObject *> None
        if target[0] == 0:
            return 0
        target, kind = target + count, -kind
    if kind == NUMBER:
        target[0] = number_of(<object> value)
    elif kind != SKIPPED:
        put_numbers(value, kind, target, count)
    return 0


cdef void prefetch_fields(PyObject *row, Py_ssize_t size) noexcept:
    cdef Py_ssize_t place
    for place in range(size):
        prefetch(<void *> PyTuple_GET_ITEM(<object> row, place))


def tuple_columns(rows, shape):
    """See ``number_columns.tuple_columns``."""
    cdef list all_rows = list(rows), lists = []
    cdef size_t row, width = 0, count = <size_t> len(all_rows)
    cdef Py_ssize_t place, size = <Py_ssize_t> len(shape)
    cdef Scratch memory = scratch((<size_t> size + 1) * sizeof(field_shape))
    cdef field_shape *fields = <field_shape *> memory.data
    cdef Export exported
    cdef PyObject *one
    for place in range(size):
        fields[place].kind = shape[place]
        fields[place].target = NULL
        width += width_of_field(fields[place].kind)
    for values in all_rows:
        require_tuple(values, size)
    columns = ONE_ZERO * (width * count)
    exported = export(columns, PyBUF_WRITABLE)
    width = 0
    for place in range(size):
        fields[place].target = <int64_t *> exported.data + width * count
        width += width_of_field(fields[place].kind)
    for row in range(count):
        # Most rows and numbers lie in no cache: those of the next rows come meanwhile.
        if row + ROWS_AHEAD < count:
            prefetch_fields(PyList_GET_ITEM(all_rows, <Py_ssize_t> (row + ROWS_AHEAD)), size)
        one = PyList_GET_ITEM(all_rows, <Py_ssize_t> row)
        for place in range(size):
            put_field(PyTuple_GET_ITEM(<object> one, place), &fields[place], row, count)
    for place in range(size):
        if fields[place].kind == PAIRS:
            lists.append(pairs_column(all_rows, place, fields[place].target))
    return columns, lists


cdef size_t width_of_field(Py_ssize_t kind) noexcept:
    """The columns of a field."""
    if kind == PAIRS:
        return 1
    return <size_t> (kind if kind >= 0 else 1 - kind)


cdef struct packed_place:
    size_t position
    int code


cdef struct packed_field:
    PyObject *kind
    PyObject *column
    size_t first_place
    size_t places_count
    size_t flags_position
    uint32_t mask


cdef object number_at(const uint8_t *row, const packed_place *place):
    cdef uint32_t word
    cdef uint64_t number
    if place.code == c"I" or place.code == c"i":
        memcpy(&word, row + place.position, 4)
        return word if place.code == c"I" else <int32_t> word
    memcpy(&number, row + place.position, 8)
    return number if place.code == c"Q" else <int64_t> number


cdef object unpacked_field(const uint8_t *row, const packed_field *field, const packed_place *places):
    cdef uint32_t flags
    cdef size_t part
    if field.mask != 0:
        memcpy(&flags, row + field.flags_position, 4)
        if flags & field.mask == 0:
            return None
    if field.kind == NULL:
        return number_at(row, places)
    value = new_tuple_of(<object> field.kind, <Py_ssize_t> field.places_count)
    for part in range(field.places_count):
        put_item(value, <Py_ssize_t> part, number_at(row, places + part))
    PyObject_GC_UnTrack(value)
    return value


cdef int place_field(object source, size_t row_bytes, size_t count, packed_field *field, packed_place *places,
                     size_t *places_count) except -1:
    cdef Py_ssize_t index
    field.kind = field.column = NULL
    field.first_place, field.places_count, field.mask, field.flags_position = places_count[0], 0, 0, 0
    if type(source) is list:
        assert <size_t> len(source) == count, "a column has a value for each row"
        field.column = <PyObject *> source
        return 0
    kind, field_places, flags_position, field.mask = <tuple> source
    if kind is not None:
        assert issubclass(kind, tuple), "a field is a number or a tuple"
        field.kind = <PyObject *> kind
    if field.mask != 0:
        field.flags_position = flags_position
        assert field.flags_position + 4 <= row_bytes, "flags lie in their row"
    for index in range(len(field_places)):
        position, code = field_places[index]
        assert code in PLACE_BYTES and 0 <= position <= <int64_t> row_bytes - <int64_t> PLACE_BYTES[code], "places lie in their row"
        places[places_count[0]].position, places[places_count[0]].code = position, ord(code)
        places_count[0] += 1
        field.places_count += 1
    assert field.places_count == 1 or field.kind != NULL, "a number has one place"
    return 0


cdef dict PLACE_BYTES = {"I": 4, "i": 4, "q": 8, "Q": 8}


def unpack_tuples(kind, data, size_t position, size_t row_bytes, size_t count, fields):
    """See ``number_columns.unpack_tuples``."""
    cdef Export source = export(data)
    cdef tuple all_fields = tuple(fields)
    cdef size_t fields_count = <size_t> len(all_fields), places_count = 0, number, row
    cdef Scratch fields_memory = scratch((fields_count + 1) * sizeof(packed_field)), places_memory
    cdef packed_field *field = <packed_field *> fields_memory.data
    cdef packed_place *places
    cdef const uint8_t *place
    cdef list found
    for one in all_fields:
        places_count += 0 if type(one) is list else <size_t> len((<tuple> one)[1])
    places_memory = scratch((places_count + 1) * sizeof(packed_place))
    places, places_count = <packed_place *> places_memory.data, 0
    assert issubclass(kind, tuple), "rows become tuples"
    assert row_bytes > 0 and position <= source.size and count <= (source.size - position) // row_bytes, "rows lie in the data"
    for number in range(fields_count):
        place_field(all_fields[number], row_bytes, count, &field[number], places, &places_count)
    found = PyList_New(<Py_ssize_t> count)
    for row in range(count):
        place = source.data + position + row * row_bytes
        values = new_tuple_of(kind, <Py_ssize_t> fields_count)
        for number in range(fields_count):
            if field[number].column != NULL:
                value = <object> PyList_GET_ITEM(<object> field[number].column, <Py_ssize_t> row)
            else:
                value = unpacked_field(place, &field[number], places + field[number].first_place)
            put_item(values, <Py_ssize_t> number, value)
        Py_INCREF(values)
        PyList_SET_ITEM(found, <Py_ssize_t> row, values)
    return found
