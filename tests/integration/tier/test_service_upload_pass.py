"""The uploader by itself: what is rolled reaches the bucket whatever durability its appends asked for."""

from __future__ import annotations

import asyncio
import errno
import re
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError, PreconditionFailedError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.background.tier_manager import UPLOAD_TRY_COUNT
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Operation
from tests.support.service.service_bench import ServiceBench, service_bench

SMALL_SEGMENTS = {"segment.bytes": "2000", "local.retention.ms": "0"}


async def until_tiered(bench: ServiceBench, topic: str, offset: int) -> None:
    """Returns once the tiered end of partition 0 is at or above `offset`; the test's time-out ends it
    otherwise.
    """
    while True:
        [log] = await bench.client.admin.describe_log(topic)
        if log.tiered_end_offset >= offset:
            return
        await asyncio.sleep(0.02)


RETAINING = {"log.retention.check.interval.ms": "20", "log.initial.task.delay.ms": "20"}


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.timeout(60)
async def test_rolled_segments_are_tiered_without_a_request(tmp_path: Path, durability: str) -> None:
    async with service_bench(tmp_path, upload_ms=20, config=RETAINING) as bench:
        await bench.client.admin.create_topic("t", 1, {**SMALL_SEGMENTS, "min.durability": durability})
        for _ in range(50):
            await bench.append("t", [b"x" * 300])
        [before] = await bench.client.admin.describe_log("t")
        await until_tiered(bench, "t", before.segments[-1].base_offset)
        [log] = await bench.client.admin.describe_log("t")
        assert log.tiered_end_offset > 0
        assert (await bench.client.admin.tier_status()).pending_upload_bytes == 0
        assert [len(records) for records in await bench.read_all("t")] == [50]


async def test_what_waits_for_its_upload_is_pending_before_it_is_fsynced(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
        for _ in range(50):
            await bench.append("t", [b"x" * 300])
        [log] = await bench.client.admin.describe_log("t")
        assert log.recovery_point < log.segments[-1].base_offset
        sealed_bytes = sum(segment.size_bytes for segment in log.segments if not segment.active)
        assert (await bench.client.admin.tier_status()).pending_upload_bytes == sealed_bytes > 0


async def test_a_pass_that_finds_nothing_to_do_reads_no_segment() -> None:
    disk, store = FaultyFileSystem(), MemoryObjectStore(SystemClock())
    for _ in range(2):
        async with service_bench("/", filesystem=disk, store=store) as bench:
            tiers = bench.server.engine.tiers
            if not await bench.client.admin.list_topics():
                await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
                for _ in range(50):
                    await bench.append("t", [b"x" * 300])
                await asyncio.to_thread(tiers.upload_pass)
            before = len(disk.trace)
            await asyncio.to_thread(tiers.upload_pass)
            assert not [line for line in disk.trace[before:] if line.startswith(("open_read", "read_"))]
            [log] = await bench.client.admin.describe_log("t")
            assert len(log.segments) > 5
            assert log.tiered_end_offset == log.segments[-1].base_offset > 0


async def upload_beside_a_broken_partition(tmp_path: Path) -> None:
    disk = FaultyFileSystem()
    async with service_bench(tmp_path, filesystem=disk) as bench:
        for topic in ("broken", "healthy"):
            await bench.client.admin.create_topic(topic, 1, {})
            await bench.append(topic, [b"value"])
        # A reason that concerns no other partition.
        disk.fail_where(re.compile("sync_directory .*/broken-0$").match, number=errno.EACCES)
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.upload(delete_local=True)
        [log] = await bench.client.admin.describe_log("healthy")
        assert (log.tiered_end_offset, log.local_log_start_offset) == (1, 1)


async def test_a_partition_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    # The stop says once more that a log could not be closed cleanly.
    with pytest.raises(DataDirectoryError) as failure:
        await upload_beside_a_broken_partition(tmp_path)
    assert str(failure.value.fields["path"]).endswith("/broken-0")


@pytest.mark.parametrize("deletion_count", [1, 2, 3])
async def test_an_upload_goes_on_where_records_are_deleted_meanwhile(
    tmp_path: Path, deletion_count: int
) -> None:
    """Each of the first objects is on its way when records beyond the tiered end are deleted."""
    bench: ServiceBench
    offsets = list(range(1, deletion_count + 1))

    def delete_meanwhile(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key and offsets:
            engine = bench.server.engine
            engine.tiers.delete_records(engine.registry.partition("t", 0), offsets.pop(0))

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=delete_meanwhile)
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        for number in range(5):
            await bench.append("t", [b"%d" % number])
        if deletion_count < UPLOAD_TRY_COUNT:
            assert (await bench.client.admin.upload(["t"])).slices == 1
        else:
            with pytest.raises(PreconditionFailedError):
                await bench.client.admin.upload(["t"])
            await bench.client.admin.upload(["t"])
        assert offsets == []
        [log] = await bench.client.admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (deletion_count, 5)
        [records] = await bench.read_all("t")
        assert [record.offset for record in records] == list(range(deletion_count, 5))
