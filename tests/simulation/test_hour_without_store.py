"""An hour without the store, on a manual clock, while records come: disk, store, status and log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from stratalog.base.errors import LogStoreError, LowDiskSpaceError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.rpc.admin.tier_status import tier_status_message
from stratalog.testing.store_faults import Fault
from stratalog.v1 import tier_pb2
from tests.support.logs.sampling import IS_WHOLE, whole_only
from tests.support.tier_model.bounded_disk import BoundedDisk
from tests.support.tier_model.engine_process import EngineProcess
from tests.support.tier_model.still_clock import StillClock
from tests.support.tier_model.tier_readings import read_all

CAPACITY_BYTES = 600_000
FLOOR_BYTES = 200_000
STEP_MS = 15_000
HOUR_STEPS = 240
VALUE = b"v" * 1_200
LEVELS = {level.config_value: level for level in Durability}
NOT_TIERED = "local"
MAX_LINES = 60
"""Lines of warnings and errors in the hour, of some six thousand failed turns."""


class Load:
    """A server with a topic of each level, and what it has acknowledged. Not thread-safe."""

    def __init__(
        self,
        policy: str,
        loop: asyncio.AbstractEventLoop,
        local_segments: Mapping[str, str] = MappingProxyType({"segment.bytes": "8192"}),
    ) -> None:
        """`local_segments`: configuration of the topic that is not tiered."""
        self.clock = StillClock()
        self.bucket = MemoryObjectStore(self.clock)
        self.disk = BoundedDisk(CAPACITY_BYTES)
        config = {"log.dir.min.free.bytes": str(FLOOR_BYTES)}
        self.process = EngineProcess(self.disk, self.bucket, self.clock, loop, 1, config=config)
        self.process.open()
        self.process.start_tasks()
        manager = self.process.engine.topics.manager
        common = {"file.delete.delay.ms": "1000", "local.retention.bytes": "0"}
        for name in LEVELS:
            overrides = {
                "segment.bytes": "8192",
                "min.durability": name,
                "remote.copy.backlog.policy": policy,
            }
            manager.create(name, 1, common | overrides)
        local = {"remote.storage.enable": "false", "retention.bytes": "50000", "local.retention.bytes": "-2"}
        manager.create(NOT_TIERED, 1, {**common, **local, **local_segments})
        self.waiting: list[tuple[str, asyncio.Future[AppendInfo], Record]] = []
        self.acknowledged: dict[str, dict[int, Record]] = {name: {} for name in (*LEVELS, NOT_TIERED)}
        self.refused: dict[str, list[LogStoreError]] = {name: [] for name in self.acknowledged}
        self.least_free_bytes = CAPACITY_BYTES
        self._count = 0

    def run(self, steps: int) -> None:
        """A record to each topic, then the time of a step, again and again."""
        for _ in range(steps):
            for name in self.acknowledged:
                self._append(name)
            self.clock.advance(STEP_MS)
            self._take_answers()
            self.least_free_bytes = min(self.least_free_bytes, self.disk.free_bytes("/data"))

    def take_store_away(self) -> None:
        self.process.weather.fault, self.process.weather.probability = Fault.FAILS, 1.0

    def bring_store_back(self) -> None:
        self.process.weather.probability = 0.0

    def _append(self, name: str) -> None:
        self._count += 1
        record = Record(0, self.clock.now_ms(), b"%d" % self._count, VALUE)
        partition = self.process.engine.topics.registry.partition(name, 0)
        try:
            future = self.process.append(partition, encode_batch([record]), None)
        except LogStoreError as error:
            self.refused[name].append(error)
            return
        self.waiting.append((name, future, record))

    def _take_answers(self) -> None:
        self.process.answer()
        for name, future, record in [one for one in self.waiting if one[1].done()]:
            error = future.exception()
            if error is None:
                offset = future.result().base_offset
                self.acknowledged[name][offset] = record._replace(offset=offset)
            else:
                assert isinstance(error, LogStoreError)
                self.refused[name].append(error)
        self.waiting = [one for one in self.waiting if not one[1].done()]

    def status(self) -> tier_pb2.TierStatusResponse:
        return tier_status_message(tier_pb2.TierStatusRequest(), self.process.engine, self.clock.now_ms())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("policy", ["block", "drop", "keep"] if IS_WHOLE else ["block"])
def test_an_hour(policy: str, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "stratalog")
    load = Load(policy, loop)
    load.run(40)
    assert not any(load.refused.values()), "all is well before"
    caplog.clear()
    load.take_store_away()
    load.run(HOUR_STEPS)
    require_as_promised(load, policy)
    require_told(load, is_away=True)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) < MAX_LINES, "\n".join(record.getMessage() for record in lines)
    load.bring_store_back()
    load.run(20)
    for refused in load.refused.values():
        refused.clear()
    load.run(60)
    assert not any(load.refused.values()), "all is well afterwards"
    require_told(load, is_away=False)
    require_all_there(load, is_lossy=policy == "drop")
    load.process.abandon()


@whole_only
def test_a_disk_that_another_topic_fills_loses_nothing_that_the_store_takes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    # Its one segment is never rolled, so no retention frees the disk.
    load = Load("drop", loop, local_segments={})
    load.run(HOUR_STEPS + 160)
    assert {type(error) for error in load.refused[NOT_TIERED]} == {LowDiskSpaceError}, "the disk is short"
    assert not any(load.refused[name] for name in LEVELS)
    require_all_there(load, is_lossy=False)
    load.process.abandon()


def require_as_promised(load: Load, policy: str) -> None:
    """The disk is bounded, and each refusal is the one that the level and the policy promise."""
    kinds = {name: {type(error) for error in refused} for name, refused in load.refused.items()}
    if policy == "keep":
        assert LowDiskSpaceError not in set().union(*(kinds[name] for name in LEVELS))
    else:
        # What comes between two looks, and what an open segment takes, is all that goes below the floor.
        assert load.least_free_bytes > FLOOR_BYTES - 30_000
    assert (LowDiskSpaceError in kinds["os"]) == (policy == "block")
    assert StoreUnavailableError in kinds["disk"], "another owner could have taken over"
    assert StoreUnavailableError in kinds["object"]
    assert StoreUnavailableError not in kinds[NOT_TIERED]


def require_told(load: Load, *, is_away: bool) -> None:
    """Status and passes say how it is."""
    status = load.status()
    (shard,) = status.shards
    assert shard.disk_appends_refused is is_away
    passes = {one.name: one for one in status.passes}
    for name in ("head-refresh", "upload", "collector"):
        assert bool(passes[name].last_error) is is_away, name
    assert (load.process.engine.passes.status("head-refresh").consecutive_failure_count > 0) is is_away


def require_all_there(load: Load, *, is_lossy: bool) -> None:
    """All that was acknowledged is in the store and readable, but for losses by policy, on record."""
    engine = load.process.engine
    engine.tier.manager.upload_now((), delete_local=False)
    names = {one.topic_id: name for name, one in engine.topics.catalog.topics().items()}
    lost: set[tuple[str, int]] = set()
    for tier in engine.tier.upkeep.tiers:
        report = tier.verification.run(None, StopSignal(), lambda _: None)
        assert report.findings == ()
        for gap in report.gaps:
            topic = names[gap.entry.topic_id]
            lost |= {(topic, offset) for offset in range(gap.base_offset, gap.end_offset)}
    assert bool(lost) is is_lossy
    for name in LEVELS:
        partition = engine.topics.registry.partition(name, 0)
        assert partition.tiered_end_offset == partition.log_end_offset
        found = {record.offset: record for record in read_all(partition, partition.log_start_offset)}
        wanted = {at: one for at, one in load.acknowledged[name].items() if (name, at) not in lost}
        assert wanted.items() <= found.items(), f"{name} has lost acknowledged records"
        assert len(wanted) > 40
