"""The synchronous client leaves nothing behind on its loop."""

from __future__ import annotations

import asyncio

from stratalog.client.sync import SyncClient


async def task_without_end() -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.sleep(3600))


def test_close_cancels_what_still_runs() -> None:
    client = SyncClient("127.0.0.1:1")
    task = client.run(task_without_end())
    client.close()
    assert task.cancelled()
