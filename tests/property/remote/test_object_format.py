"""Every codec of the object file gives back what it was given, and meets damage with its own errors only.

The codecs whose checksum lies elsewhere (directory, index) are also fed damaged bytes directly: a caller
that got the checksum right by accident must not meet an IndexError.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.remote.objects.directory_codec import (
    DIRECTORY_HEADER,
    ENTRY,
    decode_directory,
    encode_directory,
)
from stratalog.remote.objects.object_format import (
    FOOTER,
    ObjectHeader,
    ObjectKind,
    crc_of,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
)
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)
from stratalog.remote.objects.slice_index import SliceIndex, decode_slice_index, encode_slice_index
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from tests.support.tiered.sample_entry import sample_entry

DAMAGE = (StoreCorruptError, StoreNotUsableError)

u32 = st.integers(0, 2**32 - 1)
offsets = st.integers(0, 2**63 - 2)
timestamps = st.integers(-(2**63), 2**63 - 1)
uuids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
names = st.builds(format_object_name, st.integers(0, 2**63), uuids)
texts = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


@st.composite
def headers(draw: st.DrawFn) -> ObjectHeader:
    kind = draw(st.sampled_from(ObjectKind))
    inputs = draw(st.lists(names, min_size=1, max_size=4)) if kind is ObjectKind.REPLACEMENT else []
    return ObjectHeader(
        store_id=draw(uuids),
        shard=draw(st.integers(0, 9999)),
        epoch=draw(offsets),
        kind=kind,
        name=draw(names),
        inputs=tuple(inputs),
    )


@st.composite
def refs(draw: st.DrawFn) -> ObjectRef:
    data_position = draw(st.integers(0, 2**40))
    directory_position = 8 * -(-(data_position + draw(st.integers(0, 2**40))) // 8)
    directory_bytes = draw(st.integers(0, 2**30))
    key_streams_end = directory_position + directory_bytes + draw(st.integers(0, 2**40))
    size_bytes = key_streams_end + draw(st.integers(0, 2**40)) + FOOTER.size_bytes
    return ObjectRef(
        name=draw(names),
        size_bytes=size_bytes,
        data_position=data_position,
        directory_position=directory_position,
        directory_bytes=directory_bytes,
        key_streams_end=key_streams_end,
        directory_crc=draw(u32),
    )


class Numbers:
    """Numbers from one seed, edges of their ranges among them: drawing each by itself would take most of
    the time.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self._random.choice((low, high, self._random.randint(low, high)))

    def maybe(self) -> bool:
        return self._random.random() < 0.5

    def offset(self) -> int:
        return self.number(0, 2**63 - 2)

    def timestamp(self) -> int:
        return self.number(-(2**63), 2**63 - 1)

    def u32(self) -> int:
        return self.number(0, 2**32 - 1)

    def uuid(self) -> UUID:
        return UUID(int=self.number(0, 2**128 - 1))

    def ascending(self, low: int, high: int, count: int) -> list[int]:
        """Distinct numbers, at most `count`."""
        return sorted({self.number(low, high) for _ in range(count)})


def entry_of(topic: str, seed: int) -> SliceEntry:
    """An entry that keeps all invariants."""
    some = Numbers(seed)
    base_offset, end_offset = sorted((some.offset(), some.offset()))
    has_data = end_offset > 0 and some.maybe()
    record_count = some.u32() if has_data else 0
    opens: list[OpenTransaction] = []
    if has_data and some.maybe():
        opens = [OpenTransaction(some.offset(), some.number(0, end_offset - 1)) for _ in range(2)]
    tombstone_count = some.number(0, record_count)
    least, most = sorted((some.timestamp(), some.timestamp()))
    epochs, starts = some.ascending(-1, 2**31, 4), some.ascending(0, 2**63 - 1, 4)
    entry_count = some.number(0, record_count)
    stream = KeyStreamRef(some.offset(), some.offset(), entry_count, some.u32(), some.u32() << 32)
    last_batch = (
        LastBatch(some.number(0, end_offset - 1), some.number(-1, 2**31 - 1), some.u32())
        if has_data
        else None
    )
    marker_count = some.number(0, record_count - tombstone_count)
    return SliceEntry(
        topic_id=some.uuid(),
        topic=topic,
        partition=some.number(0, 2**31 - 1),
        base_offset=base_offset,
        end_offset=end_offset,
        data_position=some.offset(),
        data_bytes=some.number(1, 2**40) if has_data else 0,
        data_crc=some.u32(),
        record_count=record_count,
        min_timestamp=least if has_data else -1,
        max_timestamp=most if has_data else -1,
        max_timestamp_offset=some.offset() if has_data else -1,
        codec_mask=some.number(0, 31),
        stable_end_offset=min((one.first_offset for one in opens), default=end_offset),
        has_aborted=some.maybe(),
        open_transactions=tuple(opens),
        tombstone_count=tombstone_count,
        marker_count=marker_count,
        earliest_delete_horizon_ms=some.timestamp() if some.maybe() else None,
        leader_epochs=tuple(LeaderEpoch(*pair) for pair in zip(epochs, starts, strict=False)),
        last_batch=last_batch,
        key_stream=stream if not opens and some.maybe() else None,
        index=PartRef(some.offset(), some.offset(), some.u32()),
    )


entries = st.builds(entry_of, texts, st.integers(0, 2**64 - 1))
directories = st.lists(entries, max_size=4, unique_by=lambda entry: entry.topic_id_partition).map(
    lambda found: tuple(sorted(found, key=lambda entry: entry.topic_id_partition))
)


@st.composite
def indexes(draw: st.DrawFn) -> SliceIndex:
    positions = [0, *sorted(draw(st.sets(st.integers(1, 2**40), max_size=5)))]
    base_offsets = sorted(draw(st.sets(offsets, min_size=len(positions), max_size=len(positions))))
    return SliceIndex(
        data_bytes=positions[-1] + draw(st.integers(1, 2**30)),
        positions=positions,
        base_offsets=base_offsets,
        max_timestamps=[draw(timestamps) for _ in positions],
        aborted=tuple(
            draw(st.lists(st.builds(AbortedTransaction, offsets, offsets, offsets, offsets), max_size=2))
        ),
        producer_snapshot=draw(st.binary(max_size=20)),
    )


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """One byte changed, a piece cut out or put in."""
    position = draw(st.integers(0, max(len(data) - 1, 0)))
    match draw(st.sampled_from(("flip", "cut", "insert", "end"))):
        case "flip":
            changed = bytearray(data or b"\0")
            changed[position] ^= draw(st.integers(1, 255))
            return bytes(changed)
        case "cut":
            return data[:position] + data[position + draw(st.integers(1, 16)) :]
        case "insert":
            return data[:position] + draw(st.binary(min_size=1, max_size=16)) + data[position:]
        case _:
            return data[:position]


class Codec(NamedTuple):
    """`decode` takes the bytes and the encoded value, for what the caller of a decoder knows of it."""

    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, Any], Any]
    has_checksum: bool


def plain(index: SliceIndex) -> SliceIndex:
    """With tuples in place of columns."""
    index.check()
    return SliceIndex(
        data_bytes=index.data_bytes,
        positions=tuple(index.positions),
        base_offsets=tuple(index.base_offsets),
        max_timestamps=tuple(index.max_timestamps),
        aborted=tuple(index.aborted),
        producer_snapshot=index.producer_snapshot,
    )


def decode_its_header(data: bytes, _: object) -> object:
    return decode_header(data)


def decode_its_footer(data: bytes, ref: ObjectRef) -> object:
    return decode_footer(data, ref.name)


def decode_its_directory(data: bytes, _: object) -> object:
    return decode_directory(data)


def decode_its_index(data: bytes, index: SliceIndex) -> object:
    return plain(decode_slice_index(data, index.data_bytes))


CODECS = {
    "header": Codec(headers(), encode_header, decode_its_header, has_checksum=True),
    "footer": Codec(refs(), encode_footer, decode_its_footer, has_checksum=True),
    "directory": Codec(directories, encode_directory, decode_its_directory, has_checksum=False),
    "index": Codec(
        indexes().map(plain),
        encode_slice_index,
        decode_its_index,
        has_checksum=False,
    ),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(data=st.data())
def test_a_value_comes_back_and_damage_ends_in_the_right_errors(codec: Codec, data: st.DataObject) -> None:
    value = data.draw(codec.values)
    encoded = codec.encode(value)
    assert len(encoded) % 8 == 0
    assert codec.decode(encoded, value) == value
    for changed in (data.draw(damaged(encoded)), data.draw(st.binary(max_size=600))):
        with suppress(*DAMAGE):
            found = codec.decode(changed, value)
            # A header does not know what follows it.
            assert not codec.has_checksum or (found == value and changed.startswith(encoded))


@given(directories, st.integers(1, 5))
def test_longer_entries_of_a_later_version_are_read(directory: tuple[SliceEntry, ...], words: int) -> None:
    """A later version appends fields to each entry; what lies behind the fixed part moves, and so do
    references.
    """
    data = encode_directory(directory)
    extra = 8 * words
    moved = extra * len(directory)
    fixed_end = DIRECTORY_HEADER.size_bytes + len(directory) * ENTRY.size_bytes
    longer = bytearray(
        DIRECTORY_HEADER.pack(len(directory), ENTRY.size_bytes + extra, 0, 0, len(data) + moved)
    )
    for number in range(len(directory)):
        fields = dict(
            zip(
                ENTRY.positions,
                ENTRY.unpack(data, DIRECTORY_HEADER.size_bytes + number * ENTRY.size_bytes),
                strict=True,
            )
        )
        for name in (
            "topic_position",
            "leader_epochs_position",
            "open_transactions_position",
        ):
            fields[name] += moved
        longer += ENTRY.pack(*fields.values()) + b"\xff" * extra
    longer += data[fixed_end:]
    assert decode_directory(bytes(longer)) == directory


@given(st.lists(entries, min_size=2, max_size=3, unique_by=lambda entry: entry.topic_id_partition))
def test_a_directory_that_is_not_sorted_is_refused(found: list[SliceEntry]) -> None:
    found.sort(key=lambda entry: entry.topic_id_partition)
    data = bytearray(encode_directory(found))
    first, second = (slice(DIRECTORY_HEADER.size_bytes + n * ENTRY.size_bytes, None) for n in (0, 1))
    one, other = bytes(data[first][: ENTRY.size_bytes]), bytes(data[second][: ENTRY.size_bytes])
    data[first.start : first.start + 2 * ENTRY.size_bytes] = other + one
    with pytest.raises(StoreCorruptError):
        decode_directory(bytes(data))


@pytest.mark.parametrize("field", ["reader_version", "flags"])
def test_what_a_later_version_made_unreadable_is_refused(field: str) -> None:
    name = format_object_name(1, UUID(int=1))
    footer = bytearray(
        encode_footer(
            ObjectRef(
                name=name,
                size_bytes=200,
                data_position=0,
                directory_position=0,
                directory_bytes=0,
                key_streams_end=0,
                directory_crc=0,
            )
        )
    )
    footer[FOOTER.positions[field]] = 2
    crc_position = FOOTER.positions["footer_crc"]
    footer[crc_position : crc_position + 4] = crc_of(footer[:crc_position]).to_bytes(4, "little")
    with pytest.raises(StoreNotUsableError):
        decode_footer(bytes(footer), name)


@given(st.integers(0, 31))
def test_an_unknown_flag_of_an_entry_is_refused(bit: int) -> None:
    data = bytearray(encode_directory([sample_entry(0, 1)]))
    position = DIRECTORY_HEADER.size_bytes + ENTRY.positions["flags"] + bit // 8
    data[position] |= 1 << bit % 8
    with pytest.raises(DAMAGE) if bit >= 4 or bit == 1 else nullcontext():
        decode_directory(bytes(data))


@given(indexes(), offsets)
def test_an_offset_is_in_the_last_interval_that_begins_at_or_before_it(
    index: SliceIndex, offset: int
) -> None:
    number = index.index_for_offset(offset)
    expected = sum(base <= offset for base in index.base_offsets) - 1
    assert number == max(expected, 0)
    interval = index.interval(number)
    assert interval.position == index.positions[number]
    assert interval.end_position == [*index.positions[1:], index.data_bytes][number]
