"""Lists show a caller what it may describe, and nothing to one that is not known."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from stratalog.server.access.access_policy import Principal
from stratalog.server.access.permissions import Operation, Permissions, TopicPermission
from stratalog.server.rpc.access.shown_topics import (
    set_caller,
    showing_all,
    shown_in_work,
    shown_topics,
    shows_work,
)

ADMIN = "stratalog.v1.AdminService"
OURS = Principal(
    "ours", Permissions((TopicPermission("ours.*", frozenset({Operation.DESCRIBE})),), frozenset())
)


async def test_a_caller_sees_what_it_may_describe() -> None:
    set_caller(OURS)
    is_shown, shows = shown_topics(), shows_work()
    assert [is_shown("ours.a"), is_shown("theirs")] == [True, False]
    assert [shows(["ours.a"]), shows(["ours.a", "theirs"]), shows([])] == [True, False, False]
    # Any thread may ask the function that the call has got.
    assert await asyncio.to_thread(is_shown, "theirs") is False


async def test_work_on_shared_objects_shows_what_may_be_described_and_all_to_who_sees_the_server() -> None:
    set_caller(OURS)
    assert [shown_in_work()(topic) for topic in ("ours.a", "theirs")] == [True, False]
    set_caller(Principal("watcher", Permissions((), frozenset({Operation.DESCRIBE}))))
    assert shown_in_work()("theirs")
    assert not shown_topics()("theirs"), "lists of topics are for those who may describe them"


async def test_beside_the_task_of_a_call_nothing_is_shown() -> None:
    async def elsewhere() -> None:
        for ask in (shown_topics, shown_in_work, shows_work):
            with pytest.raises(LookupError):
                ask()

    await elsewhere()
    set_caller(OURS)
    # The pools of the server do not carry the context of the call.
    await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(elsewhere()))


async def test_without_access_control_lists_show_everything() -> None:
    async def listing(_request: object, _context: object) -> bool:
        return shown_topics()("any") and shows_work()([])

    make: Any = grpc.unary_unary_rpc_method_handler
    handlers: Any = showing_all(ADMIN, {"ListTopics": make(listing), "DescribeTopics": make(listing)})
    assert await asyncio.create_task(handlers["ListTopics"].unary_unary(None, None))
    with pytest.raises(LookupError):
        # It names its topics, and asks for none.
        await asyncio.create_task(handlers["DescribeTopics"].unary_unary(None, None))
