"""The division of a count of keys into units of reading, and into buckets of keys. Pure.

    partition   of 3,000 slices
    units       some slices each: what a task reads, one slice after the other
    buckets     ranges of the hash, each with the keys that a task holds at once; small partitions share one

A unit with all keys of its partition, if they are few, needs no bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.pipeline.jobs.divided_order import may_cut_behind
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.slice_entry import OpenTransaction

MAX_KEYS = 1 << 19
"""Keys that a task holds at once, about."""
_UNIT_COST_BYTES = 128 << 20
_LEAST_UNIT_COST_BYTES = 16 << 20
_REQUEST_COST_BYTES = 1 << 20
"""A request takes as long as so many bytes."""
_TASKS_A_LANE = 4
"""Tasks are so small that the last ones end at about the same time."""


class CountBounds(NamedTuple):
    """The most that a task does, about."""

    max_keys: int = MAX_KEYS
    """Keys in memory at once."""
    unit_cost_bytes: int = _UNIT_COST_BYTES
    """The cost of reading a unit."""

    def among(self, lane_count: int, total_bytes: int) -> CountBounds:
        """The bounds with which each lane gets some tasks of such a total."""
        share_bytes = total_bytes // (_TASKS_A_LANE * lane_count)
        unit_bytes = min(self.unit_cost_bytes, max(share_bytes, _LEAST_UNIT_COST_BYTES))
        return self._replace(unit_cost_bytes=unit_bytes)


DEFAULT_BOUNDS = CountBounds()


class CountedPartition(NamedTuple):
    """A partition whose keys are counted."""

    shard: int
    hashing: KeyHashing
    log_start_offset: int
    slices: tuple[LiveSlice, ...]
    """In order, gaps included."""
    open_transactions: tuple[OpenTransaction, ...]
    """Those that are open behind the last slice."""

    def needs_data(self, live: LiveSlice) -> bool:
        """Whether the keys of a slice must be hashed from its data: it has no usable key stream, or one with
        records that are not readable any more."""
        stream = live.entry.key_stream
        if not live.entry.record_count:
            return False
        is_clipped = max(live.base_offset, self.log_start_offset) > live.entry.base_offset
        return stream is None or is_clipped or not self.hashing.made(stream)

    def max_keys_of(self, live: LiveSlice) -> int:
        """The most keys that a slice can have."""
        stream = live.entry.key_stream
        return live.entry.record_count if stream is None or self.needs_data(live) else stream.entry_count

    def cost_bytes(self, live: LiveSlice) -> int:
        """The cost of reading the keys of a slice."""
        stream = live.entry.key_stream
        size_bytes = live.entry.data_bytes if self.needs_data(live) else stream.size_bytes if stream else 0
        return size_bytes + _REQUEST_COST_BYTES


class CountUnit(NamedTuple):
    """Slices of one partition whose keys a task reads, one slice after the other. Pickled to it."""

    partition: CountedPartition
    """Has the slices of the unit alone, with all markers of the transactions of those whose data is read."""
    number: int
    """The number of its partition."""
    first_slice: int
    """The number of its first slice among those of all partitions; the others follow."""
    cost_bytes: int
    first_bucket: int
    range_count: int
    """Ranges of the hash, from the first bucket on; 0: the unit has all keys of its partition, and they are
    few."""


class CountPlan(NamedTuple):
    """The tasks of a count."""

    groups: list[list[CountUnit]]
    """A task reads a group of units."""
    bucket_count: int

    @staticmethod
    def of(partitions: Sequence[CountedPartition], lane_count: int, bounds: CountBounds) -> CountPlan:
        """The tasks for so many lanes."""
        total_bytes = sum(one.cost_bytes(live) for one in partitions for live in one.slices)
        bounds = bounds.among(lane_count, total_bytes)
        units, bucket_count = _units(partitions, bounds)
        groups: list[list[CountUnit]] = []
        left_bytes = 0
        for unit in units:
            if left_bytes <= 0:
                groups.append([])
                left_bytes = bounds.unit_cost_bytes
            groups[-1].append(unit)
            left_bytes -= unit.cost_bytes
        return CountPlan(groups, bucket_count)


def _units(partitions: Sequence[CountedPartition], bounds: CountBounds) -> tuple[list[CountUnit], int]:
    """The units of these partitions, and the number of their buckets."""
    units: list[CountUnit] = []
    first_slice = bucket_count = 0
    shared_keys = bounds.max_keys
    """In the last bucket that small partitions share; none yet."""
    shared_bucket = 0
    for number, partition in enumerate(partitions):
        pieces = list(_pieces(partition, bounds))
        key_count = sum(map(partition.max_keys_of, partition.slices))
        range_count = -(-key_count // bounds.max_keys)
        first_bucket = bucket_count
        if len(pieces) == 1 and range_count <= 1:
            range_count = first_bucket = 0
        elif range_count > 1:
            bucket_count += range_count
        else:
            range_count = 1
            if shared_keys + key_count > bounds.max_keys:
                shared_keys, shared_bucket = 0, bucket_count
                bucket_count += 1
            shared_keys += key_count
            first_bucket = shared_bucket
        for first, end in pieces:
            is_last = end == len(partition.slices)
            part = partition._replace(
                slices=partition.slices[first:end],
                open_transactions=partition.open_transactions if is_last else (),
            )
            units.append(
                CountUnit(
                    partition=part,
                    number=number,
                    first_slice=first_slice + first,
                    cost_bytes=sum(map(partition.cost_bytes, part.slices)),
                    first_bucket=first_bucket,
                    range_count=range_count,
                )
            )
        first_slice += len(partition.slices)
    return units, bucket_count


def _pieces(partition: CountedPartition, bounds: CountBounds) -> Iterator[tuple[int, int]]:
    """The slices [first, end) of each unit. A unit with slices whose data is read ends where no transaction
    is open, so that it has their markers."""
    first = key_count = cost_bytes = 0
    reads_data = False
    for index, live in enumerate(partition.slices):
        key_count += partition.max_keys_of(live)
        cost_bytes += partition.cost_bytes(live)
        reads_data = reads_data or partition.needs_data(live)
        is_full = key_count >= bounds.max_keys or cost_bytes >= bounds.unit_cost_bytes
        if is_full and (not reads_data or may_cut_behind(live)):
            yield first, index + 1
            first = index + 1
            key_count = cost_bytes = 0
            reads_data = False
    if first < len(partition.slices):
        yield first, len(partition.slices)
