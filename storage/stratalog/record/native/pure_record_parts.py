"""The parts of records as bytes in plain Python: those of single records, and those of rows of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.record_rows import BytesColumn, RecordRows
from stratalog.record.varint import append_varint

Part = str | Buffer | None
Headers = Mapping[str, Part] | Iterable[tuple[str, Part]]


def plain_part(part: Part, kind: str) -> str | bytes | None:
    """A key, a value or a header's value as text or bytes. Raises TypeError for other objects."""
    if part is None or isinstance(part, str | bytes):
        return part
    try:
        return bytes(memoryview(part))
    except TypeError:
        raise TypeError(f"{kind} is text, bytes or None, not {type(part).__name__}") from None


def encoded_part(part: Part) -> bytes | None:
    """Text as UTF-8, bytes as they are."""
    return part.encode() if isinstance(part, str) else None if part is None else bytes(part)


def _append_part(target: bytearray, part: bytes | None) -> None:
    append_varint(target, -1 if part is None else len(part))
    target += part or b""


def end_of_record(key: bytes | None, value: bytes | None, headers_count: int, headers: bytes) -> bytes:
    """The end of a record, from its key on."""
    parts = bytearray()
    _append_part(parts, key)
    _append_part(parts, value)
    append_varint(parts, headers_count)
    return bytes(parts) + headers


def encoded_headers(headers: Headers) -> tuple[int, bytes]:
    """The number of the headers and their bytes."""
    pairs = cast("Iterable[tuple[str, Part]]", headers.items() if isinstance(headers, Mapping) else headers)
    encoded, count = bytearray(), 0
    for name, value in pairs:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without types
            raise TypeError(f"a header's name is text, not {type(name).__name__}")
        _append_part(encoded, name.encode())
        _append_part(encoded, encoded_part(plain_part(value, "a header's value")))
        count += 1
    return count, bytes(encoded)


def number_reader(column: Buffer | None, kind: Literal["i", "q"], count: int) -> Callable[[int], int]:
    """Reads a number of a row; -1 without a column."""
    if column is None:
        return lambda _: -1
    numbers = memoryview(column).cast("B").cast(kind)
    if len(numbers) != count:
        raise InvalidRequestError("the columns do not have the same number of rows")
    return lambda row: int(numbers[row])


def part_reader(column: BytesColumn | None, count: int) -> Callable[[int], bytes | None]:
    """Reads the bytes of a row; None without a column."""
    if column is None:
        return lambda _: None
    offsets, data = number_reader(column.offsets, "i", count + 1), memoryview(column.data)
    validity = None if column.validity is None else bytes(column.validity)
    if validity is not None and len(validity) != count:
        raise InvalidRequestError("the columns do not have the same number of rows")

    def read(row: int) -> bytes | None:
        begin, end = offsets(row), offsets(row + 1)
        if not 0 <= begin <= end <= len(data):
            raise InvalidRequestError("a column's offsets do not ascend inside its data")
        return bytes(data[begin:end]) if validity is None or validity[row] else None

    return read


def headers_reader(rows: RecordRows) -> Callable[[int], tuple[int, bytes]]:
    """Reads the number of a row's headers and their bytes."""
    if rows.headers is None:
        return lambda _: (0, b"")
    starts = number_reader(rows.headers.list_offsets, "i", rows.row_count + 1)
    count = memoryview(rows.headers.name.offsets).nbytes // 4 - 1
    if count < 0:
        raise InvalidRequestError("the columns do not have the same number of rows")
    names, values = part_reader(rows.headers.name, count), part_reader(rows.headers.value, count)

    def read(row: int) -> tuple[int, bytes]:
        begin, end = starts(row), starts(row + 1)
        if not 0 <= begin <= end <= count:
            raise InvalidRequestError("a column's offsets do not ascend inside its data")
        encoded = bytearray()
        for index in range(begin, end):
            name = names(index)
            try:
                str(name or b"", "utf-8")
            except UnicodeDecodeError:
                raise InvalidRequestError("a header's name cannot be written as UTF-8") from None
            _append_part(encoded, name)
            _append_part(encoded, values(index))
        return end - begin, bytes(encoded)

    return read
