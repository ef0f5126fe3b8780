"""A machine that dies at every operation of a drop, and a store that fails at every request of the commit.

The log has records in the store and a backlog behind them, of which the drop takes a part. Whatever happens,
the tiered records stay readable, an offset is given once, and after the next contact the store has every
offset as a record or in a gap.
"""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultOn, FaultPlan, Operation, no_faults
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.tiered.shard_states import partitions_in
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

TIERED, BACKLOG, DROPPED = 2, 5, 3
CONFIG = {"remote.copy.backlog.policy": "drop", "retention.ms": "-1"}


class Backlog(TieredSite):
    """A log with tiered segments of one record each, a backlog of such segments, and one in the active
    segment. All of them are durable."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = FaultyFileSystem()
        self.logs = self.start(self.faulty)
        self.logs.create_topic("t", 1, CONFIG)
        for number in range(TIERED + BACKLOG):
            self.append(self.logs)
            self.logs.seal()
            if number == TIERED - 1:
                self.logs.upload()
        self.append(self.logs)
        self.log.flusher.flush()

    @property
    def log(self) -> UnifiedLog:
        return self.logs.logs[TopicPartition("t", 0)]

    def append(self, logs: TieredLogs) -> int:
        [log] = logs.logs.values()
        [record] = logs.append(log, [Record(0, self.clock.now_ms(), b"k", bytes(100))])
        return record.offset

    def drop(self) -> None:
        segments = self.log.reader.segments()[: TIERED + DROPPED]
        self.log.retention.drop_for_space(sum(one.size_bytes for one in segments), may_lose=True)

    def restarted(self, disk: FileSystem) -> TieredLogs:
        """The next server on that disk, over a copy of the bucket."""
        copy = MemoryObjectStore(self.clock)
        for found in self.bucket.list(""):
            copy.put(found.key, self.bucket.get(found.key).data)
        self.store = copy
        logs = self.start(disk)
        for log in logs.logs.values():
            # The reason of a loss is that of its time.
            log.reconfigure(LogConfig.from_overrides(CONFIG | {"remote.copy.backlog.policy": "block"}))
        return logs


class Dropping:
    """The workload of the sweep."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.disk = self.backlog.faulty


def check_whole(backlog: Backlog, logs: TieredLogs) -> None:
    """Every offset is a record or in a gap, and the next one is new."""
    [log] = logs.logs.values()
    begin = log.local_log.segments.start_offset
    assert backlog.append(logs) == TIERED + BACKLOG + 1
    logs.seal()
    report = logs.upload()
    assert not report.failed
    assert not report.refused
    [partition] = partitions_in(logs.metadata.state()).values()
    partition.check()
    lost = [
        (live.base_offset, live.end_offset, live.gap.reason)
        for live in partition.slices
        if live.gap is not None
    ]
    assert lost == ([(TIERED, begin, "dropped_by_policy")] if begin > TIERED else [])
    offsets = [record.offset for record in logs.tiered_records(log)]
    assert offsets == [*range(TIERED), *range(max(begin, TIERED), TIERED + BACKLOG + 2)]
    log.check()


def test_a_death_in_a_drop_leaves_the_segments_or_the_loss() -> None:
    sweep = CrashSweep(Dropping, lambda workload: workload.backlog.drop())
    assert sweep.whole.backlog.log.local_log.segments.start_offset == TIERED + DROPPED

    def verify(death: Death[Dropping]) -> None:
        for disk in death.disks():
            backlog = death.subject.backlog
            check_whole(backlog, backlog.restarted(disk))

    sweep.at_deaths(verify)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS_OF_VERB["PUT"] if fault is not Fault.NONE])
@pytest.mark.parametrize("occurrence", [1, 2])
def test_whatever_the_store_does_with_a_gap_it_is_there_once(fault: Fault, occurrence: int) -> None:
    backlog = Backlog()
    backlog.drop()
    plans: list[FaultPlan] = [no_faults]

    def newest(operation: Operation) -> Fault:
        return plans[-1](operation)

    backlog.store = FaultyObjectStore(backlog.bucket, Random(0), newest)
    logs = backlog.start(backlog.faulty.killed())
    plans.append(FaultOn(fault, "PUT", "shards/0000/head", occurrence))
    try:
        logs.upload()
    except StoreUnavailableError:
        pass
    except ActorStopped:
        backlog.store = backlog.bucket
        logs = backlog.start(backlog.faulty.killed())
    check_whole(backlog, logs)
