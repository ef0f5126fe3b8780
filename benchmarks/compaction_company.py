"""Measures how long small appends and fetches take while a compaction runs: in a process beside the server,
as servers have it, beside one on a thread of the server itself.

Servers of both kinds come in turns, each with data of its own. A caller appends a record and fetches it, one
call after the other, until the compaction has ended. It also prints both without a compaction, and the memory
of the process.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from log_cleaner import percentile_s
from report import Row, run
from server_process import ServerProcess, running
from stratalog.base.process_tuning import exempt_loaded_objects, keep_freed_memory, share_interpreter_lock
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.record.record import Record
from stratalog.server.app import Server
from stratalog.server.configuration.settings import ServerSettings

PROCESS, THREAD = "process", "thread"
UPLOAD_COUNT = 4
BATCH_COUNT = 512
"""Records of a call that fills."""
VALUE_BYTES = 1000
CALL_COUNT = 300
"""Calls without a compaction."""


class Samples(NamedTuple):
    """How long calls took, in seconds."""

    appends: list[float]
    fetches: list[float]

    def text(self) -> str:
        parts: list[str] = []
        for name, taken in (("appends", self.appends), ("fetches", self.fetches)):
            median_ms, slow_ms = (1000 * percentile_s(taken, part) for part in (0.5, 0.99))
            parts.append(f"{len(taken)} {name} in {median_ms:.1f} ms (median) and {slow_ms:.1f} ms (99 %)")
        return ", ".join(parts)


async def serve(place: str, folder: str) -> None:
    """Serve until the process ends."""
    keep_freed_memory()
    share_interpreter_lock()
    settings = ServerSettings(data_dir=f"{folder}/data", listen="127.0.0.1:0", compaction_ms=0)
    async with Server(settings, has_processes=place == PROCESS) as server:
        exempt_loaded_objects()
        print(f"listening on 127.0.0.1:{server.port}", flush=True)
        await asyncio.Event().wait()


async def fill(client: Client, size_bytes: int) -> None:
    """Records of few keys in several objects."""
    await client.admin.create_topic("small", 1)
    await client.admin.create_topic("big", 4, {"cleanup.policy": "compact", "retention.ms": "-1"})
    random = Random(1)
    key_count = size_bytes // VALUE_BYTES // 2
    for _ in range(UPLOAD_COUNT):
        for call in range(size_bytes // UPLOAD_COUNT // (BATCH_COUNT * VALUE_BYTES)):
            records = [
                Record(0, 1000, b"%08d" % random.randrange(key_count), random.randbytes(VALUE_BYTES))
                for _ in range(BATCH_COUNT)
            ]
            await client.append("big", call % 4, records)
        await client.admin.upload(["big"])


async def call(client: Client, samples: Samples) -> None:
    """Append a record, and fetch it."""
    begin = time.perf_counter()
    appended = await client.append("small", 0, [Record(0, 1000, b"key", b"value")])
    done = time.perf_counter()
    await client.fetch({TopicPartition("small", 0): appended.base_offset})
    samples.appends.append(done - begin)
    samples.fetches.append(time.perf_counter() - done)


async def measure_beside(address: str, size_bytes: int, idle: Samples, beside: Samples) -> None:
    """Calls before the compaction and while it runs."""
    async with Client(address) as client:
        await fill(client, size_bytes)
        for _ in range(CALL_COUNT):
            await call(client, idle)
        operation = await client.admin.start_compaction(["big"])
        ended = asyncio.ensure_future(client.operations.wait(operation.operation_id))
        begin = time.perf_counter()
        while not ended.done():
            await call(client, beside)
        result = (await ended).result
        assert isinstance(result, values.CompactionResult)
        assert [str(job.outcome) for job in result.jobs] == ["committed"], result
        print(
            f"{result.jobs[0].input_bytes >> 20} MiB in {time.perf_counter() - begin:.1f} s", file=sys.stderr
        )


def memory_of_child(server: ServerProcess) -> int:
    """The most memory that the process beside the server has had, in KiB; 0 without one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            status = path.with_name("status").read_text()
        except OSError:
            continue
        if parent == server.pid:
            return int(status.partition("VmHWM:")[2].split()[0])
    return 0


def measure(quick: bool) -> Iterator[Row]:
    """Rows of the latencies with a process, by those with a thread."""
    size_bytes, round_count = (24 << 20, 1) if quick else (128 << 20, 2)
    idle = Samples([], [])
    beside = {PROCESS: Samples([], []), THREAD: Samples([], [])}
    for _, place in itertools.product(range(round_count), (THREAD, PROCESS)):
        with (
            tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
            running(__file__, "--serve", place, folder) as server,
        ):
            asyncio.run(measure_beside(server.address, size_bytes, idle, beside[place]))
            if place == PROCESS:
                print(f"the process had {memory_of_child(server) >> 10} MiB at most", file=sys.stderr)
    print(f"without a compaction: {idle.text()}", file=sys.stderr)
    for place, samples in beside.items():
        print(f"beside one in a {place}: {samples.text()}", file=sys.stderr)
    for name, part in (("median", 0.5), ("99 %", 0.99)):
        for kind, ours, reference in (
            ("append", beside[PROCESS].appends, beside[THREAD].appends),
            ("fetch", beside[PROCESS].fetches, beside[THREAD].fetches),
        ):
            yield Row(
                work=f"{kind} beside a compaction, {name}",
                unit="1/s",
                ours=1 / percentile_s(ours, part),
                reference=1 / percentile_s(reference, part),
                target=1.0,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(*sys.argv[2:]))
    else:
        sys.exit(run(measure))
