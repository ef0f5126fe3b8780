"""Phase 1 of a compaction over many machines: the keys of all slices are merged by ranges of the hash.

    unit   reads the keys of its slices, and sends each range of them to its bucket
    range  merges the keys of all slices there: the bits of the records that stay, of that range
    slice  joins the bits of all ranges

Only keys move between machines: 21 bytes for each different key of a slice, and about a bit for each record.
A range is held in memory, so there are as many ranges as `RANGE_BYTES` says. Hashes are spread evenly.

The entries of each slice are counted when they are sent, and again when they are merged: a record whose key
was lost on the way would be lost.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Failed
from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.survivor_bits import new_bitmap
from stratalog.compaction.keys.survivor_plan import SurvivorPlan, merge_keys
from stratalog.pipeline.jobs.cluster import Cluster, Stage
from stratalog.pipeline.jobs.divided_order import DividedOrder, KeyUnit, NumberedSlice
from stratalog.pipeline.jobs.order_task import TaskTransfer, opened_execution
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.remote.objects.key_stream import KeyBlock

RANGE_BYTES = 64 << 20
"""The keys that a task merges at once, about."""
_ENTRY_BYTES = 21
_UINT64 = 1 << 64


class KeyPiece(NamedTuple):
    """Consecutive entries of the sorted keys of a slice, all of one range."""

    slice_number: int
    part: int
    """The number of the sorted part of the slice, oldest first."""
    place: int
    """The number of the block in it."""
    columns: tuple[bytes, ...]
    """The columns of a `KeyBlock`; the version may be missing."""

    def block(self) -> KeyBlock:
        """The entries as a block."""
        return KeyBlock(len(self.columns[3]), *[memoryview(column) for column in self.columns])


class SliceBits(NamedTuple):
    """Some of the survivors of a slice."""

    slice_number: int
    bits: bytes
    """A bitmap, compressed."""
    sent_count: int = 0
    """Entries of keys that were sent."""
    merged_count: int = 0
    """Entries that were merged."""


_Message = KeyPiece | SliceBits | Transfer | Failed


class FoundSurvivors(NamedTuple):
    """The result of an exchange."""

    bitmaps: list[bytes]
    """The survivors of each slice, by its number; empty if a task has failed."""
    transfer: Transfer
    failed: Failed | None


@dataclass(frozen=True, slots=True)
class KeyExchange:
    """The steps of an exchange. Immutable, pickled to the machines."""

    open_place: OpenPlace
    range_count: int
    runs: tuple[int, ...]
    """For each slice the number of its run."""
    record_counts: tuple[int, ...]
    """For each slice the number of its records."""

    def read(self, units: Iterator[KeyUnit]) -> Iterator[tuple[int, _Message]]:
        """The keys of some units, by the numbers of their ranges."""
        for unit in units:
            transfer = TaskTransfer()
            with opened_execution(self.open_place, unit.order, transfer) as execution:
                try:
                    for _, plan in execution.open_keys():
                        yield from self._sent(plan, unit.first_number)
                except Exception as error:  # noqa: BLE001 - the driver decides
                    yield 0, Failed.of(execution, error)
            yield 0, transfer.total

    def merge(self, messages: Iterator[_Message]) -> Iterator[tuple[int, _Message]]:
        """The survivors of one range, by the numbers of their slices."""
        pieces: dict[int, list[KeyPiece]] = defaultdict(list)
        for message in messages:
            if isinstance(message, KeyPiece):
                pieces[message.slice_number].append(message)
            else:
                yield (message.slice_number if isinstance(message, SliceBits) else 0), message
        cursors: dict[int, list[KeyCursor]] = defaultdict(list)
        bitmaps: dict[int, bytearray] = {}
        for number in sorted(pieces):
            bitmaps[number] = new_bitmap(self.record_counts[number])
            parts: dict[int, list[KeyPiece]] = defaultdict(list)
            for piece in sorted(pieces[number], key=lambda one: (one.part, one.place)):
                parts[piece.part].append(piece)
            cursors[self.runs[number]] += [
                KeyCursor(map(KeyPiece.block, blocks), bitmaps[number]) for blocks in parts.values()
            ]
        for of_run in cursors.values():
            merge_keys(of_run)
        for number, bitmap in bitmaps.items():
            merged_count = sum(len(piece.columns[3]) for piece in pieces[number])
            yield number, SliceBits(number, _packed(bitmap), merged_count=merged_count)

    def join(self, messages: Iterator[_Message]) -> Iterator[_Message]:
        """The survivors of whole slices."""
        joined: dict[int, int] = defaultdict(int)
        counts: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for message in messages:
            if not isinstance(message, SliceBits):
                yield message
                continue
            number = message.slice_number
            joined[number] |= int.from_bytes(zlib.decompress(message.bits), "little")
            sent, merged = counts[number]
            counts[number] = sent + message.sent_count, merged + message.merged_count
        for number, bits in joined.items():
            bitmap = bits.to_bytes((self.record_counts[number] + 7) // 8, "little")
            yield SliceBits(number, _packed(bitmap), *counts[number])

    def _sent(self, plan: SurvivorPlan, first_number: int) -> Iterator[tuple[int, _Message]]:
        for index, fixed in enumerate(plan.survivors):
            number, sent_count = first_number + index, 0
            for part, open_part in enumerate(plan.parts(index)):
                for place, block in enumerate(open_part()):
                    sent_count += block.entry_count
                    for range_number, columns in ranges_of(block, self.range_count):
                        yield range_number, KeyPiece(number, part, place, columns)
            yield number % self.range_count, SliceBits(number, _packed(fixed), sent_count=sent_count)


def find_survivors(cluster: Cluster, open_place: OpenPlace, divided: DividedOrder) -> FoundSurvivors:
    """Merge the keys of a divided order on the cluster. Raises StoreCorruptError if keys are lost on the way,
    and LogStoreError if the cluster gives up."""
    slices = divided.slices()
    if not slices:
        return FoundSurvivors([], Transfer(), None)
    exchange = KeyExchange(
        open_place,
        range_count=_range_count(slices, cluster.lane_count),
        runs=tuple(one.run for one in slices),
        record_counts=tuple(one.live.entry.record_count for one in slices),
    )
    stages = (
        Stage(exchange.read, exchange.range_count),
        Stage(exchange.merge, min(len(slices), cluster.lane_count)),
    )
    messages: list[_Message] = cluster.exchanged(divided.units(), stages, exchange.join)
    transfer = Transfer()
    found: dict[int, SliceBits] = {}
    for message in messages:
        if isinstance(message, Failed):
            return FoundSurvivors([], transfer, message)
        if isinstance(message, Transfer):
            transfer = transfer.plus(message)
        elif isinstance(message, SliceBits):
            found[message.slice_number] = message
    bitmaps = [_proved(found.get(number), one) for number, one in enumerate(slices)]
    return FoundSurvivors(bitmaps, transfer, None)


def ranges_of(block: KeyBlock, range_count: int) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """The columns of a block by the number of their range: each of the ranges has the same share of all
    hashes."""
    columns = [block.hash_high, block.hash_low, block.ordinal, block.tombstone]
    if block.version is not None:
        columns.append(block.version)
    widths = [len(column) // block.entry_count for column in columns]
    highs = block.hash_high.cast("Q")
    first = 0
    while first < block.entry_count:
        number = highs[first] * range_count // _UINT64
        # The first hash of the next range.
        behind = -(-(number + 1) * _UINT64 // range_count)
        end = block.entry_count if behind >= _UINT64 else bisect_left(highs, behind, first)
        yield (
            number,
            tuple(
                bytes(column[first * width : end * width])
                for column, width in zip(columns, widths, strict=True)
            ),
        )
        first = end


def _range_count(slices: Iterable[NumberedSlice], lane_count: int) -> int:
    entry_count = sum(
        one.live.entry.record_count
        if one.live.entry.key_stream is None
        else one.live.entry.key_stream.entry_count
        for one in slices
    )
    return max(lane_count, -(-entry_count * _ENTRY_BYTES // RANGE_BYTES), 1)


def _proved(found: SliceBits | None, numbered: NumberedSlice) -> bytes:
    """The bitmap of a slice, if all of its keys were merged."""
    entry = numbered.live.entry
    expected = found.sent_count if found is not None else 0
    if numbered.has_keys:
        expected = 0 if entry.key_stream is None else entry.key_stream.entry_count
    if found is None or not found.sent_count == found.merged_count == expected:
        raise StoreCorruptError(
            "keys of a slice were lost between the tasks of a compaction, which has changed nothing; report"
            " it with the log of Spark",
            topic=entry.topic,
            partition=entry.partition,
            object=numbered.live.object_name,
            slice_base_offset=numbered.live.base_offset,
            expected_count=expected,
            merged_count=0 if found is None else found.merged_count,
        )
    return zlib.decompress(found.bits)


def _packed(bitmap: bytes | bytearray) -> bytes:
    return zlib.compress(bitmap, 1)
