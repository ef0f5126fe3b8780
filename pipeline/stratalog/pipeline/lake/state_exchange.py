"""Finds the last record of each key with all executors, and writes it to files.

    group   reads the keys of some slices, and sends the last offset of each to the range of its hash
    range   keeps the last one of all groups, and sends its offset to the group that has it; if the keys are
            wanted, it writes them to a file
    writer  reads the values of the offsets that came back, of some groups, and writes files

Keys and offsets move between machines; values do not. A group goes the way of its offsets, by one range, so
that a writer learns of its own groups only, however many there are. Rows are counted at each step: a row that
got lost on the way would be missing in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.errors import LogStoreError, StoreCorruptError
from stratalog.pipeline.jobs.cluster import Cluster, Stage
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.pipeline.lake.changed_keys import ChangedKeys, KeyFile, KeyWriter
from stratalog.pipeline.lake.last_offsets import KeyRows, LastOffsets, SurvivingRows, Survivors, merge_last
from stratalog.pipeline.lake.row_writer import RowWriter, WrittenRows
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.source.slice_span import SliceSpan

_WRITTEN_COLUMNS = ("key", "partition", "offset", "timestamp", "value")


class SliceGroup(NamedTuple):
    """Slices that a task reads. Pickled to it."""

    number: int
    spans: tuple[SliceSpan, ...]


class Counted(NamedTuple):
    """Rows of an exchange at its steps."""

    group_count: int = 0
    """Groups that were read."""
    sent_count: int = 0
    """Keys that the groups sent."""
    merged_count: int = 0
    """Keys that the ranges received."""
    survivor_count: int = 0
    """Rows that the ranges sent back."""

    def plus(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(*(one + another for one, another in zip(self, other, strict=True)))


_Message = SliceGroup | KeyRows | Survivors | KeyFile | Counted | LogStoreError
_Result = WrittenRows | KeyFile | Counted | LogStoreError


class ExchangedState(NamedTuple):
    """The result of an exchange."""

    written: list[WrittenRows]
    keys: ChangedKeys
    """The keys of all records; none if they were not wanted."""


@dataclass(frozen=True, slots=True)
class StateExchange:
    """The steps of an exchange. Immutable, pickled to the machines with each task, so it has nothing that
    grows with the topic."""

    open_place: OpenPlace
    range_count: int
    groups_a_writer: int
    writer: RowWriter
    keys: KeyWriter | None = None
    """None if the keys are not wanted."""

    def read(self, groups: Iterator[SliceGroup]) -> Iterator[tuple[int, _Message]]:
        """The last records of some groups, by the ranges of their keys."""
        for group in groups:
            last = LastOffsets()
            try:
                with self.open_place() as means:
                    for rows in scan(means.store, group.spans, ("key", "partition", "offset")):
                        last.add(rows)
            except LogStoreError as error:
                yield 0, error
                continue
            sent_count = 0
            for number, part in last.ranges(self.range_count):
                sent_count += part.num_rows
                yield number, KeyRows(group.number, part)
            yield group.number % self.range_count, group
            yield 0, Counted(group_count=1, sent_count=sent_count)

    def merge(self, messages: Iterator[_Message]) -> Iterator[tuple[int, _Message]]:
        """The last records of one range, by the writers of their groups."""
        pieces: list[KeyRows] = []
        for message in messages:
            if isinstance(message, KeyRows):
                pieces.append(message)
            elif isinstance(message, SliceGroup):
                yield message.number // self.groups_a_writer, message
            else:
                yield 0, message
        if not pieces:
            return
        last = merge_last(pieces)
        if self.keys is not None:
            try:
                yield 0, self.keys.write(last.rows)
            except LogStoreError as error:
                yield 0, error
        survivor_count = 0
        for survivors in last.survivors():
            survivor_count += survivors.rows.num_rows
            yield survivors.group // self.groups_a_writer, survivors
        merged_count = sum(piece.rows.num_rows for piece in pieces)
        yield 0, Counted(merged_count=merged_count, survivor_count=survivor_count)

    def write(self, messages: Iterator[_Message]) -> Iterator[_Result]:
        """Write the records of one writer."""
        survivors: dict[int, list[Survivors]] = defaultdict(list)
        groups: dict[int, SliceGroup] = {}
        for message in messages:
            if isinstance(message, Survivors):
                survivors[message.group].append(message)
            elif isinstance(message, SliceGroup):
                groups[message.number] = message
            elif not isinstance(message, KeyRows):
                yield message
        if not survivors:
            return
        try:
            unknown = survivors.keys() - groups.keys()
            _require_same(len(unknown), 0, "slices were lost between the tasks of a job")
            surviving = {number: SurvivingRows(found) for number, found in survivors.items()}
            yield self._written([(groups[number], surviving[number]) for number in sorted(surviving)])
        except LogStoreError as error:
            yield error

    def alone(self, group: SliceGroup) -> list[_Result]:
        """All steps of a single group, as one task."""
        last = (message for _, message in self.read(iter([group])))
        return list(self.write(message for _, message in self.merge(last)))

    def _written(self, found: Sequence[tuple[SliceGroup, SurvivingRows]]) -> WrittenRows:
        number = found[0][0].number // self.groups_a_writer
        with self.open_place() as means, self.writer.opened(number) as output:
            for group, surviving in found:
                spans = [
                    span
                    for span in group.spans
                    if surviving.is_any_in(span.partition, span.first_offset, span.end_offset)
                ]
                found_count = 0
                for rows in scan(means.store, spans, _WRITTEN_COLUMNS):
                    wanted = surviving.of(rows)
                    found_count += wanted.num_rows
                    output.add(wanted)
                _require_same(found_count, surviving.row_count, "records were read once and not again")
            return output.close()


def run_exchange(cluster: Cluster, exchange: StateExchange, groups: Sequence[SliceGroup]) -> ExchangedState:
    """Run an exchange of these groups, which are in the order of their numbers from 0, on the cluster;
    returns what its tasks wrote. Raises StoreError, CorruptRecordError,
    StoreCorruptError if rows got lost on the way, and LogStoreError if the cluster gives up."""
    if not groups:
        return ExchangedState([], ChangedKeys())
    return _state_of(exchange, len(groups), _messages(cluster, exchange, groups))


def run_alone(exchange: StateExchange, group: SliceGroup) -> ExchangedState:
    """Run an exchange of one group in this task. Raises as `run_exchange`."""
    return _state_of(exchange, 1, exchange.alone(group))


def _state_of(exchange: StateExchange, group_count: int, messages: Sequence[_Result]) -> ExchangedState:
    """The sum of the results. Raises the error that is among them, StoreCorruptError if rows got lost."""
    counted = Counted()
    written: list[WrittenRows] = []
    key_files: list[KeyFile] = []
    for message in messages:
        if isinstance(message, LogStoreError):
            raise message
        if isinstance(message, Counted):
            counted = counted.plus(message)
        elif isinstance(message, KeyFile):
            key_files.append(message)
        else:
            written.append(message)
    lost = "keys were lost between the tasks of a job"
    _require_same(counted.group_count, group_count, lost)
    _require_same(counted.merged_count, counted.sent_count, lost)
    _require_same(sum(one.record_count for one in written), counted.survivor_count, lost)
    keys = ChangedKeys(tuple(sorted(key_files, key=lambda one: one.first_hash)))
    if exchange.keys is not None:
        _require_same(keys.count, counted.survivor_count, lost)
    return ExchangedState(sorted(written, key=lambda one: one.number), keys)


def _messages(cluster: Cluster, exchange: StateExchange, groups: Sequence[SliceGroup]) -> list[_Result]:
    if len(groups) == 1:
        # Three tasks in a row cost Spark most of a second.
        return cluster.each(exchange.alone, groups)[0]
    writer_count = -(-len(groups) // exchange.groups_a_writer)
    stages = (Stage(exchange.read, exchange.range_count), Stage(exchange.merge, writer_count))
    return cluster.exchanged(groups, stages, exchange.write)


def _require_same(found_count: int, expected_count: int, problem: str) -> None:
    if found_count != expected_count:
        raise StoreCorruptError(
            f"{problem}, which has changed nothing; report it with the log of Spark",
            found_count=found_count,
            expected_count=expected_count,
        )
