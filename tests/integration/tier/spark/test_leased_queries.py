"""A snapshot in a real session: its objects stay while the query runs, and go when the lease is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.remote.metadata.head.pin import Pin
from stratalog.remote.tier.collector import Collector, CollectorSettings
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.plain_store import START_MS, PlainStore

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

LEASE_S = 600


class Site:
    """A topic that can be compacted, and a collector without a grace, whose clock begins at that of Spark.
    Not thread-safe: one test uses it."""

    def __init__(self, directory: Path) -> None:
        self._of_store = ManualClock(START_MS)
        self.built = PlainStore(
            LocalObjectStore(PosixFileSystem(), self._of_store, SequentialIds(1), str(directory))
        )
        self.advance(SystemClock().now_ms() - START_MS)
        self.built.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
        for _ in range(4):
            self.built.upload({("t", 0): 20})
        self.seq = self.built.tiered.metadata.state().seq
        self.objects = set(self.built.tiered.metadata.state().objects)

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._of_store.advance(ms)
        self.built.clock.advance(ms)

    def query(self, spark: SparkSession, lease: str) -> Iterator[Row]:
        """The rows of the snapshot, task by task: the next one runs when the rows of the last one are
        used up."""
        frame = (
            spark.read.format("stratalog")
            .options(store=self.built.store.url, topic="t", snapshot=str(self.seq), lease=lease)
            .option("maxPartitionBytes", "1")
            .option("columns", "offset")
            .load()
        )
        return frame.toLocalIterator()

    def collect(self) -> None:
        """Compact the topic, and delete what no pin holds."""
        tiered = self.built.tiered
        tiered.metadata.refresh()
        self.advance(1_000)
        tiered.compactor().run()
        settings = CollectorSettings(grace_ms=0)
        collector = Collector(self.built.store, tiered.metadata, tiered.catalog, settings)
        for _ in range(2):
            tiered.metadata.fold()
            tiered.catalog.fold()
            collector.run(is_whole=True)

    @property
    def left(self) -> set[str]:
        """The objects of the snapshot that are there."""
        tiered = self.built.tiered
        found = {info.key for info in self.built.store.list("")}
        return {name for name in self.objects if tiered.layout.data_key(name) in found}

    @property
    def pins(self) -> list[Pin]:
        """Those of the catalog, and those of the shard."""
        tiered = self.built.tiered
        return [*tiered.catalog.refresh().pins, *tiered.metadata.refresh().pins]

    @property
    def holders(self) -> list[str]:
        """Those of the pins."""
        return [pin.holder for pin in self.pins]


def test_collection_waits_for_a_query_of_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(tmp_path / "store")
    rows = site.query(spark, str(LEASE_S))
    offsets = [next(rows)["offset"]]
    assert site.holders == [f"spark snapshot 0:{site.seq}"] * 2
    site.collect()
    assert len(site.built.tiered.partition(site.built.tips["t"][0]).slices) < 4, "it was compacted"
    assert site.left == site.objects
    offsets += [row["offset"] for row in rows]
    assert sorted(offsets) == list(range(80))
    site.advance(max(pin.until_ms for pin in site.pins) - site.built.clock.now_ms())
    site.collect()
    assert site.holders == []
    assert site.left == set()


def test_without_a_lease_it_does_not_wait(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    site = Site(tmp_path / "store")
    rows = site.query(spark, "0")
    next(rows)
    assert site.holders == []
    site.collect()
    assert site.left == set()
    with pytest.raises((Py4JError, PySparkException)) as caught:
        list(rows)
    assert any(name in str(caught.value) for name in site.objects), "it names the object"
