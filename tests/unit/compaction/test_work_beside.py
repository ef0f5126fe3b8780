"""Jobs whose requests go on other threads: they leave the same objects as jobs that send each request
themselves, with the same requests, and leave nothing behind if they fail."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from stratalog.base.errors import StoppingError, StoreUnavailableError
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import REQUESTS_BESIDE
from stratalog.compaction.output.part_sends import PartSends
from stratalog.objectstore.counted import RequestCount
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import Buffer, ObjectUpload
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard import replace_judge
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.tiered.stores.open_streams_store import OpenStreamsStore
from tests.support.tiered.tiered_store import TieredStore

PARTITION_COUNT = 5
OBJECT_COUNT = 3
BATCH_COUNT = 4
RECORDS_IN_BATCH = 6
VALUE_BYTES = 4000


def few_bytes(settings: CompactionSettings) -> CompactionSettings:
    """Blocks of 64 KiB, chunks of less, and parts of which an output has several."""
    return dataclasses.replace(
        settings, job_memory_bytes=1 << 20, read_chunk_bytes=100_000, output_part_bytes=100_000
    )


class Shard:
    """A compacted topic whose objects have many blocks."""

    def __init__(self) -> None:
        random = Random(1)
        self.clock = ManualClock()
        self.inner = MemoryObjectStore(self.clock)
        self.store = OpenStreamsStore(self.inner)
        self.filesystem = MemoryFileSystem()
        self.tiered = TieredStore(self.filesystem, self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", PARTITION_COUNT, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITION_COUNT)]
        for _ in range(OBJECT_COUNT):
            self.tiered.upload({tip: self._batches(tip, random) for tip in self.tips})

    def _batches(self, tip: TopicIdPartition, random: Random) -> list[bytes]:
        offset = self.tiered.partition(tip).tiered_end_offset
        batches: list[bytes] = []
        for _ in range(BATCH_COUNT):
            keys = [b"%d" % random.randrange(40) for _ in range(RECORDS_IN_BATCH)]
            records = [
                Record(offset + index, 1000, key, random.randbytes(VALUE_BYTES))
                for index, key in enumerate(keys)
            ]
            batches.append(encode_batch(records, base_offset=offset, leader_epoch=1))
            offset += RECORDS_IN_BATCH
        return batches

    def compact(self, run_beside: RunBeside) -> tuple[CompactionReport, ...]:
        self.store.reset()
        return self.tiered.compactor(change=few_bytes, run_beside=run_beside).run()

    def get_requests(self) -> dict[str, RequestCount]:
        return {
            kind.kind: count
            for kind, count in self.store.counts().items()
            if kind.verb == "GET" and "/data/" in kind.kind
        }

    def objects(self) -> dict[str, bytes]:
        return {
            info.key: self.inner.get(info.key).data for info in self.inner.list("") if "/data/" in info.key
        }


def test_threads_make_no_difference_to_objects_requests_and_reports() -> None:
    alone = Shard()
    (expected,) = alone.compact(run_here)
    assert expected.get_requests == 2 * OBJECT_COUNT
    assert expected.put_requests > 4, "an output of several parts"
    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        for _ in range(5):
            shard = Shard()
            assert shard.compact(threads.submit) == (expected,)
            assert shard.objects() == alone.objects()
            assert shard.get_requests() == alone.get_requests()
            assert shard.store.open_count == 0


def test_the_store_is_asked_for_all_inputs_before_the_work_waits_for_one() -> None:
    """An executor that runs nothing before the requests for all inputs have come to it."""
    asked: list[object] = []
    is_full = threading.Event()

    def gathering(task: object) -> object:
        asked.append(task)
        if len(asked) == OBJECT_COUNT:
            is_full.set()
        return threads.submit(run, task)

    def run(task: object) -> None:
        assert is_full.wait(30), "the job waits for the first input before it asks for the others"
        assert callable(task)
        task()

    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        (report,) = Shard().compact(gathering)
    assert report.refused is None


def test_the_commit_is_judged_while_the_last_two_parts_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Shard()
    (expected,) = alone.compact(run_here)
    last_number = expected.put_requests - 2
    last_early = last_number - 2
    assert last_early > 0
    is_judged = threading.Event()
    judge = replace_judge.judge_replace

    def noted(state: ShardState, plan: replace_judge.ReplacePlan) -> object:
        judged = judge(state, plan)
        is_judged.set()
        return judged

    shard, sent = Shard(), list[int]()

    class LateUpload:
        """Its last two parts are there once the commit was judged."""

        def __init__(self, inner: ObjectUpload) -> None:
            self._inner = inner
            self.complete, self.abort = inner.complete, inner.abort

        def put_part(self, number: int, data: Sequence[Buffer]) -> None:
            sent.append(number)
            assert number <= last_early or is_judged.wait(30), "the job waits before it judges its commit"
            assert number > last_early or not is_judged.is_set(), "the commit is judged before its proof"
            self._inner.put_part(number, data)

    open_upload = shard.store.open_upload

    def open_late(key: str) -> LateUpload:
        return LateUpload(open_upload(key))

    monkeypatch.setattr(shard.store, "open_upload", open_late)
    monkeypatch.setattr(replace_judge, "judge_replace", noted)
    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        assert shard.compact(threads.submit) == (expected,)
    assert sent == [*range(1, last_number + 1)]
    assert shard.objects() == alone.objects()


def test_a_job_that_fails_beside_its_reads_leaves_no_connection_and_no_scratch() -> None:
    shard = Shard()
    key = next(iter(shard.objects()))
    data = bytearray(shard.inner.get(key).data)
    data[300_000] ^= 1
    shard.inner.put(key, data)
    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        reports = shard.compact(threads.submit)
        assert any(report.refused and "checksum" in report.refused for report in reports), reports
        assert shard.store.open_count == 0
        assert not list(shard.store.list_uploads(""))


@pytest.mark.parametrize("number", range(0, 17, 2))
def test_a_job_that_is_stopped_at_a_request_leaves_nothing_behind(number: int) -> None:
    """Those that are under way end, and no other begins but the abort of an upload."""
    shard, stop = Shard(), StopSignal()
    begun: list[Operation] = []

    def note(operation: Operation) -> None:
        if "/data/" in operation.key:
            begun.append(operation)
        if len(begun) == number + 1:
            stop.set()

    store = FaultyObjectStore(shard.store, Random(number), before=note)
    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        compactor = shard.tiered.compactor(store, few_bytes, run_beside=threads.submit)
        with pytest.raises(StoppingError):
            compactor.run(stop=stop)
        begun_count = len(begun)
        assert shard.store.open_count == 0
        assert not list(shard.inner.list_uploads(""))
        assert shard.filesystem.list_directory("/tiered/compaction") == []
    assert len(begun) == begun_count
    behind = [operation.condition for operation in begun[number + 1 + REQUESTS_BESIDE :]]
    assert behind in ([], ["abort"])


def test_one_part_is_on_its_way_and_its_error_ends_the_next() -> None:
    may_end, may_fail = threading.Event(), threading.Event()
    running: list[int] = []
    counts: list[int] = []

    def send() -> None:
        running.append(1)
        may_end.wait(30)
        counts.append(len(running))
        running.pop()

    def fail_late() -> None:
        may_fail.wait(30)
        fail()

    def fail() -> None:
        raise StoreUnavailableError("no answer")

    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        sends = PartSends(threads.submit)
        first = sends.begin(send)
        assert not first.has_ended
        may_end.set()
        sends.begin(send)
        assert counts[:1] == [1], "the first one has ended"
        failing = sends.begin(fail_late)
        may_fail.set()
        with pytest.raises(StoreUnavailableError):
            failing.result()
        with pytest.raises(StoreUnavailableError):
            sends.begin(send)
        sends.begin(send).result()
    assert counts == [1, 1, 1]
    with pytest.raises(StoreUnavailableError):
        PartSends(run_here).begin(fail)


def test_a_part_behind_another_waits_for_it_on_its_own_thread() -> None:
    may_end, sent = threading.Event(), list[int]()

    def send_late() -> None:
        assert may_end.wait(30)
        sent.append(1)

    def fail_late() -> None:
        assert may_end.wait(30)
        raise StoreUnavailableError("no answer")

    with ThreadPoolExecutor(REQUESTS_BESIDE) as threads:
        sends = PartSends(threads.submit)
        sends.begin(send_late)
        behind = sends.begin_behind(lambda: sent.append(2))
        assert sent == [], "the caller waits for neither"
        may_end.set()
        behind.result()
        assert sent == [1, 2]
        may_end.clear()
        sends.begin(fail_late)
        behind = sends.begin_behind(lambda: sent.append(3))
        may_end.set()
        with pytest.raises(StoreUnavailableError):
            behind.result()
        assert sent == [1, 2], "nothing follows a part that is missing"
