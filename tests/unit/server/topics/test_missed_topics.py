"""Looks at the catalog for unknown topics: shared, one at a time, a second apart, and never before the
request that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.server.topics import missed_topics
from stratalog.server.topics.missed_topics import LOOK_PERIOD_S, MissedTopics


class FakeCatalog:
    """Topics, a task pool and a pause that a test steers. Belongs to the event loop."""

    def __init__(self) -> None:
        self.hosted: set[str] = set()
        self.created: set[str] = set()
        self.look_count = 0
        self.pauses: list[float] = []
        self.may_look = asyncio.Event()
        self.may_look.set()
        self.failure: Exception | None = None
        self.is_looking = False

    def may_be_behind(self, names: Iterable[str]) -> bool:
        return not self.hosted.issuperset(names)

    def learn(self) -> None:
        self.look_count += 1
        if self.failure is not None:
            raise self.failure
        self.hosted |= self.created

    async def task(self, function: Callable[[], None]) -> None:
        assert not self.is_looking
        self.is_looking = True
        # What is created from here on is not in the catalog that is read.
        seen = set(self.created)
        await self.may_look.wait()
        later, self.created = self.created - seen, seen
        try:
            function()
        finally:
            self.created |= later
            self.is_looking = False

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def missed(self) -> MissedTopics:
        return MissedTopics(cast(Any, self), cast(Any, self), self.pause)


async def step() -> None:
    """Let all tasks run until each waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_known_topic_costs_no_look() -> None:
    catalog = FakeCatalog()
    catalog.hosted.add("t")
    await catalog.missed().learn(["t"])
    assert catalog.look_count == 0


async def test_requests_share_a_look_that_begins_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_topics, "MAX_LOOK_CREDITS", 1)
    catalog = FakeCatalog()
    missed = catalog.missed()
    catalog.may_look.clear()
    early = [asyncio.ensure_future(missed.learn(["t"])) for _ in range(20)]
    await step()
    # The look has read a catalog without it.
    catalog.created.add("t")
    late: list[Awaitable[None]] = [asyncio.ensure_future(missed.learn(["t"])) for _ in range(20)]
    await step()
    catalog.may_look.set()
    await asyncio.gather(*early, *late)
    assert "t" in catalog.hosted
    assert catalog.look_count == 2
    first, second = catalog.pauses
    assert first == 0
    assert 0 < second <= LOOK_PERIOD_S


async def test_some_looks_follow_each_other_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that describes each topic before it creates it waited a second for each."""
    monkeypatch.setattr(missed_topics, "MAX_LOOK_CREDITS", 3)
    loop, now_s = asyncio.get_running_loop(), 100.0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    catalog = FakeCatalog()
    missed = catalog.missed()
    for _ in range(4):
        await missed.learn(["t"])
    assert catalog.pauses == [0, 0, 0, LOOK_PERIOD_S]
    # The pause of the test takes no time: two credits come back, and one of them is owed.
    now_s += 2 * LOOK_PERIOD_S
    for _ in range(2):
        await missed.learn(["t"])
    assert catalog.pauses[4:] == [0, LOOK_PERIOD_S]
    # However long there was no look, there are no more of them.
    now_s += 1000 * LOOK_PERIOD_S
    for _ in range(4):
        await missed.learn(["t"])
    assert catalog.pauses[6:] == [0, 0, 0, LOOK_PERIOD_S]


async def test_a_caller_that_leaves_takes_the_look_from_no_other() -> None:
    catalog = FakeCatalog()
    missed = catalog.missed()
    catalog.may_look.clear()
    leaving, staying = (asyncio.ensure_future(missed.learn(["t"])) for _ in range(2))
    await step()
    leaving.cancel()
    catalog.created.add("t")
    catalog.may_look.set()
    await staying
    assert leaving.cancelled()


async def test_a_store_that_does_not_answer_is_the_answer_of_all_that_wait() -> None:
    catalog = FakeCatalog()
    catalog.failure = StoreUnavailableError("it is away")
    missed = catalog.missed()
    outcomes = await asyncio.gather(*(missed.learn(["t"]) for _ in range(3)), return_exceptions=True)
    assert outcomes == [catalog.failure] * 3
    catalog.failure = None
    catalog.created.add("t")
    await missed.learn(["t"])
    catalog.failure = StoreUnavailableError("it is away again")
    with pytest.raises(StoreUnavailableError):
        await missed.learn(["u"])
    assert catalog.hosted == {"t"}
