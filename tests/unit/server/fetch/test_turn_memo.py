"""Results that calls share within one turn of the event loop, and no longer."""

from __future__ import annotations

import asyncio

from stratalog.server.fetch.turn_memo import TurnMemo


async def test_calls_that_one_event_wakes_share_a_result() -> None:
    memo = TurnMemo[int](asyncio.get_running_loop())
    made: list[str] = []
    event = asyncio.Event()

    def make() -> int:
        made.append("made")
        return len(made)

    async def call() -> int | None:
        await event.wait()
        return memo.get("key", make)

    calls = [asyncio.create_task(call()) for _ in range(100)]
    await asyncio.sleep(0)
    event.set()
    assert await asyncio.gather(*calls) == [1] * 100
    assert memo.get("key", make) == 2, "the next turn has a result of its own"
    assert memo.get("other", make) == 3
    assert memo.get("key", make) == 2
    await asyncio.sleep(0)
    assert memo.get("other", make) == 4


async def test_nothing_is_not_kept() -> None:
    memo = TurnMemo[int](asyncio.get_running_loop())
    assert memo.get("key", lambda: None) is None
    assert memo.get("key", lambda: 1) == 1
