"""The permissions that docs/security.md names for writes of Spark that are exactly once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.client.access.credentials import Credentials
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.sink_options import parse_sink_options
from stratalog.pipeline.sink.staging_topic import StagedTask
from stratalog.pipeline.sink.task_staging import TaskStaging
from tests.support.access.guarded_site import EVERYTHING, GuardedSite

RULES = """
{ topics = ["spark-sink-*"], operations = ["create", "read", "write", "delete"] },
{ topics = ["t"], operations = ["read", "write"] }
"""


async def test_the_permissions_of_the_document_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the driver appends the rows itself."""
    site = GuardedSite(tmp_path, sink=RULES.replace("\n", " ").strip(), admin=EVERYTHING)
    async with site.running():
        async with site.client("admin") as admin:
            await admin.topics.create("t", partitions=2)
        credentials = Credentials(tls_ca=site.authority.path, token=site.tokens["sink"])
        options = parse_sink_options({"server": "localhost:1", "topic": "t"}, is_stream=False)
        rows = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(40)]})
        for batch, has_places in enumerate((True, False)):
            async with site.client("sink") as driver:

                def stage(attempt: str = f"{batch}") -> StagedTask:
                    with SyncClient(f"localhost:{site.server.port}", credentials=credentials) as client:
                        return TaskStaging(client, "spark-sink-q", attempt, options).stage([rows], 0)

                task = await asyncio.to_thread(stage)
                commit = BatchCommit(driver, "spark-sink-q", None)
                await commit.commit(batch, [task if has_places else task._replace(places=None)])
                assert sum((await driver.latest("t")).values()) == 40 * (batch + 1)
                if not has_places:
                    await driver.topics.delete("spark-sink-q")
