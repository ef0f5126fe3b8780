"""Sources that are read together: each goes on once its item was used, and an error ends all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from stratalog.client.consuming.topic_follower import merged


class Sources:
    """Sources of numbered items, which note when they go on and when they are closed."""

    def __init__(self) -> None:
        self.resumed: list[str] = []
        self.closed: list[str] = []

    async def source(self, name: str, count: int, *, fails: bool = False) -> AsyncGenerator[str, None]:
        try:
            for number in range(count):
                yield f"{name}{number}"
                self.resumed.append(f"{name}{number}")
            if fails:
                raise ZeroDivisionError(name)
        finally:
            self.closed.append(name)

    async def silent(self, name: str) -> AsyncGenerator[str, None]:
        try:
            await asyncio.Event().wait()
            yield name
        finally:
            self.closed.append(name)


async def test_all_items_come_in_the_order_of_each_source() -> None:
    sources = Sources()
    found = [item async for item in merged([sources.source("a", 3), sources.source("b", 2)])]
    assert sorted(found) == ["a0", "a1", "a2", "b0", "b1"]
    assert [item for item in found if item.startswith("a")] == ["a0", "a1", "a2"]
    assert sorted(sources.closed) == ["a", "b"]


async def test_a_source_goes_on_once_its_item_was_used() -> None:
    sources = Sources()
    async with aclosing(merged([sources.source("a", 2), sources.silent("b")])) as items:
        assert await anext(items) == "a0"
        for _ in range(5):
            # Other tasks run while the item is in use.
            await asyncio.sleep(0)
        assert sources.resumed == []
        assert await anext(items) == "a1"
        assert sources.resumed == ["a0"]
    assert sorted(sources.closed) == ["a", "b"]


async def test_a_silent_source_does_not_hold_up_the_others_and_an_error_ends_it() -> None:
    sources = Sources()
    async with aclosing(merged([sources.silent("a"), sources.source("b", 2, fails=True)])) as items:
        found = [await anext(items), await anext(items)]
        with pytest.raises(ZeroDivisionError):
            await anext(items)
    assert found == ["b0", "b1"]
    assert sorted(sources.closed) == ["a", "b"]
