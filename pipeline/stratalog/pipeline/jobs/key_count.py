"""Counts the different keys of partitions over many machines, and the records of each slice that stay because
they are the newest ones of their keys.

    unit    reads the keys of its slices, and sends each range of their hashes to its bucket
    bucket  finds the newest entry of each key there, and counts them by slices
    sum     adds up the counts of all buckets, of some slices

A task holds about `CountBounds.max_keys` keys at once, whatever the number of slices and keys: a unit sends
what it has when it has so many, and there are as many buckets as that says, because hashes are spread evenly.
A unit that has all keys of its partition sends none.

A task whose output got lost, or came twice, would make a number wrong that nothing else checks. So numbers go
along and are compared in the end: of units, of entries that were sent and that arrived, and of the newest
records, which add up to those of all slices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.errors import LogStoreError, StoreCorruptError
from stratalog.pipeline.jobs.cluster import Cluster, Stage
from stratalog.pipeline.jobs.count_unit import (
    DEFAULT_BOUNDS,
    CountBounds,
    CountedPartition,
    CountPlan,
    CountUnit,
)
from stratalog.pipeline.jobs.key_exchange import ranges_of
from stratalog.pipeline.jobs.slice_means import proof_means
from stratalog.pipeline.jobs.task_place import OpenPlace, TaskMeans
from stratalog.pipeline.jobs.unit_keys import UnitKeys
from stratalog.record.native.kernels import KeyEntries, sort_key_entries
from stratalog.record.native.key_entries import Column
from stratalog.remote.objects.key_stream import KeyBlock


class CountedKeys(NamedTuple):
    """Some keys of one partition and one range. Pickled between the tasks."""

    number: int
    """The number of the partition."""
    columns: tuple[bytes, ...]
    """Those of a `KeyBlock`, with the numbers of slices as ordinals."""


class KeyTally(NamedTuple):
    """Counts of slices, by their numbers. Pickled between the tasks."""

    newest: Counter[int]
    """Records that are the newest ones of their keys."""
    keyless: Counter[int]
    """Records without a key."""
    sent_count: int = 0
    """Entries that units sent."""
    merged_count: int = 0
    """Entries that buckets received."""
    newest_count: int = 0
    """Records in `newest`, as they were found."""
    unit_count: int = 0
    """Units whose keys were read."""

    @staticmethod
    def sum_of(tallies: Iterable[KeyTally]) -> KeyTally:
        """All together."""
        newest, keyless = Counter[int](), Counter[int]()
        sums = [0] * len(KeyTally._fields[2:])
        for one in tallies:
            newest.update(one.newest)
            keyless.update(one.keyless)
            sums = [total + number for total, number in zip(sums, one[2:], strict=True)]
        return KeyTally(newest, keyless, *sums)

    def require_whole(self, unit_count: int) -> None:
        """Raise StoreCorruptError unless the outputs of all tasks are here, each once."""
        for found_count, expected_count in (
            (self.unit_count, unit_count),
            (self.merged_count, self.sent_count),
            (self.newest.total(), self.newest_count),
        ):
            if found_count != expected_count:
                raise StoreCorruptError(
                    "an output of a task of a count was lost or came twice; report it with the log of Spark",
                    found_count=found_count,
                    expected_count=expected_count,
                )


_Message = CountedKeys | KeyTally | LogStoreError


@dataclass(frozen=True, slots=True)
class KeyCount:
    """The steps of a count. Immutable, pickled to the machines."""

    open_place: OpenPlace
    max_keys: int
    sum_count: int
    """Tasks that add up."""

    def read(self, groups: Iterator[Sequence[CountUnit]]) -> Iterator[tuple[int, _Message]]:
        """The keys of some units, by their buckets."""
        for units in groups:
            try:
                with self.open_place() as means:
                    for unit in units:
                        yield from self._sent(means, unit)
            except LogStoreError as error:
                yield 0, error

    def merge(self, messages: Iterator[_Message]) -> Iterator[tuple[int, _Message]]:
        """The counts of one bucket, by the tasks that add them up."""
        keys: dict[int, list[CountedKeys]] = defaultdict(list)
        tallies: list[KeyTally] = []
        for message in messages:
            match message:
                case CountedKeys():
                    keys[message.number].append(message)
                case KeyTally():
                    tallies.append(message)
                case _:
                    yield 0, message
        while keys:
            tallies.append(_merged(keys.popitem()[1]))
        tally = KeyTally.sum_of(tallies)
        for number in range(self.sum_count):
            part = tally._replace(newest=self._part(tally.newest, number))
            yield number, part if number == 0 else KeyTally(part.newest, Counter())

    def add_up(self, messages: Iterator[_Message]) -> Iterator[KeyTally | LogStoreError]:
        """The counts of some slices."""
        errors: list[LogStoreError] = []
        yield KeyTally.sum_of(_tallies(messages, errors))
        yield from errors

    def alone(self, units: Sequence[CountUnit]) -> list[KeyTally | LogStoreError]:
        """The counts of units that need no bucket, as one task."""
        return list(self.add_up(message for _, message in self.read(iter([units]))))

    def _part(self, counts: Counter[int], number: int) -> Counter[int]:
        if self.sum_count == 1:
            return counts
        return Counter({one: count for one, count in counts.items() if one % self.sum_count == number})

    def _sent(self, means: TaskMeans, unit: CountUnit) -> Iterator[tuple[int, _Message]]:
        keys = UnitKeys(proof_means(means, unit.partition.shard), unit, self.max_keys)
        newest = Counter[int]()
        sent_count = piece_count = 0
        for entries in keys.newest():
            piece_count += 1
            if not unit.range_count:
                assert piece_count == 1, "its keys are few"
                newest.update(entries.ordinal)
                continue
            for number, columns in ranges_of(_block_of(entries), unit.range_count):
                sent_count += len(columns[3])
                yield unit.first_bucket + number, CountedKeys(unit.number, columns)
        yield (
            unit.first_bucket,
            KeyTally(
                newest,
                keys.keyless_counts,
                sent_count=sent_count,
                newest_count=newest.total(),
                unit_count=1,
            ),
        )


def count_keys(
    cluster: Cluster,
    open_place: OpenPlace,
    partitions: Sequence[CountedPartition],
    bounds: CountBounds = DEFAULT_BOUNDS,
) -> KeyTally:
    """Count the keys of partitions on the cluster. Slices are numbered from 0, over all partitions. Raises
    StoreError, StoreCorruptError, CorruptRecordError, and LogStoreError if the cluster gives up."""
    if not any(one.slices for one in partitions):
        return KeyTally(Counter(), Counter())
    lane_count = cluster.lane_count
    plan = CountPlan.of(partitions, lane_count, bounds)
    count = KeyCount(open_place, bounds.max_keys, max(1, min(lane_count, plan.bucket_count)))
    found: Iterable[KeyTally | LogStoreError]
    if plan.bucket_count:
        stages = (Stage(count.read, plan.bucket_count), Stage(count.merge, count.sum_count))
        found = cluster.exchanged(plan.groups, stages, count.add_up)
    else:
        found = (one for done in cluster.each(count.alone, plan.groups) for one in done)
    errors: list[LogStoreError] = []
    tally = KeyTally.sum_of(_tallies(found, errors))
    if errors:
        raise errors[0]
    tally.require_whole(sum(map(len, plan.groups)))
    return tally


def _tallies(messages: Iterable[_Message], errors: list[LogStoreError]) -> Iterator[KeyTally]:
    """The counts among messages; the errors are put into the list."""
    for message in messages:
        if isinstance(message, KeyTally):
            yield message
        elif isinstance(message, LogStoreError):
            errors.append(message)


def _merged(keys: list[CountedKeys]) -> KeyTally:
    """Count the newest entries of one partition. Empties the list."""
    entries = KeyEntries(has_versions=len(keys[0].columns) == len(KeyBlock._fields) - 1)
    while keys:
        high, low, ordinal, tombstone, *version = keys.pop().columns
        entries.hash_high.frombytes(high)
        entries.hash_low.frombytes(low)
        entries.ordinal.frombytes(ordinal)
        entries.tombstone.extend(tombstone)
        if entries.version is not None:
            entries.version.frombytes(version[0])
    newest = Counter(sort_key_entries(entries).ordinal)
    return KeyTally(newest, Counter(), merged_count=len(entries), newest_count=newest.total())


def _block_of(entries: KeyEntries) -> KeyBlock:
    columns: list[Column] = [entries.hash_high, entries.hash_low, entries.ordinal, entries.tombstone]
    if entries.version is not None:
        columns.append(entries.version)
    return KeyBlock(len(entries), *(memoryview(column).cast("B") for column in columns))
