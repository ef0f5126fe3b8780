"""`kill -9` under load, again and again, with the store and the disk kept: several producers at `disk` and at
`object`, idempotent or not, and readers that follow them. For seconds, or by `make torture` for ten minutes
with a new seed, over files and over S3.

Nothing acknowledged is lost or moved, nothing is stored twice, and every reader sees each partition in order,
without a gap.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from stratalog.base.types import Durability
from stratalog.client.client import Client
from tests.support.service.server_process import ServerProcess
from tests.support.tiered.s3_servers import SERVERS
from tests.support.torture.numbered_topic import PARTITION_COUNT, PATIENT, NumberedTopic

DURATION_S = float(os.environ.get("STRATALOG_TORTURE_S", "4"))
SEED = int(os.environ.get("STRATALOG_TORTURE_SEED", "1"))
IS_WHOLE = DURATION_S > 60
MAX_LIFE_S = 3.0
CONFIG = {"segment.bytes": "100000", "local.retention.ms": "1", "remote.storage.enable": "true"}
OPTIONS = ("--upload-interval", "1", "--config", "remote.append.commit.interval.ms=30")


@contextmanager
def store_url(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A store that outlives the server: files, or S3 in another process than the server's."""
    if kind == "files":
        yield f"file://{folder}/store"
        return
    with SERVERS[kind]() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        yield s3.store_url("kill-loop")


@pytest.mark.parametrize("kind", ["files", *(["moto"] if IS_WHOLE else [])])
@pytest.mark.timeout(300 + 3 * DURATION_S)
async def test_kills_lose_and_double_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = [
        NumberedTopic(f"{durability.config_value}-{suffix}", durability, is_idempotent=suffix == "idempotent")
        for durability in (Durability.DISK, Durability.OBJECT)
        for suffix in ("idempotent", "plain")
    ]
    chance, is_enough, kill_count = Random(SEED), asyncio.Event(), 0
    with (
        store_url(kind, tmp_path, monkeypatch) as url,
        ServerProcess(f"{tmp_path}/data", store_url=url, options=OPTIONS) as server,
    ):
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client:
            for topic in topics:
                await client.admin.create_topic(topic.name, PARTITION_COUNT, CONFIG)
            async with asyncio.TaskGroup() as tasks:
                for topic in topics:
                    tasks.create_task(topic.produce(client, is_enough, burst_count=20, pause_s=0.01))
                    tasks.create_task(topic.tail(client))
                end_s = time.monotonic() + DURATION_S
                while time.monotonic() < end_s or not kill_count:
                    await asyncio.sleep(chance.uniform(0.2, MAX_LIFE_S))
                    server.kill()
                    kill_count += 1
                    await asyncio.to_thread(server.start)
                is_enough.set()
            # As a reader sees them that begins now.
            async with asyncio.TaskGroup() as tasks:
                for topic in topics:
                    tasks.create_task(topic.tail(client))
    counts = ", ".join(f"{one.acknowledged_count} of {one.sent_count} at {one.name}" for one in topics)
    with capsys.disabled():
        sys.stdout.write(
            f"\nseed {SEED}, {DURATION_S:g} s, {kind}: {kill_count} kills; acknowledged {counts}\n"
        )
    assert all(one.acknowledged_count > 0 for one in topics)
