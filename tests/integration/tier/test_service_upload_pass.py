"""The uploader by itself: what is rolled reaches the bucket whatever durability its appends asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import PreconditionFailedError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.background.tier_manager import UPLOAD_TRY_COUNT
from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Operation
from tests.support.service.service_bench import ServiceBench, service_bench

SMALL_SEGMENTS = {"segment.bytes": "2000", "local.retention.ms": "0", "remote.copy.max.age.ms": "1"}


async def test_what_waits_for_its_upload_is_pending_before_it_is_fsynced(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
        for _ in range(50):
            await bench.append("t", [b"x" * 300])
        [log] = await bench.client.admin.describe_log("t")
        segments = await bench.client.admin.list_segments("t", 0)
        assert log.recovery_point < segments[-1].base_offset
        sealed_bytes = sum(segment.size_bytes for segment in segments if not segment.active)
        [topic] = (await bench.client.admin.tier_status()).topics
        assert topic.pending_upload_bytes == sealed_bytes > 0


async def test_a_pass_that_finds_nothing_to_do_reads_no_segment() -> None:
    disk, store = FaultyFileSystem(), MemoryObjectStore(SystemClock())
    for _ in range(2):
        async with service_bench("/", filesystem=disk, store=store) as bench:
            tiers = bench.server.engine.tier.manager
            if not await bench.client.admin.list_topics():
                await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
                for _ in range(50):
                    await bench.append("t", [b"x" * 300])
                await asyncio.to_thread(tiers.upload_pass)
            before = len(disk.trace)
            await asyncio.to_thread(tiers.upload_pass)
            assert not [line for line in disk.trace[before:] if line.startswith(("open_read", "read_"))]
            [log] = await bench.client.admin.describe_log("t")
            segments = await bench.client.admin.list_segments("t", 0)
            assert log.segment_count == len(segments) > 5
            assert log.tiered_end_offset == segments[-1].base_offset == log.log_end_offset


@pytest.mark.parametrize("deletion_count", [1, 2, 3])
async def test_an_upload_goes_on_where_records_are_deleted_meanwhile(
    tmp_path: Path, deletion_count: int
) -> None:
    """Each of the first objects is on its way when records beyond the tiered end are deleted."""
    bench: ServiceBench
    offsets = list(range(1, deletion_count + 1))

    def delete_meanwhile(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key and offsets:
            delete_records([RecordDeletion.of(bench.partition(), offsets.pop(0))])

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=delete_meanwhile)
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        for number in range(5):
            await bench.append("t", [b"%d" % number])
        if deletion_count < UPLOAD_TRY_COUNT:
            assert (await bench.client.admin.upload(["t"])).slice_count == 1
        else:
            with pytest.raises(PreconditionFailedError):
                await bench.client.admin.upload(["t"])
            await bench.client.admin.upload(["t"])
        assert offsets == []
        [log] = await bench.client.admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (deletion_count, 5)
        [records] = await bench.read_all("t")
        assert [record.offset for record in records] == list(range(deletion_count, 5))
