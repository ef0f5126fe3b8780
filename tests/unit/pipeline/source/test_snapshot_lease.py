"""Snapshots are leased: the collector waits for their queries, and where it cannot, the query says so."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreError,
    StoreNotUsableError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.source.store_view import SnapshotLease, StoreReader
from stratalog.pipeline.source.topic_reader import TopicReader
from stratalog.remote.metadata.catalog.catalog_actions import CATALOG_ACTIONS
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.page_loader import run_in_order
from stratalog.remote.metadata.head.pin import Pin
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.store_layout import shard_of
from stratalog.remote.tier.collector import Collector, CollectorSettings
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.topic_scan import topic_spans
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.metadata_harness import MetadataHarness
from tests.support.tiered.stores.careless_store import CarelessStore
from tests.support.tiered.stores.read_only_store import ReadOnlyStore

if TYPE_CHECKING:
    from stratalog.pipeline.source.slice_span import SliceSpan

HOUR_MS = 3_600_000
WRITE_COUNT = 6
"""The writes of a plan: four of the probe, and two pins."""


class Site:
    """A compacted topic with a snapshot of 40 records, which compaction and collection may take away. Not
    thread-safe: one test uses it."""

    def __init__(self, inner: ObjectStore | None = None) -> None:
        self.built = PlainStore(inner)
        self.built.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
        for _ in range(2):
            self.built.upload({("t", 0): 20})
        self.seq = self.built.tiered.metadata.state().seq
        self.catalog_seq = self.built.tiered.catalog.state().seq

    def plan(self, store: ObjectStore | None = None, **options: str) -> list[SliceSpan]:
        """The spans of a query of the snapshot."""
        return topic_spans(store or self.built.store, topic="t", snapshot=f"0:{self.seq}", **options)

    def rows(self, spans: Sequence[SliceSpan]) -> list[int]:
        """The offsets that the tasks of a query read."""
        batches = scan(self.built.store, spans, ("offset",))
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    def collect(self, *, after_ms: int = 1000) -> None:
        """Compact the topic, and delete what no pin holds, without a grace."""
        tiered = self.built.tiered
        self.built.clock.advance(after_ms)
        tiered.compactor().run()
        settings = CollectorSettings(grace_ms=0)
        collector = Collector(self.built.store, tiered.metadata, tiered.catalog, settings)
        for _ in range(2):
            tiered.metadata.fold()
            tiered.catalog.fold()
            collector.run(is_whole=True)

    def pins(self) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
        """Those of the catalog, and those of the shard."""
        tiered = self.built.tiered
        return tiered.catalog.refresh().pins, tiered.metadata.refresh().pins

    def logs(self) -> tuple[CommittedLog[Any], ...]:
        """The catalog, and the shard."""
        return self.built.tiered.catalog, self.built.tiered.metadata

    def as_of_version(self, version: int) -> None:
        """From now on the store is one of software whose newest metadata version was this."""
        for log, table in zip(self.logs(), (CATALOG_ACTIONS, SHARD_ACTIONS), strict=True):
            key = log.layout.head_key
            head = Head.decode(self.built.store.get(key).data, key, table)
            older = dataclasses.replace(head, read_version=version, write_version=version)
            self.built.store.put(key, older.encode())
            log.refresh()


@pytest.fixture
def site() -> Site:
    return Site()


def test_tasks_read_what_was_collected_meanwhile(site: Site) -> None:
    spans = site.plan()
    site.collect()
    assert len(site.rows(topic_spans(site.built.store, topic="t"))) < 40, "it was compacted"
    assert site.rows(spans) == list(range(40))
    assert site.rows(site.plan()) == list(range(40)), "another query of the snapshot finds it, too"


def test_without_a_lease_they_are_gone(site: Site) -> None:
    spans = site.plan(lease="0")
    assert site.pins() == ((), ())
    site.collect()
    with pytest.raises(ObjectNotFoundError):
        site.rows(spans)


def test_a_lease_is_an_hour_of_the_catalog_and_of_the_shard_that_is_read(site: Site) -> None:
    site.plan()
    (of_catalog,), (of_shard,) = site.pins()
    assert (of_catalog.state_seq, of_shard.state_seq) == (site.catalog_seq, site.seq)
    assert of_catalog.holder == of_shard.holder == f"spark snapshot 0:{site.seq}"
    assert of_catalog.until_ms == of_shard.until_ms == site.built.clock.now_ms() + HOUR_MS


def test_shards_that_are_not_read_get_no_pin() -> None:
    harness = MetadataHarness(shard_count=2)
    catalog = harness.catalog()
    topic = catalog.create("t", 1)
    shards = [MetadataLog.open(harness.actor("owner"), number, harness.load_directory) for number in range(2)]
    for shard in shards:
        shard.claim("owner", harness.ids.uuid())
    read = shard_of(TopicIdPartition(topic.topic_id, 0), 2)
    given = {"store": "memory://", "topic": "t", "snapshot": f"{1 - read}:1", "lease": "60"}
    [view] = StoreReader(harness.store, run_in_order).view(parse_options(given, is_stream=False))
    assert (view.shard, view.state.seq) == (read, 1)
    assert [len(shard.refresh().pins) for shard in shards] == [int(number == read) for number in range(2)]
    assert len(catalog.refresh().pins) == 1


def test_a_query_takes_the_lease_that_it_asks_for(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    site = Site(open_store(url))

    def read(**options: str) -> int:
        parsed = parse_options({"store": url, "topic": "t", **options}, is_stream=False)
        reader = TopicReader(parsed, ("offset",))
        return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))

    snapshot = f"0:{site.seq}"
    assert (read(), read(snapshot=snapshot, lease="0")) == (40, 40)
    assert site.pins() == ((), ())
    assert read(snapshot=snapshot) == 40
    assert [pin.state_seq for pins in site.pins() for pin in pins] == [site.catalog_seq, site.seq]
    assert read(lease="60") == 40
    _, (_, of_now) = site.pins()
    assert of_now.state_seq == of_now.seq


def test_plans_of_one_snapshot_share_a_pin_that_they_renew(site: Site) -> None:
    site.plan(lease="1000")
    seqs = [log.state().seq for log in site.logs()]
    ends = {pin.until_ms for pins in site.pins() for pin in pins}
    site.built.clock.advance(100_000)
    site.plan(lease="1000")
    assert {pin.until_ms for pins in site.pins() for pin in pins} == ends, "nine tenths are enough"
    site.built.clock.advance(1)
    site.plan(lease="1000")
    (of_catalog,), (of_shard,) = site.pins()
    assert of_catalog.until_ms == of_shard.until_ms == site.built.clock.now_ms() + 1_000_000
    assert [log.state().seq for log in site.logs()] == [seq + 2 for seq in seqs]


def test_a_plan_whose_pins_last_asks_once_more_only(site: Site) -> None:
    """For the store's time: opening the shard again would read the directories of its newest objects."""

    def requests(**options: str) -> Counter[str]:
        store = CountingObjectStore(site.built.store)
        site.plan(store, **options)
        counted: Counter[str] = Counter()
        for kind, made in store.counts().items():
            counted[f"{kind.verb} {kind.kind}"] += made.requests
        return counted

    without = requests(lease="0")
    assert any("/data/" in kind for kind in without), "the snapshot is built from directories"
    assert requests() - without, "it is pinned"
    more = requests()
    more.subtract(without)
    assert {kind: number for kind, number in more.items() if number} == {"GET catalog/head": 1}


def test_a_log_that_cannot_be_pinned_stands_for_the_others(site: Site) -> None:
    site.as_of_version(3)
    opened: list[bool] = []
    options = parse_options(
        {"store": "memory://", "topic": "t", "snapshot": f"0:{site.seq}"}, is_stream=False
    )
    lease = SnapshotLease(options, lambda: None)
    heads = [
        Head.decode(site.built.store.get(log.layout.head_key).data, "head", table)
        for log, table in zip(site.logs(), (CATALOG_ACTIONS, SHARD_ACTIONS), strict=True)
    ]

    def open_log(log: CommittedLog[Any]) -> CommittedLog[Any]:
        opened.append(True)
        return log

    for log, seq, head in zip(site.logs(), (site.catalog_seq, site.seq), heads, strict=True):
        lease.keep(partial(open_log, log), seq, head)
    assert len(opened) == 1


def test_a_lease_ends(site: Site) -> None:
    spans = site.plan(lease="60")
    site.collect(after_ms=59_999)
    assert site.rows(spans) == list(range(40))
    site.collect(after_ms=1)
    assert site.pins() == ((), ())
    with pytest.raises(ObjectNotFoundError):
        site.rows(spans)
    with pytest.raises(StoreError):
        site.plan()


def test_a_topic_that_was_deleted_since_is_kept_with_its_catalog(site: Site) -> None:
    spans = site.plan()
    tiered = site.built.tiered
    topic_id = site.built.tips["t"][0].topic_id
    site.built.clock.advance(1)
    tiered.catalog.delete(topic_id)
    tiered.metadata.drop_partitions(topic_id, tiered.catalog.confirm_deleted(topic_id))
    site.collect()
    site.collect()
    assert site.rows(spans) == list(range(40))
    assert site.rows(site.plan()) == list(range(40)), "the catalog of that time is there"


def test_a_snapshot_whose_files_are_gone_fails_as_it_is(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.collect()
    with pytest.raises(StoreError) as caught, caplog.at_level(logging.WARNING):
        site.plan()
    assert isinstance(caught.value, ObjectNotFoundError | PreconditionFailedError)
    with pytest.raises(PreconditionFailedError) as refused:
        site.plan(lease="60")
    first_seq = refused.value.fields["first_commit"]
    assert isinstance(first_seq, int)
    site.seq = first_seq
    assert site.rows(site.plan(lease="60")), "the first commit that the error names can be pinned"


def test_a_snapshot_that_cannot_be_pinned_is_read_with_a_warning(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of another topic are gone; those of this one are there."""
    site.built.create("other")
    site.built.upload({("other", 0): 10})
    site.seq = site.built.tiered.metadata.state().seq
    site.built.tiered.metadata.fold()
    site.built.tiered.advance_log_start(site.built.tips["other"][0], 10)
    [gone] = [file for file in site.built.tiered.metadata.state().dropped if file.brought_seq]
    site.built.tiered.metadata.begin_deletion([gone])
    with caplog.at_level(logging.WARNING):
        assert site.rows(site.plan()) == list(range(40))
    assert [f"0:{site.seq}" in line for line in caplog.messages] == [True], "it says so once"
    with pytest.raises(PreconditionFailedError):
        site.plan(lease="60")


def test_credentials_that_may_not_write_read_without_a_lease(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    store = ReadOnlyStore(site.built.store)
    with caplog.at_level(logging.WARNING):
        assert site.rows(site.plan(store)) == list(range(40))
    assert len(caplog.messages) == 1
    with pytest.raises(StoreAccessDeniedError):
        site.plan(store, lease="60")
    caplog.clear()
    site.plan()
    with caplog.at_level(logging.WARNING):
        assert site.rows(site.plan(store, lease="60")) == list(range(40)), "the lease of another query lasts"
    assert not caplog.messages
    assert site.pins() != ((), ())


def test_a_version_that_is_not_finalized_has_no_leases_of_snapshots(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.as_of_version(3)
    with caplog.at_level(logging.WARNING):
        assert site.rows(site.plan()) == list(range(40))
    assert len([line for line in caplog.messages if "stratalog tier finalize" in line]) == 1
    store = CountingObjectStore(site.built.store)
    with pytest.raises(StoreNotUsableError) as caught:
        site.plan(store, lease="60")
    assert caught.value.fields["needed_version"] == 4
    assert {kind.verb for kind in store.counts()} <= {"GET", "LIST"}, "the head says it, so nothing is tried"
    site.collect()
    for log in site.logs():
        assert log.state().deleted_seq == 0, "a collector goes on as before"
        log.finalize()
    site.seq = site.built.tiered.metadata.state().seq
    site.plan(lease="60")
    assert all(site.pins())


def test_the_first_version_has_no_leases_at_all(site: Site) -> None:
    site.as_of_version(1)
    store = CountingObjectStore(site.built.store)
    options = parse_options({"store": "memory://", "topic": "t", "lease": "60"}, is_stream=False)
    with pytest.raises(StoreNotUsableError) as caught:
        StoreReader(store, run_in_order).lease_as_asked(options)
    assert caught.value.fields["needed_version"] == 2
    assert {kind.verb for kind in store.counts()} <= {"GET", "LIST"}


@pytest.mark.parametrize(
    "fault",
    [
        Fault.FAILS,
        Fault.LANDS_UNKNOWN,
        Fault.LANDS_AND_IS_REFUSED,
        Fault.STOPS_BEFORE,
        Fault.STOPS_AFTER,
    ],
)
def test_one_fault_of_a_write_is_survived(fault: Fault) -> None:
    """Also the death of the driver: its pins end by their time."""
    for number in range(WRITE_COUNT):
        site = Site()
        writes = count()

        def plan(operation: Operation) -> Fault:
            is_due = operation.verb == "PUT" and next(writes) == number  # noqa: B023 - called in this round
            return fault if is_due else Fault.NONE

        spans: list[SliceSpan] = []
        with suppress(ActorStopped):
            spans = site.plan(FaultyObjectStore(site.built.store, random.Random(0), plan))
        assert next(writes) > number, "there is such a write"
        spans = spans or site.plan()
        site.collect()
        assert site.rows(spans) == list(range(40))
        assert len([pin for pins in site.pins() for pin in pins]) == 2
        site.collect(after_ms=HOUR_MS)
        assert site.pins() == ((), ())


def test_a_store_that_ignores_preconditions_gets_no_pin() -> None:
    site = Site(CarelessStore(ignores_match=True, ignores_absent=False))
    with pytest.raises(StoreNotUsableError) as caught:
        site.plan(lease="60")
    assert caught.value.fields["header"] == "If-Match"
    assert site.pins() == ((), ())
