"""Messages between a server and its processes arrive as they were sent."""

from __future__ import annotations

import pickle

import pytest

from stratalog.base import errors
from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.execution_end import Done, Failed
from stratalog.compaction.job_execution import JobClock, JobExecution
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

ERRORS = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, LogStoreError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_arrives_with_its_fields(kind: type[LogStoreError]) -> None:
    sent = kind("a job failed; try again", topic="orders", partition=3)
    found = pickle.loads(pickle.dumps(sent))
    assert type(found) is kind
    assert (str(found), found.fields) == (str(sent), {"topic": "orders", "partition": 3})


def test_an_order_and_its_end_arrive_as_they_were() -> None:
    clock, ids, filesystem = ManualClock(), SequentialIds(1), MemoryFileSystem()
    tiered = TieredStore(filesystem, MemoryObjectStore(clock), clock, ids)
    topic = tiered.catalog.create("orders", 2, {"cleanup.policy": "compact"})
    tips = [TopicIdPartition(topic.topic_id, number) for number in range(2)]
    for number in range(3):
        batch = encode_batch([Record(0, 1, b"key", b"%d" % number)], base_offset=number, leader_epoch=1)
        tiered.upload({tip: [batch] for tip in tips})
    shard = tiered.shard(tiered.store)
    [job] = tiered.compactor().plan(["orders"]).jobs
    settings = CompactionSettings(spool_directory="/elsewhere", merge_fanout=7)
    order = shard.order(job, settings, JobClock(clock.now_ms(), may_drop_tombstones=True))
    arrived = pickle.loads(pickle.dumps(order))
    assert arrived == order
    arrived.job.check()
    execution = JobExecution(filesystem, clock, ids, tiered.store, arrived)
    done = Done(execution.execute())
    assert pickle.loads(pickle.dumps(done)) == done
    failed = Failed(OSError(28, "no space", "/elsewhere/x"), tips[1], execution.at_work)
    found = pickle.loads(pickle.dumps(failed))
    assert (found.error.errno, found.error.filename, found.current) == (28, "/elsewhere/x", tips[1])
