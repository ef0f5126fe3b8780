"""Brings a table to the latest state of a topic: a full refresh, or one from the position of the table.

    full          all records from log start to the stable end; the files of the table are replaced
    incremental   the records behind the position; older rows of their keys die, and rows below log start

Both give the same rows, because a row is there exactly if its record is the last committed one of its key in
its partition, has a value, and the value can be decoded.

An incremental refresh needs each tombstone behind the position. Compaction drops them after a while, so a
table that is older than that is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from stratalog.base.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    StoreError,
    StoreNotUsableError,
)
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.pipeline.lake.changed_keys import ChangedKeys, KeyWriter
from stratalog.pipeline.lake.dead_row_search import DeadRowSearch, search_dead_rows
from stratalog.pipeline.lake.key_ranges import mean_key_bytes, range_count
from stratalog.pipeline.lake.lake_table import (
    ChangedFile,
    LakeTable,
    TableChange,
    TableChangedError,
    TableFile,
    TableState,
)
from stratalog.pipeline.lake.refresh_files import PROBES, RefreshFiles
from stratalog.pipeline.lake.row_writer import RowWriter, WrittenRows
from stratalog.pipeline.lake.state_exchange import (
    SliceGroup,
    StateExchange,
    run_alone,
    run_exchange,
)
from stratalog.pipeline.lake.table_place import OpenTable
from stratalog.pipeline.lake.table_position import TablePosition
from stratalog.pipeline.lake.topic_moment import TopicMoment, topic_moment
from stratalog.pipeline.lake.values.registered_values import only_adds_schemas
from stratalog.pipeline.lake.values.value_format import ValueFormat
from stratalog.pipeline.source.store_view import StoreReader
from stratalog.remote.metadata.head.page_loader import run_in_order

_WRITER_BYTES = 1 << 30
"""The slices that a task writes the rows of, at most."""
_WRITERS_A_LANE = 2
_TOMBSTONE_MARGIN_MS = 10 * 60 * 1000
"""The clocks of the store's machines may be so far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeOrder:
    """A wanted table. Immutable."""

    topic: str
    values: ValueFormat
    is_full: bool = False
    """Make the table anew, whatever it is of."""
    fails_on_data_loss: bool = True
    """Fail if records behind the position are lost; otherwise a warning names each range."""
    lease_s: int | None = None
    """Keep the objects of the topic for so long; None: for as long as the store keeps replaced ones."""
    max_changed_records: int = 100_000_000
    """Behind more records a refresh is full: each task that looks for dead rows reads the hashes of all of
    their keys, and its filter, which does not grow, would pass most rows."""
    max_task_bytes: int = 64 << 20
    """A task reads so many bytes of slices, about."""


class MaterializeReport(NamedTuple):
    """The result of a refresh."""

    mode: str
    """`full`, `incremental`, or `none` if there was nothing new."""
    reason: str
    """Why the refresh was full; empty if it was not."""
    refresh_id: str
    record_count: int
    """The last records of keys that were read."""
    added_count: int
    """Rows that were written."""
    removed_count: int
    """Rows that died; of a full refresh all rows before."""
    tombstone_count: int
    bad_count: int
    """Records whose values could not be decoded: set aside."""
    bad_files: tuple[str, ...]
    row_count: int
    """Rows of the table."""
    offsets: Mapping[int, int]


def require_refreshable(open_place: OpenPlace, open_table: OpenTable, topic: str) -> None:
    """Raise what a refresh of any values would find wrong with its topic and the place of its table, as
    `Materialization.run` does."""
    with open_place() as means, closing(open_table()) as store:
        topic_moment(StoreReader(means.store, run_in_order), topic)
        require_conditional_writes(store, means.ids, PROBES)


class Materialization:
    """One refresh. Not thread-safe: the driver uses it, once."""

    def __init__(
        self, cluster: Cluster, open_place: OpenPlace, open_table: OpenTable, order: MaterializeOrder
    ) -> None:
        self._cluster = cluster
        self._open_place = open_place
        self._open_table = open_table
        self._order = order

    def run(self, table: LakeTable) -> MaterializeReport:
        """Bring the table to the latest state. Raises UnknownTopicOrPartitionError, TableChangedError if
        another refresh was faster, InconsistentTopicIdError if the table is of another topic,
        InvalidRequestError if it cannot go on from its position, OffsetOutOfRangeError for lost records
        unless the order takes them, StoreNotUsableError for a new table on a
        store that ignores preconditions, StoreError, CorruptRecordError; then the
        table is unchanged."""
        with self._open_place() as means, closing(self._open_table()) as store:
            refresh_id = str(means.ids.uuid())
            files = RefreshFiles(store, refresh_id)
            files.look()
            state = table.read()
            moment = topic_moment(
                StoreReader(means.store, run_in_order),
                self._order.topic,
                self._order.lease_s,
                fails_on_data_loss=self._order.fails_on_data_loss,
            )
            reason = self._reason_for_full(state, moment)
            step = _Step(state, moment, reason, refresh_id)
            if step.is_idle:
                return self._report(step, "none", _NOTHING)
            if state.position is None:
                require_conditional_writes(store, means.ids, PROBES)
            files.begin(None if state.position is None else state.position.refresh_id)
            if state.position is not None:
                files.forget_bad(state.position.bad_files)
            is_undecided = False
            try:
                with self._cluster.tagged(f"stratalog-{refresh_id}", f"materialize {self._order.topic}"):
                    change, outcome = self._change(table, step)
                is_undecided = True
                table.commit(change)
            except BaseException as error:
                # A commit whose outcome is unknown may land yet, and needs its files.
                if not is_undecided or isinstance(error, TableChangedError):
                    with suppress(StoreError):
                        files.give_up()
                raise
            with suppress(StoreError):
                # The next refresh does what is left.
                files.end()
                if step.reason and state.position is not None and state.position.bad_files:
                    store.delete_many(list(state.position.bad_files))
        return self._report(step, "incremental" if not reason else "full", outcome)

    def _reason_for_full(self, state: TableState, moment: TopicMoment) -> str:
        if self._order.is_full:
            return "it was asked for"
        position = state.position
        if position is None:
            if state.exists:
                raise InvalidRequestError(
                    "there is a table that no materialization has made; name another place, or replace it"
                    " with --full"
                )
            return "there is no table yet"
        _require_same_topic(position, moment)
        encoding = self._order.values.encoding
        adds_schemas = only_adds_schemas(position.encoding, encoding)
        if position.encoding != encoding and not adds_schemas:
            raise InvalidRequestError(
                "the values of the table are decoded in another way; decode them as before, or make the table"
                " anew with --full",
                encoding=encoding,
                table_encoding=position.encoding,
            )
        if position.encoding != encoding and position.bad_count:
            return "schemas were added, and values that were set aside may be of them"
        age_ms = moment.time_ms - position.time_ms
        # A configuration that was altered in between has applied for a part of the time.
        kept_ms = min(position.delete_retention_ms, moment.policy.delete_retention_ms)
        if moment.is_compacted_behind(position.offsets) and age_ms + _TOMBSTONE_MARGIN_MS >= kept_ms:
            return "tombstones behind its position may be dropped by now (delete.retention.ms)"
        count = sum(end - position.offsets.get(number, 0) for number, end in moment.ends.items())
        if count > self._order.max_changed_records:
            return "more records lie behind its position than a refresh looks up"
        rows, dead = (
            sum(file.row_count for file in state.files),
            sum(file.row_count - file.live_count for file in state.files),
        )
        if dead > rows - dead:
            return "most rows of its files are dead"
        return ""

    def _change(self, table: LakeTable, step: _Step) -> tuple[TableChange, _Outcome]:
        written, changed = self._refreshed(table, step)
        outcome = _Outcome(
            record_count=sum(one.record_count for one in written),
            added_count=sum(one.row_count for one in written),
            removed_count=sum(one.removed_count for one in changed),
            tombstone_count=sum(one.tombstone_count for one in written),
            bad_count=sum(one.bad_count for one in written),
            bad_files=tuple(bad.file.path for one in written for bad in one.bad_files),
        )
        if step.reason:
            outcome = outcome._replace(removed_count=step.row_count)
        former = None if step.reason else step.state.position
        moment = step.moment
        position = TablePosition(
            refresh_id=step.refresh_id,
            store_id=moment.store_id,
            topic=self._order.topic,
            topic_id=moment.entry.topic_id,
            time_ms=moment.time_ms,
            offsets=moment.ends,
            log_starts=moment.log_starts,
            commits=moment.commits,
            encoding=self._order.values.encoding,
            delete_retention_ms=moment.policy.delete_retention_ms,
            bad_files=(() if former is None else former.bad_files) + outcome.bad_files,
            bad_count=(0 if former is None else former.bad_count) + outcome.bad_count,
        )
        added = [file for one in written for file in one.files]
        return TableChange(position, added, changed, is_full=bool(step.reason)), outcome

    def _refreshed(self, table: LakeTable, step: _Step) -> tuple[list[WrittenRows], list[ChangedFile]]:
        """The last records of the keys behind the position, and the files in which others of these keys died.
        Nothing names these files yet."""
        exchange, groups = self._exchange(table, step)
        if step.reason:
            return run_exchange(self._cluster, exchange, groups).written, []
        files = step.state.files
        search = DeadRowSearch(
            self._open_table, table.removal, step.refresh_id, ChangedKeys(), step.moved_log_starts
        )
        if len(groups) == 1 and len(search.divided(self._cluster, files)) == 1:
            (done,) = self._cluster.each(_SingleTask(exchange, search, files), groups)
            if isinstance(done, LogStoreError):
                raise done
            return done
        written, keys = run_exchange(self._cluster, exchange, groups)
        return written, search_dead_rows(self._cluster, replace(search, keys=keys), files)

    def _exchange(self, table: LakeTable, step: _Step) -> tuple[StateExchange, Sequence[SliceGroup]]:
        """The exchange of the records behind the position, and the groups of their slices."""
        former = None if step.reason else step.state.position
        starts: Mapping[int, int] = {} if former is None else former.offsets
        tasks = step.moment.tasks(starts, self._order.max_task_bytes)
        groups = tuple(SliceGroup(number, tuple(spans)) for number, spans in enumerate(tasks))
        spans = [span for group in groups for span in group.spans]
        record_count = sum(span.end_offset - span.first_offset for span in spans)
        key_bytes = mean_key_bytes(step.moment.reader.store, spans)
        lanes = self._cluster.lane_count
        per_writer = min(
            max(1, _WRITER_BYTES // self._order.max_task_bytes),
            -(-len(groups) // (_WRITERS_A_LANE * lanes)) or 1,
        )
        exchange = StateExchange(
            self._open_place,
            range_count=max(lanes, range_count(record_count, key_bytes)),
            groups_a_writer=per_writer,
            writer=RowWriter(
                self._open_table,
                step.refresh_id,
                self._order.values,
                table.rows_directory(step.refresh_id),
            ),
            keys=None if step.reason else KeyWriter(self._open_table, step.refresh_id),
        )
        return exchange, groups

    def _report(self, step: _Step, mode: str, outcome: _Outcome) -> MaterializeReport:
        return MaterializeReport(
            mode=mode,
            reason=step.reason,
            refresh_id=step.refresh_id,
            row_count=step.row_count + outcome.added_count - outcome.removed_count,
            offsets=step.moment.ends,
            **outcome._asdict(),
        )


@dataclass(frozen=True, slots=True)
class _SingleTask:
    """All of a small refresh in one task: each job and each task costs Spark more than such a refresh.
    Immutable, pickled to the machine."""

    exchange: StateExchange
    search: DeadRowSearch
    """Without keys."""
    files: Sequence[TableFile]

    def __call__(self, group: SliceGroup) -> tuple[list[WrittenRows], list[ChangedFile]] | LogStoreError:
        """Write the rows of the group, and let the older ones of its keys die."""
        try:
            written, keys = run_alone(self.exchange, group)
        except LogStoreError as error:
            return error
        search = replace(self.search, keys=keys)
        changed = [] if search.is_idle else search(self.files)
        return changed if isinstance(changed, LogStoreError) else (written, changed)


class _Outcome(NamedTuple):
    record_count: int = 0
    added_count: int = 0
    removed_count: int = 0
    tombstone_count: int = 0
    bad_count: int = 0
    bad_files: tuple[str, ...] = ()


_NOTHING = _Outcome()


class _Step(NamedTuple):
    """From a version of the table to a moment of the topic."""

    state: TableState
    moment: TopicMoment
    reason: str
    """Why the refresh is full; empty if it is not."""
    refresh_id: str

    @property
    def is_idle(self) -> bool:
        """Whether the table is at the moment already."""
        position = self.state.position
        if self.reason or position is None:
            return False
        return position.offsets == self.moment.ends and position.log_starts == self.moment.log_starts

    @property
    def moved_log_starts(self) -> Mapping[int, int]:
        """The log starts that the table does not know: rows may lie below these alone."""
        known: Mapping[int, int] = {} if self.state.position is None else self.state.position.log_starts
        return {number: at for number, at in self.moment.log_starts.items() if at > known.get(number, 0)}

    @property
    def row_count(self) -> int:
        """Rows of the table before."""
        return sum(file.live_count for file in self.state.files)


def _require_same_topic(position: TablePosition, moment: TopicMoment) -> None:
    """Raise unless the table can go on from its position."""
    if position.store_id != moment.store_id:
        raise StoreNotUsableError(
            "the table was made from another store; name another place, or replace it with --full",
            store_id=moment.store_id,
            table_store_id=position.store_id,
        )
    if position.topic_id != moment.entry.topic_id:
        raise InconsistentTopicIdError(
            "the table was made from another topic, perhaps one of this name that was deleted since; name"
            " another place, or replace it with --full",
            topic=moment.entry.name,
            topic_id=position.topic_id,
            current_topic_id=moment.entry.topic_id,
        )
    for shard, seq in position.commits.items():
        if moment.commits.get(shard, 0) < seq:
            raise InvalidRequestError(
                "the store is older than the table: it was restored to an earlier commit; replace the table"
                " with --full",
                shard=shard,
                commit=moment.commits.get(shard, 0),
                table_commit=seq,
            )
    for number, end_offset in moment.ends.items():
        offset = position.offsets.get(number, 0)
        if offset > end_offset:
            raise InvalidRequestError(
                "the partition ends before the position of the table; replace the table with --full",
                topic=moment.entry.name,
                partition=number,
                end_offset=end_offset,
                table_offset=offset,
            )
