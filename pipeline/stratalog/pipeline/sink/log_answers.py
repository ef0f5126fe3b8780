"""Reads a range of a partition for the driver of a write, answer by answer, and never waits without an end.

A consumer would wait for a server as long as the connection lives. A driver holds a batch of its query, so it
gives up a server whose disk hangs, with an error that Spark can show, and the batch is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import FetchedPartition
from stratalog.client.retry import Patience

_FETCH_BYTES = 8 << 20
_MAX_WAIT_MS = 1_000
"""The longest wait of the server for records that it has, which may be in the object store."""


async def log_answers(
    client: Client, place: TopicPartition, start_offset: int, end_offset: int
) -> AsyncGenerator[FetchedPartition]:
    """Yield answers without an error that follow one another from `start_offset` to `end_offset`, which is at
    most the high watermark. Raises LogStoreError, for a server that sends nothing until the deadline of the
    client's retries, too."""
    loop = asyncio.get_running_loop()
    patience = Patience(client.channel.retry)
    offset = start_offset
    while offset < end_offset:
        asked_s = loop.time()
        [answer] = await client.fetch({place: offset}, max_wait_ms=_MAX_WAIT_MS, max_bytes=_FETCH_BYTES)
        if answer.error is not None:
            await patience.bear(answer.error, asked_s)
            continue
        if answer.next_fetch_offset <= offset:
            silence = ServerUnavailableError(
                "the server sends no records though it has some; look at its disk, and try again",
                server=client.address,
                topic=place.topic,
                partition=place.partition,
                offset=offset,
            )
            await patience.bear(silence, asked_s)
            continue
        patience.succeed()
        yield answer
        offset = answer.next_fetch_offset
