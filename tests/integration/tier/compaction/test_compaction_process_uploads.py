"""A process of a server executes a job over S3, and the server dies: nothing of the job is left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import JobClock
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.job_processes.job_process import JobProcess
from stratalog.server.job_processes.messages import Hello
from stratalog.server.job_processes.software_on_disk import software_digest
from tests.support.service.service_bench import PATIENCE_S
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.stores.proxied_s3 import WHOLE, Breakage, Exchange, ProxiedS3, proxied_s3
from tests.support.tiered.tiered_store import TieredStore

PART_BYTES = 5 << 20
VALUE_BYTES = 1 << 20


@pytest.fixture(name="wire")
def _wire(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Generator[ProxiedS3]:
    for name, value in moto_server.environment().items():
        monkeypatch.setenv(name, value)
    with proxied_s3(moto_server) as proxy:
        yield proxy


def stored(wire: ProxiedS3, prefix: str, folder: Path) -> TieredStore:
    """A store with two objects, whose output has several parts."""
    store = wire.target.open_store(prefix)
    tiered = TieredStore(
        PosixFileSystem(), store, SystemClock(), SystemIdGenerator(), directory=f"{folder}/tiered"
    )
    topic = tiered.catalog.create("t", 1, {"cleanup.policy": "compact"})
    random = Random(0)
    for number in range(2):
        records = [Record(0, 1, b"%d-%d" % (number, key), random.randbytes(VALUE_BYTES)) for key in range(6)]
        batch = encode_batch(records, base_offset=6 * number, leader_epoch=1)
        tiered.upload({TopicIdPartition(topic.topic_id, 0): [batch]})
    return tiered


def test_a_process_whose_server_dies_aborts_its_uploads(
    wire: ProxiedS3, s3_prefix: str, tmp_path: Path
) -> None:
    """A bucket bills the parts of an upload, and no listing of its objects shows them."""
    tiered = stored(wire, s3_prefix, tmp_path)
    begun, is_dead = threading.Event(), threading.Event()

    def hold(exchange: Exchange, _size_bytes: int) -> Breakage:
        """Let the answer to the first request of an upload wait for the death of the server."""
        if "uploads" in exchange.query and exchange.method == "POST":
            begun.set()
            assert is_dead.wait(PATIENCE_S)
        return WHOLE

    wire.breaks = hold
    client, bucket = wire.target.client(), wire.target.bucket
    before = list(tiered.store.list(""))
    [job] = tiered.compactor().plan(["t"]).jobs
    settings = CompactionSettings(spool_directory=f"{tmp_path}/scratch", output_part_bytes=PART_BYTES)
    job_clock = JobClock(SystemClock().now_ms(), may_drop_tombstones=True)
    process = JobProcess(Hello(wire.server.store_url(s3_prefix), logging.INFO), software_digest())
    process.give(tiered.shard(tiered.store).order(job, settings, job_clock))
    assert begun.wait(PATIENCE_S)
    [upload] = client.list_multipart_uploads(Bucket=bucket, Prefix=s3_prefix)["Uploads"]
    # As the kernel does with the pipe of a server that dies.
    vars(process)["_pipe"].close()
    is_dead.set()
    assert process.end(PATIENCE_S) == 0, "by itself, and not by a signal"
    aborted = [one.key for one in wire.seen() if one.method == "DELETE" and "uploadId" in one.query]
    assert aborted == [upload["Key"]]
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket, Prefix=s3_prefix)
    assert list(tiered.store.list("")) == before
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []
