"""Reads of a range of a log by the driver of a write: they end, whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import FetchedPartition
from stratalog.client.retry import RetryPolicy
from stratalog.pipeline.sink.log_answers import log_answers

PLACE = TopicPartition("t", 1)
HIGH_WATERMARK = 10


class ScriptedClient(Client):
    """A client whose server answers as the script says: with the next offset, or an error; at last with
    nothing."""

    def __init__(self, *script: int | LogStoreError) -> None:
        super().__init__("log:9190", retry=RetryPolicy(deadline_s=0.05, first_pause_s=0.001))
        self._script = [*script]
        self.asked: list[int] = []

    async def fetch(self, positions: Mapping[TopicPartition, Any], **_: Any) -> list[FetchedPartition]:
        [(place, offset)] = positions.items()
        self.asked.append(offset)
        step = self._script.pop(0) if self._script else offset
        error = step if isinstance(step, LogStoreError) else None
        end = offset if isinstance(step, LogStoreError) else step
        answer = FetchedPartition(
            topic=place.topic,
            partition=place.partition,
            batches=b"",
            fetch_offset=offset,
            next_fetch_offset=end,
            log_start_offset=0,
            local_log_start_offset=0,
            high_watermark=HIGH_WATERMARK,
            last_stable_offset=HIGH_WATERMARK,
            aborted_transactions=(),
            topic_id="id",
            leader_epoch=0,
            last_epoch=-1,
            error=error,
        )
        return [answer]


async def ends(client: Client, start_offset: int, end_offset: int) -> list[int]:
    """The ends of the answers."""
    async with client:
        answers = log_answers(client, PLACE, start_offset, end_offset)
        return [answer.next_fetch_offset async for answer in answers]


async def test_answers_follow_one_another_to_the_end() -> None:
    client = ScriptedClient(4, 7, 10)
    assert await ends(client, 2, 6) == [4, 7]
    assert client.asked == [2, 4]


async def test_a_place_at_the_end_is_not_asked_for() -> None:
    client = ScriptedClient()
    assert await ends(client, HIGH_WATERMARK, HIGH_WATERMARK) == []
    assert client.asked == []


async def test_a_passing_failure_and_a_pause_are_outlasted() -> None:
    client = ScriptedClient(ServerUnavailableError("away"), 2, 4, ServerUnavailableError("away"), 6)
    assert await ends(client, 2, 6) == [4, 6]
    assert client.asked == [2, 2, 2, 4, 4]


async def test_a_server_that_sends_nothing_is_given_up() -> None:
    client = ScriptedClient(4)
    with pytest.raises(ServerUnavailableError) as silent:
        async with asyncio.timeout(60):
            await ends(client, 2, 6)
    assert {"topic": "t", "partition": 1, "offset": 4}.items() <= silent.value.fields.items()


async def test_a_failure_that_stays_is_raised() -> None:
    with pytest.raises(OffsetOutOfRangeError):
        await ends(ScriptedClient(OffsetOutOfRangeError("deleted")), 2, 6)
