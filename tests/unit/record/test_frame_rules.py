"""Each rule that a records section has to keep, just kept and just broken, for both kinds of kernels."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.record.columns import ColumnBuffers
from stratalog.record.native import pure_kernels, pure_key_kernels
from stratalog.record.native.key_entries import KeyEntries, KeyWindow
from stratalog.record.varint import append_varint, read_varint, read_varlong, varint_size
from tests.support.kernels import native

KERNELS: list[Any] = [(pure_kernels, pure_key_kernels), *([] if native is None else [(native, native)])]
each_kind = pytest.mark.parametrize("kernels", KERNELS, ids=["pure", "native"][: len(KERNELS)])


def varint(number: int) -> bytes:
    target = bytearray()
    append_varint(target, number)
    return bytes(target)


def record(
    *,
    timestamp_delta: bytes = b"\0",
    offset_delta: int = 0,
    key: bytes = b"\1",
    value: bytes = b"\1",
    headers: bytes = b"\0",
    size: int | None = None,
) -> bytes:
    """A record from its encoded parts; `size` lies where it is given."""
    body = b"\0" + timestamp_delta + varint(offset_delta) + key + value + headers
    return varint(len(body) if size is None else size) + body


def named(name: bytes, count: int = 1) -> bytes:
    return varint(count) + varint(len(name)) + name + varint(-1)


SOUND: dict[str, tuple[bytes, int]] = {
    "least": (record(), 1),
    "none": (b"", 0),
    "increasing": (record(offset_delta=1) + record(offset_delta=2), 2),
    "long form of a number": (record(timestamp_delta=b"\x80\x00"), 1),
    "longest form of a number": (record(timestamp_delta=b"\x80" * 9 + b"\x00"), 1),
    "lowest timestamp": (record(timestamp_delta=varint(-(2**63))), 1),
    "empty parts": (record(key=b"\0", value=b"\0", headers=named(b"")), 1),
    "last name before the surrogates": (record(headers=named(b"\xed\x9f\xbf")), 1),
    "highest name": (record(headers=named(b"\xf4\x8f\xbf\xbf")), 1),
    "long name": (record(headers=named(b"0123456789abcdef" + "ü€".encode())), 1),
}

BROKEN: dict[str, tuple[bytes, int]] = {
    "no count for bytes": (record(), 0),
    "more than the count": (record() + record(offset_delta=1), 1),
    "fewer than the count": (record(), 2),
    "a negative count": (record(), -1),
    "a byte behind the last": (record() + b"\0", 1),
    "equal offsets": (record() + record(), 2),
    "falling offsets": (record(offset_delta=1) + record(), 2),
    "a negative offset": (record(offset_delta=-1), 1),
    "size beyond the end": (record(size=7), 1),
    "size before the end": (record(size=5), 1),
    "size zero": (b"\0" * 7, 1),
    "a negative size": (record(size=-1), 1),
    "a key of size -2": (record(key=varint(-2)), 1),
    "a value of size -2": (record(value=varint(-2)), 1),
    "a key beyond the record": (record(key=varint(4)), 1),
    "a value beyond the record": (record(value=varint(2)), 1),
    "no headers": (varint(6) + b"\0\0\0\1" + varint(1) + b"v", 1),
    "negative headers": (record(headers=varint(-1)), 1),
    "more headers than bytes": (record(headers=varint(2**31 - 1)), 1),
    "fewer headers than bytes": (record(headers=named(b"n", count=0)), 1),
    "a header without a name": (record(headers=varint(1) + b"\1\1"), 1),
    "a name beyond the record": (record(headers=varint(1) + varint(9) + b"n\1"), 1),
    "a number of eleven bytes": (record(timestamp_delta=b"\x80" * 10 + b"\x00"), 1),
    "a number of 65 bits": (record(timestamp_delta=b"\x80" * 9 + b"\x02"), 1),
    "a number of 33 bits": (record(key=b"\x80\x80\x80\x80\x10"), 1),
    "a number of 34 bits": (record(key=b"\x80\x80\x80\x80\x20"), 1),
    "six bytes for 32 bits": (record(key=b"\x80\x80\x80\x80\x80\x00"), 1),
    "a surrogate": (record(headers=named(b"\xed\xa0\x80")), 1),
    "above the last name": (record(headers=named(b"\xf4\x90\x80\x80")), 1),
    "overlong, two bytes": (record(headers=named(b"\xc1\xbf")), 1),
    "overlong, three bytes": (record(headers=named(b"\xe0\x9f\xbf")), 1),
    "overlong, four bytes": (record(headers=named(b"\xf0\x8f\xbf\xbf")), 1),
    "half a character": (record(headers=named(b"12345678\xe2\x82")), 1),
    "a lone continuation": (record(headers=named(b"\x80")), 1),
}

# Hashing and copying do not look at headers.
BROKEN_HEADERS = {
    "negative headers",
    "more headers than bytes",
    "fewer headers than bytes",
    "a header without a name",
    "a name beyond the record",
    "a surrogate",
    "above the last name",
    "overlong, two bytes",
    "overlong, three bytes",
    "overlong, four bytes",
    "half a character",
    "a lone continuation",
}
COPY_ALL: dict[str, Any] = {
    "first_offset_delta": 0,
    "end_offset_delta": 2**31,
    "drop_tombstones": False,
    "timestamp_shift": 0,
}


@each_kind
@pytest.mark.parametrize("name", SOUND)
def test_just_right(kernels: Any, name: str) -> None:
    payload, count = SOUND[name]
    kernels[0].scan_records(payload, count, 2)
    assert len(kernels[0].decode_records(payload, count, 0, 0, None)) == count
    assert kernels[0].decode_columns(payload, count, 0, 0, None, 0, 9, ColumnBuffers()) == count


@each_kind
@pytest.mark.parametrize("name", BROKEN)
def test_just_wrong(kernels: Any, name: str) -> None:
    payload, count = BROKEN[name]
    with pytest.raises(CorruptRecordError):
        kernels[0].scan_records(payload, count, 100)
    with pytest.raises(CorruptRecordError):
        kernels[0].decode_records(payload, count, 0, 0, None)
    with pytest.raises(CorruptRecordError):
        kernels[0].decode_columns(payload, count, 0, 0, None, 0, 9, ColumnBuffers())
    if name not in BROKEN_HEADERS:
        with pytest.raises(CorruptRecordError):
            kernels[1].hash_keys(payload, count, bytes(16), 0, KeyEntries())
        with pytest.raises(CorruptRecordError):
            kernels[0].copy_records(payload, count, b"\xff", 0, **COPY_ALL)


@each_kind
def test_offsets_end_with_the_batch(kernels: Any) -> None:
    payload = record(offset_delta=4)
    assert not kernels[0].scan_records(payload, 1, 4).is_dense
    with pytest.raises(CorruptRecordError):
        kernels[0].scan_records(payload, 1, 3)
    assert kernels[0].decode_records(payload, 1, 2**63 - 5, 0, None)[0].offset == 2**63 - 1
    with pytest.raises(CorruptRecordError):
        kernels[0].decode_records(payload, 1, 2**63 - 4, 0, None)


@each_kind
def test_timestamps_end_with_64_bits(kernels: Any) -> None:
    payload = record(timestamp_delta=varint(1))
    assert kernels[0].decode_records(payload, 1, 0, 2**63 - 2, None)[0].timestamp_ms == 2**63 - 1
    with pytest.raises(CorruptRecordError):
        kernels[0].decode_records(payload, 1, 0, 2**63 - 1, None)
    assert kernels[0].decode_records(payload, 1, 0, 2**63 - 1, 5)[0].timestamp_ms == 5


@each_kind
def test_each_record_needs_a_survivor_bit(kernels: Any) -> None:
    payload = record() + record(offset_delta=1)
    assert kernels[0].copy_records(payload, 2, b"\xff", 6, **COPY_ALL).payload == payload
    for first_ordinal in (7, 8, 9, 2**62, -1):
        with pytest.raises(CorruptRecordError):
            kernels[0].copy_records(payload, 2, b"\xff", first_ordinal, **COPY_ALL)


@each_kind
def test_each_ordinal_needs_a_survivor_bit(kernels: Any) -> None:
    def merge(ordinal: int) -> bytearray:
        bits = bytearray(2)
        number = ordinal.to_bytes(4, "little")
        kernels[1].merge_windows(
            [
                KeyWindow(
                    hash_high=bytes(8), hash_low=bytes(8), ordinal=number, tombstone=b"\0", start=0, count=1
                )
            ],
            None,
            [bits],
        )
        return bits

    assert merge(15) == b"\x00\x80"
    for ordinal in (16, 2**32 - 1):
        with pytest.raises(CorruptRecordError):
            merge(ordinal)


@pytest.mark.parametrize("number", [0, -1, 1, 63, -64, 64, -65, 8191, 8192, 2**31 - 1, -(2**31)])
def test_numbers_of_every_size(number: int) -> None:
    encoded = varint(number)
    assert len(encoded) == varint_size(number)
    assert (
        read_varint(encoded, 0, len(encoded))
        == read_varlong(encoded, 0, len(encoded))
        == (number, len(encoded))
    )
    with pytest.raises(CorruptRecordError):
        read_varint(encoded, 0, len(encoded) - 1)


def test_32_bits_are_not_33() -> None:
    for encoded in (varint(2**31), varint(-(2**31) - 1), b"\x80" * 5 + b"\x00"):
        with pytest.raises(CorruptRecordError):
            read_varint(encoded, 0, len(encoded))
