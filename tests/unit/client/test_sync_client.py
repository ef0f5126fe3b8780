"""The synchronous client leaves nothing behind on its loop; the package loads what is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.client.sync_client import SyncClient


async def task_without_end() -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.sleep(3600))


def test_close_cancels_what_still_runs() -> None:
    client = SyncClient("127.0.0.1:1")
    task = client.run(task_without_end())
    client.close()
    assert task.cancelled()


def test_a_wrong_address_leaves_no_thread() -> None:
    with pytest.raises(InvalidRequestError):
        SyncClient("nowhere")


def test_the_package_loads_its_classes_when_they_are_used() -> None:
    program = """
import sys
import stratalog.client
assert not [name for name in sys.modules if name.startswith("grpc")]
from stratalog.client import Client, SyncClient
assert (Client.__module__, SyncClient.__module__) == (
    "stratalog.client.client", "stratalog.client.sync_client")
try:
    stratalog.client.Nothing
except AttributeError:
    print("done")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert answer.stdout == "done\n"
