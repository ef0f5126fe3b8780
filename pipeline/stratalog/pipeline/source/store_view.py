"""The topics of a store and their slices at one moment, as the driver reads them.

The driver reads the catalog and the shards' metadata and gives the executors object names and positions only.
So every task of a scan sees the same moment, and no task needs the metadata. Records that are not tiered yet
are not there; a partition's tiered end tells how far it reaches.

An object that compaction replaced stays readable for the store's grace period. A lease is a pin in each
shard: it keeps the objects of the moment until it ends, however long a scan takes. A snapshot is leased
before its state is read, the catalog's commit and that of each shard, so no file of it can go in between.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    LogStoreError,
    ObjectNotFoundError,
    StoreAccessDeniedError,
    StoreNotUsableError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.randomness import SystemIdGenerator, system_random
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.service_options import ServiceOptions
from stratalog.pipeline.source.read_options import DEFAULT_SNAPSHOT_LEASE_S, Commit, ReadOptions
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import PinCommit, TakePin
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.head.page_loader import PageLoader, RunAll
from stratalog.remote.metadata.head.pin import Pin
from stratalog.remote.metadata.ownership.head_witness import catalog_as_witness
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, shard_of

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient
    from stratalog.client.retry import RetryPolicy
    from stratalog.pipeline.source.served_log import ServedLog, ServedLogs

logger = logging.getLogger(__name__)

_PROBE_TRIES = 3
"""Probes of a store before it counts as away: the outcome of one is unclear after a single failure."""
_HOPELESS = (StoreAccessDeniedError, StoreNotUsableError)
"""Where one log cannot be pinned because of these, the others cannot either: credentials, the store itself,
its metadata version."""
THREAD_COUNT = 16
"""Small requests of a plan at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitionView:
    """A partition of a wanted topic at one moment. Immutable."""

    topic: str
    tip: TopicIdPartition
    state: ShardState
    """That of its shard."""
    shard: int
    served: ServedLog | None = None
    """Its log as the server has it; None without a service."""

    @property
    def tiered(self) -> TieredPartition:
        """Its offsets and slices; it has none before its first upload."""
        return self.state.partition(self.tip)

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        tiered_start = self.tiered.log_start_offset
        return tiered_start if self.served is None else max(tiered_start, self.served.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The exclusive end of what is known of the log, whatever becomes of transactions."""
        tiered_end = self.tiered.tiered_end_offset
        return tiered_end if self.served is None else max(tiered_end, self.served.end_offset)

    @property
    def error_fields(self) -> dict[str, object]:
        """The fields of an error about the partition."""
        return {"topic": self.topic, "partition": self.tip.partition}


class TopicViews(NamedTuple):
    """The wanted topics at one moment."""

    topics: Sequence[TopicEntry]
    """The entries that the catalog had."""
    partitions: Sequence[TopicPartitionView]
    """Those that are wanted, sorted by topic and number."""


class StoreReader:
    """The metadata of a store, followed from view to view. Not thread-safe: belongs to one reader on the
    driver. Its methods raise StoreError."""

    def __init__(
        self,
        store: ObjectStore,
        run_all: RunAll,
        client: SyncClient | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Read the identity and the catalog. `client` is a connection to the service, for views with the ends
        of its logs, and `retry` the time for which servers may differ from the catalog. Raises
        StoreNotUsableError if there is no store."""
        self.store = store
        self.run_all = run_all
        self._identity = StoreIdentity.open(store)
        self.served = _served_logs(client, self._identity, run_all)
        """The logs of the servers; None without a service."""
        ids = SystemIdGenerator()
        self._clock = SystemClock()
        self._retry = retry
        self._actor = StoreActor(
            store=store,
            clock=self._clock,
            random_source=system_random(),
            ids=ids,
            identity=self._identity,
            writer=Writer("spark", f"{socket.gethostname()}:{ids.uuid()}"),
            loader=PageLoader(run_all=run_all),
        )
        self._catalog = Catalog.open(self._actor, read_only=True)
        self._shards: dict[int, MetadataLog] = {}
        self._leased: set[int] = set()
        self._is_probed = False

    @property
    def is_pinned_by(self) -> str:
        """The holder of the leases that this reader takes."""
        return f"spark {self._actor.writer.id}"

    @property
    def store_id(self) -> UUID:
        return self._identity.store_id

    @property
    def server_config(self) -> Mapping[str, str]:
        """The configuration of the store's servers, as the catalog has it."""
        return self._catalog.state().server_config

    @property
    def store_date_ms(self) -> int:
        """The store's time when the last one of the viewed shards was read."""
        return max(log.store_date_ms for log in self._shards.values())

    def topics(self, options: ReadOptions) -> list[TopicEntry]:
        """The wanted topics that there are, by the newest catalog."""
        found = self._catalog.refresh().topics()
        return [entry for name, entry in found.items() if options.selects(name)]

    def view(self, options: ReadOptions) -> list[TopicPartitionView]:
        """The wanted partitions of `views`. Raises as it does."""
        return [*self.views(options).partitions]

    def views(self, options: ReadOptions) -> TopicViews:
        """The wanted topics now, or after the commit of the options. Raises UnknownTopicOrPartitionError, and
        ObjectNotFoundError if an object of that commit is gone."""
        if options.snapshot is not None:
            return self._views_at(options, options.snapshot)
        return self.views_now(options, needs_all=True)

    def views_now(self, options: ReadOptions, *, needs_all: bool) -> TopicViews:
        """The wanted topics that there are now. `needs_all`: raise UnknownTopicOrPartitionError unless each
        topic and partition that is named is there.

        A server may not know a topic or a partition yet that the catalog has, or not any more, and an owner
        may be away. So the catalog and the servers are asked again for a while."""
        start_s = self._clock.monotonic_s()
        for attempt in count(1):
            topics = self.topics(options)
            if needs_all:
                require_topics(options, topics)
            try:
                return TopicViews(topics, self.view_of(options, topics))
            except LogStoreError as error:
                pause_s = self._pause_s(error, attempt, self._clock.monotonic_s() - start_s)
                if pause_s is None:
                    raise
                self._clock.sleep(pause_s)
        raise AssertionError

    def _pause_s(self, error: LogStoreError, attempt: int, waited_s: float) -> float | None:
        """The pause before the servers are asked again; None if that would not help."""
        if self.served is None or not self.served.may_pass(error):
            return None
        from stratalog.client.retry import RetryPolicy

        retry = self._retry or RetryPolicy()
        pause_s = retry.pause_s(attempt)
        return pause_s if waited_s + pause_s <= retry.deadline_s else None

    def view_of(self, options: ReadOptions, topics: Sequence[TopicEntry]) -> list[TopicPartitionView]:
        """The wanted partitions of these topics now. Raises LogStoreError if the service does not tell how
        far they reach."""
        views = self._views(options, topics, self._state)
        if self.served is None or not views:
            return views
        # Behind the metadata, so that no log ends below its tiered end.
        tips: dict[str, list[TopicIdPartition]] = {}
        for view in views:
            tips.setdefault(view.topic, []).append(view.tip)
        logs = self.served.logs_of(tips)
        return [replace(view, served=logs[view.tip]) for view in views]

    def tiered_now(self, tip: TopicIdPartition) -> TieredPartition:
        """The tiered part of a partition now, or at the moment of its lease. Raises StoreError."""
        return self._state(shard_of(tip, self._identity.shard_count)).partition(tip)

    def lease_as_asked(self, options: ReadOptions) -> None:
        """Keep the objects that the wanted topics have now, if the options ask for that. A snapshot is leased
        by its `view`. Raises as `lease`."""
        lease_s = options.lease_s
        if lease_s is not None and options.snapshot is None:
            self.lease(options, lambda now_ms: now_ms + 1000 * lease_s)

    def lease(self, options: ReadOptions, until: Callable[[int], int]) -> None:
        """Keep the objects that the wanted topics have now. `until` makes the end of the lease from the
        store's time, both in milliseconds. Raises StoreAccessDeniedError if the credentials may not write,
        StoreNotUsableError if the store cannot be pinned."""
        logs = {shard: self._open_shard(shard) for shard in sorted(self._shards_of(self.topics(options)))}
        filled = [log for log in logs.values() if log.state().objects]
        # The heads say it without a request; the probe costs five.
        for log in filled:
            log.require_finalized(TakePin)
        if filled:
            self._require_writable()
        for log in filled:
            log.pin(self.is_pinned_by, until(log.store_date_ms))
        self._shards |= logs
        self._leased |= logs.keys()

    def _require_writable(self) -> None:
        """Raise StoreNotUsableError if the store would lose commits, which a pin is, too, StoreError."""
        if self._is_probed:
            return
        for tries_left in reversed(range(_PROBE_TRIES)):
            try:
                require_conditional_writes(self.store, self._actor.ids)
                break
            except StoreUnavailableError:
                if not tries_left:
                    raise
        self._is_probed = True

    def _dated_catalog(self) -> Catalog:
        """The catalog, with the store's time of now."""
        self._catalog.refresh(dated=True)
        return self._catalog

    def _views_at(self, options: ReadOptions, commit: Commit) -> TopicViews:
        cutter = StoreCutter(self.store, self._identity)
        moment = cutter.moment(Until(seq=commit.seq, shard=commit.shard))
        lease = SnapshotLease(options, self._require_writable)
        # The pins come first: what is there under them stays there.
        lease.keep(self._dated_catalog, moment.catalog_seq, moment.catalog_head)
        topics = [entry for name, entry in cutter.catalog(moment).topics().items() if options.selects(name)]
        require_topics(options, topics)
        shards = sorted(self._shards_of(topics))
        for shard in shards:
            open_shard = partial(self._open_shard, shard)
            lease.keep(open_shard, moment.shard_seq(shard), moment.shard_head(shard))
        lease.report()
        replayed = {shard: cutter.shard(moment, shard) for shard in shards}
        ids = {entry.topic_id: entry.name for entry in topics}
        lost = [one for at in replayed.values() for one in at.lost if one.partition.topic_id in ids]
        gone = [name for at in replayed.values() for name in at.gone]
        if lost or gone:
            fields: dict[str, object] = {"snapshot": commit.text}
            if lost:
                first = lost[0]
                fields |= {"topic": ids[first.partition.topic_id], "partition": first.partition.partition}
                fields |= {"slice": f"{first.base_offset}-{first.end_offset}"}
            if gone:
                fields["object"] = gone[0]
            raise ObjectNotFoundError(
                "objects of that commit are deleted; read a newer one, and keep a commit that you come back "
                "to with a lease",
                **fields,
            )
        views = self._views(options, topics, lambda shard: replayed[shard].state)
        return TopicViews(topics, views)

    def _views(
        self, options: ReadOptions, topics: Sequence[TopicEntry], state_of: Callable[[int], ShardState]
    ) -> list[TopicPartitionView]:
        states = {shard: state_of(shard) for shard in sorted(self._shards_of(topics))}
        views: list[TopicPartitionView] = []
        for topic in sorted(topics, key=lambda one: one.name):
            for number in _numbers(options, topic):
                tip = TopicIdPartition(topic.topic_id, number)
                shard = shard_of(tip, self._identity.shard_count)
                views.append(TopicPartitionView(topic=topic.name, tip=tip, state=states[shard], shard=shard))
        return views

    def _shards_of(self, topics: Iterable[TopicEntry]) -> set[int]:
        return {
            shard_of(TopicIdPartition(topic.topic_id, number), self._identity.shard_count)
            for topic in topics
            for number in range(topic.partition_count)
        }

    def _state(self, shard: int) -> ShardState:
        known = self._shards.get(shard)
        if known is not None:
            # A lease holds the objects of its own moment only.
            return known.state() if shard in self._leased else known.refresh()
        opened = self._shards[shard] = self._open_shard(shard)
        return opened.state()

    def _open_shard(self, shard: int) -> MetadataLog:
        load_directory = partial(read_directory, self.store, StoreLayout(shard))
        return MetadataLog.open(
            self._actor,
            shard,
            load_directory,
            read_only=True,
            witness=catalog_as_witness(self._catalog),
        )


class SnapshotLease:
    """The pins that keep a snapshot: of the same state in one log after the other. Not thread-safe, as the
    reader whose query asks for it. Without the option `lease` a pin that cannot be had is passed over."""

    def __init__(self, options: ReadOptions, require_writable: Callable[[], None]) -> None:
        """`require_writable` is called before the first pin is taken; what it raises stands for the pin."""
        assert options.snapshot is not None, "there is a snapshot"
        lease_s = DEFAULT_SNAPSHOT_LEASE_S if options.lease_s is None else options.lease_s
        self._snapshot = options.snapshot
        self._is_asked_for = options.lease_s is not None
        self._lease_ms = 1000 * lease_s
        self._require_writable = require_writable
        self._error: LogStoreError | None = None
        self._now_ms: int | None = None
        """The store's time, as the log told it that was kept last."""

    @property
    def holder(self) -> str:
        """The holder of the pins. It is the same for each query of the snapshot, so that these share pins."""
        return f"spark snapshot {self._snapshot.text}"

    def keep(self, open_log: Callable[[], CommittedLog[Any]], seq: int, head: Head) -> None:
        """Pin the state of a log after a commit, unless the pin of an earlier query lasts for at least nine
        tenths of the time. `head`: one that the log had a moment ago; a log whose pin is there is not opened,
        which would read the directories of all objects of its newest commits. Raises StoreError,
        CorruptRecordError."""
        if not self._lease_ms or not seq or isinstance(self._error, _HOPELESS):
            return
        if self._now_ms is not None and self._lasts(head.pins, seq, self._now_ms):
            return
        try:
            self._pin(open_log(), seq)
        except LogStoreError as error:
            # Whatever it is, the states of the snapshot may be sound. What reads them meets the rest.
            if self._is_asked_for:
                raise
            self._error = self._error or error

    def _pin(self, log: CommittedLog[Any], seq: int) -> None:
        self._now_ms = log.store_date_ms
        if not self._lasts(log.state().pins, seq, self._now_ms):
            # The head says it without a request; the probe costs five.
            log.require_finalized(PinCommit)
            self._require_writable()
            log.pin_commit(self.holder, self._now_ms + self._lease_ms, seq)

    def _lasts(self, pins: Iterable[Pin], seq: int, now_ms: int) -> bool:
        """Whether one of the pins is that of an earlier query, and lasts long enough."""
        enough_ms = now_ms + self._lease_ms - self._lease_ms // 10
        return any(
            (pin.holder, pin.state_seq) == (self.holder, seq) and pin.until_ms >= enough_ms for pin in pins
        )

    def report(self) -> None:
        """Log a warning if a pin could not be had."""
        if self._error is not None:
            logger.warning(
                "the snapshot %s is read without a lease, so its objects may be deleted meanwhile; the option"
                " lease=0 does without one: %s",
                self._snapshot.text,
                self._error,
            )


@contextmanager
def reading_store(
    url: str, service: ServiceOptions | None = None, retry: RetryPolicy | None = None
) -> Generator[StoreReader]:
    """A reader of the store that the URL names, with threads of its own, and a connection to the service if
    there is one. Raises InvalidConfigError, StoreError."""
    with ExitStack() as resources:
        store = open_store(url)
        resources.callback(store.close)
        client = None if service is None else resources.enter_context(service.sync_client(retry))
        yield resources.enter_context(reader_of(store, client, retry))


@contextmanager
def reader_of(
    store: ObjectStore, client: SyncClient | None = None, retry: RetryPolicy | None = None
) -> Generator[StoreReader]:
    """A reader of an open store, with threads of its own. Raises StoreError."""
    with ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="stratalog-plan") as threads:
        yield StoreReader(store, partial(run_together, threads), client, retry)


def _served_logs(client: SyncClient | None, identity: StoreIdentity, run_all: RunAll) -> ServedLogs | None:
    if client is None:
        return None
    # Not above: only a query with a service loads grpc.
    from stratalog.pipeline.source.served_log import ServedLogs

    return ServedLogs(client, identity.store_id, run_all)


def run_together(threads: ThreadPoolExecutor, functions: Sequence[Callable[[], object]]) -> Sequence[object]:
    """Run functions on the threads; their results in order. Raises the first error, once all have ended."""
    futures = [threads.submit(function) for function in functions]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def require_topics(options: ReadOptions, found: Sequence[TopicEntry]) -> None:
    """Raise UnknownTopicOrPartitionError unless each named topic was found, and at least one for a
    pattern, which has each partition that is named."""
    names = {entry.name for entry in found}
    missing = [name for name in options.topics if name not in names]
    if missing or not names:
        commit = options.snapshot
        raise UnknownTopicOrPartitionError(
            "the store has no such topic; check its name and the store's URL"
            if commit is None
            else "the store had no such topic at this commit; take a later one, or check the topic's name",
            topic=", ".join(missing) if missing else options.topic_pattern,
            store=options.store_url.partition("?")[0],
            **({} if commit is None else {"snapshot": commit.text}),
        )
    _require_numbers(options, found)


def _require_numbers(options: ReadOptions, found: Sequence[TopicEntry]) -> None:
    """Raise UnknownTopicOrPartitionError if a pattern is given, and a partition that no topic of it has."""
    partition_count = max(entry.partition_count for entry in found)
    if options.topic_pattern is None or options.partitions is None:
        return
    if max(options.partitions) >= partition_count:
        raise UnknownTopicOrPartitionError(
            "no topic of the pattern has such a partition; correct the option partitions",
            topic=options.topic_pattern,
            partition=max(options.partitions),
            partition_count=partition_count,
        )


def _numbers(options: ReadOptions, topic: TopicEntry) -> Iterable[int]:
    """The wanted partitions of a topic. Raises UnknownTopicOrPartitionError if it lacks one that is named."""
    if options.partitions is None:
        return range(topic.partition_count)
    if max(options.partitions) >= topic.partition_count and options.topic_pattern is None:
        raise UnknownTopicOrPartitionError(
            "the topic has no such partition; correct the option partitions",
            topic=topic.name,
            partition=max(options.partitions),
            partition_count=topic.partition_count,
        )
    return sorted(number for number in options.partitions if number < topic.partition_count)


def by_partition(
    offsets: Mapping[str, Mapping[int, int]], views: Iterable[TopicPartitionView]
) -> dict[TopicIdPartition, int]:
    """Offsets by topic and number as those of the partitions. Raises UnknownTopicOrPartitionError unless both
    are of the same partitions, as Spark's Kafka source does."""
    wanted = {(view.topic, view.tip.partition): view.tip for view in views}
    given = {(topic, number): offset for topic, each in offsets.items() for number, offset in each.items()}
    for differing, problem in (
        (wanted.keys() - given.keys(), "offsets are missing for a partition; name all that are read"),
        (given.keys() - wanted.keys(), "offsets are given for a partition that is not read; leave it out"),
    ):
        if differing:
            topic, number = min(differing)
            raise UnknownTopicOrPartitionError(problem, topic=topic, partition=number)
    return {wanted[place]: offset for place, offset in given.items()}
