"""A reader that catches up gets what the system has of the files in its memory, and threads do the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.posix_filesystem import PosixAppendFile
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.record.batch import batches
from stratalog.segment.log_tail import LogTail
from tests.support.service.service_bench import ServiceBench, service_bench

BATCH_COUNT = 12
POLLS = TopicPartition("t", 0)


async def read_from_files(bench: ServiceBench, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read all batches in a stream, about one in each answer; the number of reads that threads did."""
    by_thread_count = 0
    read = LogReader.read

    def counting(
        reader: LogReader, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        nonlocal by_thread_count
        by_thread_count += 1
        return read(reader, offset, max_bytes, isolation, min_one_message=min_one_message)

    def not_in_memory(*_: object, **__: object) -> None:
        pass

    await bench.client.admin.create_topic("t", 1, {})
    for number in range(BATCH_COUNT):
        await bench.append("t", [b"%02d" % number * 15_000])
    monkeypatch.setattr(LogReader, "read", counting)
    monkeypatch.setattr(LogTail, "read", not_in_memory)
    offsets: list[int] = []
    async for response in bench.fetch_stream({POLLS: 0}, max_bytes=50_000):
        [answer] = response.partitions
        offsets += [header.base_offset for _, header in batches(answer.batches)]
        if len(offsets) == BATCH_COUNT:
            break
    assert offsets == list(range(BATCH_COUNT))
    return by_thread_count


async def test_one_read_on_a_thread_finds_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(file: PosixAppendFile, position: int, size: int) -> bytes:
        return file.read_at(position, size)

    # As on a system that can tell, and has it in memory.
    monkeypatch.setattr(PosixAppendFile, "read_cached", cached)
    async with service_bench(tmp_path) as bench:
        assert await read_from_files(bench, monkeypatch) == 1


async def test_threads_read_what_is_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_cached(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(PosixAppendFile, "read_cached", not_cached)
    async with service_bench(tmp_path) as bench:
        assert await read_from_files(bench, monkeypatch) >= BATCH_COUNT
