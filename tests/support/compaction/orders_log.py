"""A compacted topic of one partition, with a slice for each upload, and compactions that lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.proof.proof_report import ProofReport
from stratalog.objectstore.open_store import open_store
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from tests.support.compaction.carried_slices import carry
from tests.support.compaction.proofs import Scratch, proved, small_means
from tests.support.tiered.tiered_site import TieredSite


class OrdersLog:
    """A bucket with one partition of `orders`. Not thread-safe: one test uses it."""

    def __init__(self, config: Mapping[str, str] = MappingProxyType({})) -> None:
        """`config`: further keys of the topic."""
        self.site = TieredSite()
        self.logs = self.site.start()
        topic = self.logs.create_topic("orders", 1, {"cleanup.policy": "compact", **config})
        self.topic = topic
        self.tip = TopicIdPartition(topic.topic_id, 0)
        (self._log,) = self.logs.logs.values()

    @property
    def slices(self) -> Sequence[LiveSlice]:
        """The live slices."""
        return tuple(self.logs.metadata.refresh().partition(self.tip).slices)

    def upload(self, *keys: bytes | None) -> LiveSlice:
        """Upload a slice with a record of each key."""
        self.logs.append(self._log, [Record(0, self.logs.clock.now_ms(), key, b"v") for key in keys])
        self.logs.seal()
        assert not self.logs.upload().failed
        return self.slices[-1]

    def claim_compacted(self, *part_counts: int) -> None:
        """Commit that a compaction has compacted so many of the first slices (by default all, into one) into
        one, and so many of the next ones into another one. It kept all records."""
        count = sum(part_counts) or len(self.slices)
        carry(
            self.logs,
            self.tip,
            self.slices[:count],
            self.site.ids,
            covers=True,
            part_counts=part_counts if len(part_counts) > 1 else (),
        )

    def advance_log_start(self, offset: int) -> None:
        """Advance the log start as `DeleteRecords` does."""
        logs = self.logs
        logs.metadata.advance_log_start({self.tip: offset}, epoch=logs.claimed.epoch, catalog_seq=None)

    def proof(
        self, *, topics: Sequence[str] = (), reads_data: bool = True, is_small: bool = True
    ) -> ProofReport:
        """Prove the shard; with small bounds, which a seed chooses, or with larger ones."""
        logs, scratch = self.logs, Scratch()
        means = small_means(logs.store, logs.clock, logs.metadata.layout, Random(1), scratch)
        if not is_small:
            means = means._replace(max_part_entries=5_000)
        report = proved(means, logs.metadata, logs.catalog, topics=topics, reads_data=reads_data)
        scratch.require_given_back()
        return report


def stored_orders(folder: Path) -> str:
    """The URL of a store in a folder of this machine, with something to compact."""
    orders = OrdersLog()
    orders.upload(b"a", b"b", b"c")
    orders.upload(b"d", b"b")
    url = f"file://{folder}/store"
    store = open_store(url, clock=SystemClock())
    for info in orders.site.bucket.list(""):
        store.put(info.key, orders.site.bucket.get(info.key).data)
    return url
