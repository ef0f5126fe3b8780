"""Operations take turns, end in one state, and are forgotten when many newer ones have ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from stratalog.base.errors import (
    OverloadedError,
    StoppingError,
    StoreUnavailableError,
    UnknownOperationError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.server.operations.operation import (
    Operation,
    OperationKind,
    OperationProgress,
    OperationState,
)
from stratalog.server.operations.operation_registry import MAX_WAITING_COUNT, OperationRegistry
from stratalog.server.operations.operation_results import MoveResult, UploadResult
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds

UPLOAD, MOVE = OperationKind.UPLOAD, OperationKind.MOVE
MOVED = MoveResult(TopicPartition("t", 0), "/a", "/b")


class World:
    """A registry whose work runs when the clock moves, one piece at a time."""

    def __init__(self, max_ended_count: int = 200) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.stop = StopSignal()
        self.registry = OperationRegistry(
            self.clock, self.scheduler, SequentialIds(1), self.stop, max_ended_count
        )
        self.worked: list[str] = []

    def start(self, name: str, work: Callable[[Operation], None] | None = None) -> Operation:
        def do(operation: Operation) -> None:
            self.worked.append(name)
            if work is not None:
                work(operation)

        return self.registry.start(UPLOAD, [name], do)

    def run(self) -> None:
        self.scheduler.run_due()
        self.registry.check()


def fail(_: Operation) -> None:
    raise StoreUnavailableError("the store is away")


def break_down(_: Operation) -> None:
    raise ValueError("a defect")


def test_operations_of_a_kind_take_turns_and_end_in_their_state() -> None:
    world = World()
    started = [world.start("a"), world.start("b", fail), world.start("c", break_down), world.start("d")]
    world.registry.check()
    assert [one.view.progress.phase for one in started] == ["", *["waits for its turn"] * 3]
    other = world.registry.start(MOVE, ["t"], lambda _: world.worked.append("move"), lane="move of t-0")
    world.run()
    world.run()
    world.run()
    world.run()
    assert [name for name in world.worked if name != "move"] == ["a", "b", "c", "d"]
    assert world.worked.index("move") <= 1, "another lane does not wait"
    states = [one.view.state.value for one in (*started, other)]
    assert states == ["succeeded", "failed", "failed", "succeeded", "succeeded"]
    assert [type(one.view.error) for one in started] == [
        type(None),
        StoreUnavailableError,
        ValueError,
        type(None),
    ]
    assert world.registry.operations() == [other, *reversed(started)]
    assert all(one.view.end_ms == world.clock.now_ms() for one in started)


def test_a_cancellation_reaches_the_work_and_keeps_its_result() -> None:
    world = World()
    cancelled: list[str] = []

    def work(operation: Operation) -> None:
        operation.set_result(UploadResult())
        world.registry.cancel(str(operation.view.operation_id))
        operation.stop.check()
        raise AssertionError("it goes on")

    running = world.registry.start(UPLOAD, [], work, on_cancel=lambda: cancelled.append("now"))
    waiting = world.start("waiting")
    world.registry.cancel(str(waiting.view.operation_id))
    assert waiting.view.state is OperationState.CANCELLED, "it had not begun"
    world.run()
    assert (running.view.state, running.view.result) == (OperationState.CANCELLED, UploadResult())
    assert (cancelled, world.worked) == (["now"], [])
    assert running.view.is_cancel_requested
    running.cancel()
    assert cancelled == ["now"], "once"


def test_a_stop_of_the_server_is_a_failure_of_what_runs_even_if_it_was_cancelled() -> None:
    world = World()
    operation = world.start("a", lambda one: one.stop.check())
    operation.cancel()
    world.stop.set()
    world.run()
    assert operation.view.state is OperationState.FAILED
    assert world.worked == [], "it does not begin"


def test_listeners_see_each_change_and_the_end() -> None:
    world = World()
    seen: list[tuple[int, bool]] = []
    operation = world.start("a", lambda one: one.report(OperationProgress("half", done_count=1)))

    def listener() -> None:
        seen.append((operation.view.progress.done_count, operation.view.state.is_final))

    operation.listen(listener)
    world.run()
    assert seen == [(0, False), (1, False), (1, True)]
    operation.unlisten(listener)


def test_the_oldest_that_have_ended_are_forgotten() -> None:
    world = World(max_ended_count=3)
    started = [world.start(str(number)) for number in range(5)]
    held = world.registry.hold(MOVE, ["t"], "the directory is cordoned", MOVED, lambda: None)
    for _ in started:
        world.run()
    assert world.registry.operations() == [held, *reversed(started[2:])], "what runs stays"
    for wrong in (str(started[0].view.operation_id), "", "nonsense"):
        with pytest.raises(UnknownOperationError) as failure:
            world.registry.find(wrong)
        assert failure.value.fields == {"operation_id": wrong}


def test_a_held_operation_ends_by_its_release_or_its_cancellation() -> None:
    world = World()
    given_up: list[int] = []
    for number, end in enumerate((OperationState.FAILED, OperationState.CANCELLED)):
        held = world.registry.hold(MOVE, ["t"], "cordoned", MOVED, partial(given_up.append, number))
        world.registry.check()
        if end is OperationState.FAILED:
            world.registry.release(held, StoreUnavailableError("another move was started"))
        else:
            world.registry.cancel(str(held.view.operation_id))
            world.registry.release(held, StoreUnavailableError("too late"))
        world.registry.check()
        assert held.view.state is end
    assert given_up == [1]


def test_too_many_that_wait_are_refused() -> None:
    world = World()
    for number in range(MAX_WAITING_COUNT + 1):
        world.start(str(number))
    with pytest.raises(OverloadedError) as failure:
        world.start("one more")
    assert failure.value.fields == {"kind": "upload", "waiting": MAX_WAITING_COUNT}
    world.run()
    world.start("one more")


def test_work_aside_is_known_once_it_has_something_to_do() -> None:
    world = World()
    with world.registry.aside(UPLOAD) as idle:
        pass
    assert idle.view.state is OperationState.SUCCEEDED
    assert world.registry.operations() == []
    waiting = world.start("a")
    with world.registry.aside(UPLOAD) as busy:
        busy.report(OperationProgress("works"))
        assert world.registry.operations() == [busy, waiting]
        world.registry.check()
    world.registry.check()
    assert busy.view.state is OperationState.SUCCEEDED
    world.run()
    assert world.worked == ["a"], "it has delayed none"


def test_work_aside_ends_without_an_error_if_it_is_cancelled() -> None:
    world = World()
    with world.registry.aside(UPLOAD) as operation:
        operation.report(OperationProgress("works"))
        world.registry.cancel(str(operation.view.operation_id))
        assert operation.view.state is OperationState.RUNNING
        operation.stop.check()
    assert (operation.view.state, operation.view.error) == (OperationState.CANCELLED, None)
    world.registry.check()


@pytest.mark.parametrize("error", [StoreUnavailableError("the store is away"), ValueError("a defect")])
def test_work_aside_raises_its_failure(error: Exception) -> None:
    world = World()

    def work() -> None:
        with world.registry.aside(UPLOAD) as one:
            one.report(OperationProgress("works"))
            raise error

    with pytest.raises(type(error)) as raised:
        work()
    assert raised.value is error
    [operation] = world.registry.operations()
    assert (operation.view.state, operation.view.error) == (OperationState.FAILED, error)
    world.registry.check()


def test_work_aside_fails_at_a_stop_of_the_server() -> None:
    world = World()

    def work() -> None:
        with world.registry.aside(UPLOAD) as one:
            one.report(OperationProgress("works"))
            world.stop.set()
            one.cancel()
            one.stop.check()

    with pytest.raises(StoppingError):
        work()
    [operation] = world.registry.operations()
    assert operation.view.state is OperationState.FAILED
    world.registry.check()
