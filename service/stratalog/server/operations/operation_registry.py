"""The operations of a server: those that run, those that wait for their turn, and the newest that have ended.

Operations of one lane run one after the other, in the order of their start. A lane is a kind of work, or the
move of one partition. Everything is in memory: a restart forgets it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogStoreError,
    OverloadedError,
    StoppingError,
    UnknownOperationError,
    forget_frames,
)
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.stop_signal import StopSignal
from stratalog.server.operations.operation import (
    Operation,
    OperationKind,
    OperationProgress,
    OperationState,
    OperationView,
)
from stratalog.server.operations.operation_results import OperationResult

logger = logging.getLogger(__name__)

Work = Callable[[Operation], None]

MAX_ENDED_COUNT = 200
"""Operations that have ended and are still known."""
MAX_WAITING_COUNT = 100
"""Operations of one lane that wait for their turn."""
WAITING = OperationProgress("waits for its turn")


class OperationRegistry:
    """Starts operations, and knows them. Thread-safe: `_lock` guards the operations and the lanes."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        stop: StopSignal,
        max_ended_count: int = MAX_ENDED_COUNT,
    ) -> None:
        """`scheduler` has a thread for each operation that runs. `stop` ends all of them early."""
        self._clock = clock
        self._scheduler = scheduler
        self._ids = ids
        self._stop = stop
        self._max_ended_count = max_ended_count
        self._lock = threading.Lock()
        self._operations: dict[UUID, Operation] = {}
        self._ended: deque[UUID] = deque()
        # The first of a lane runs, the others wait.
        self._lanes: dict[Hashable, deque[tuple[Operation, Work]]] = {}
        self._held: set[UUID] = set()
        self._count = 0

    def start(
        self,
        kind: OperationKind,
        topics: Sequence[str],
        work: Work,
        *,
        lane: Hashable = None,
        result: OperationResult | None = None,
        on_cancel: Callable[[], None] | None = None,
    ) -> Operation:
        """Start an operation, or put it behind those of its lane; the lane is the kind's unless one is given.

        `work` sets the result; `result` is the first one. It ends early with StoppingError if the
        operation's signal is set. `on_cancel`: see `Operation`. Raises OverloadedError if too many wait.
        """
        lane = kind if lane is None else lane
        with self._lock:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) > MAX_WAITING_COUNT:
                raise OverloadedError(
                    "too many operations of this kind wait for their turn; try again when some have ended",
                    kind=kind.value,
                    waiting=len(waiting) - 1,
                )
            progress = WAITING if waiting else OperationProgress()
            operation = self._new(kind, topics, progress, result, on_cancel)
            waiting.append((operation, work))
            is_first = len(waiting) == 1
        if is_first:
            self._schedule(lane)
        return operation

    def hold(
        self,
        kind: OperationKind,
        topics: Sequence[str],
        reason: str,
        result: OperationResult,
        on_cancel: Callable[[], None],
    ) -> Operation:
        """An operation that cannot begin for now, for this reason. It ends by `release` or by a
        cancellation."""
        with self._lock:
            operation = self._new(kind, topics, OperationProgress(reason), result, on_cancel)
            self._held.add(operation.view.operation_id)
            return operation

    def release(self, operation: Operation, error: LogStoreError) -> None:
        """End a held operation, unless it was cancelled: it failed."""
        with self._lock:
            if operation.view.operation_id in self._held:
                self._held.remove(operation.view.operation_id)
                self._end(operation, OperationState.FAILED, error)

    def _new(
        self,
        kind: OperationKind,
        topics: Sequence[str],
        progress: OperationProgress,
        result: OperationResult | None,
        on_cancel: Callable[[], None] | None,
    ) -> Operation:
        """Make an operation, and know it. The caller holds the lock."""
        operation = self._made(kind, topics, progress, result, on_cancel)
        self._operations[operation.view.operation_id] = operation
        return operation

    def _made(
        self,
        kind: OperationKind,
        topics: Sequence[str],
        progress: OperationProgress,
        result: OperationResult | None,
        on_cancel: Callable[[], None] | None,
    ) -> Operation:
        """Make an operation. The caller holds the lock."""
        self._count += 1
        view = OperationView(
            operation_id=self._ids.uuid(),
            number=self._count,
            kind=kind,
            topics=tuple(topics),
            start_ms=self._clock.now_ms(),
            progress=progress,
            result=result,
        )
        return Operation(self._clock, view, StopSignal(self._stop), on_cancel)

    @contextmanager
    def aside(self, kind: OperationKind) -> Generator[Operation]:
        """An operation that the caller's thread does in the block, beside the lanes: background work that
        people may watch and cancel. It is known from its first report on, so that a look which finds nothing
        to do is none. Raises what the block raises. A cancellation ends the block with StoppingError, which
        goes no further.
        """
        with self._lock:
            operation = self._made(kind, (), OperationProgress(), None, None)
        operation_id = operation.view.operation_id

        def admit() -> None:
            with self._lock:
                if operation_id not in self._operations:
                    self._operations[operation_id] = operation
                    self._lanes[operation_id] = deque([(operation, lambda _: None)])

        state, error = OperationState.SUCCEEDED, None
        operation.listen(admit)
        try:
            yield operation
        except Exception as failure:
            state, error = self._outcome(operation, failure), failure
            forget_frames(error)
            if state is not OperationState.CANCELLED:
                raise
            # All else is logged by the work.
            self._log(operation.view, state, error)
        finally:
            operation.unlisten(admit)
            if operation_id in self._operations:
                self._finish(operation_id, operation, state, error)
            else:
                operation.end(state)

    def find(self, operation_id: str) -> Operation:
        """Find an operation by its id. Raises UnknownOperationError."""
        try:
            found = self._operations.get(UUID(operation_id))
        except ValueError:
            found = None
        if found is None:
            raise unknown_operation(operation_id)
        return found

    def operations(self) -> list[Operation]:
        """All known operations, the newest first."""
        with self._lock:
            return sorted(self._operations.values(), key=lambda one: -one.view.number)

    def cancel(self, operation_id: str) -> Operation:
        """Ask an operation to end; one that waits for its turn, or is held, ends at once. Raises
        UnknownOperationError."""
        operation = self.find(operation_id)
        operation.cancel()
        with self._lock:
            if operation.view.operation_id in self._held:
                self._held.remove(operation.view.operation_id)
                self._end(operation, OperationState.CANCELLED)
            for lane in self._lanes.values():
                for task in [one for one in lane if one[0] is operation and one is not lane[0]]:
                    lane.remove(task)
                    self._end(operation, OperationState.CANCELLED)
        return operation

    def check(self) -> None:
        """Each operation is in a lane or has ended, and the history is bounded."""
        with self._lock:
            in_lanes = [operation for lane in self._lanes.values() for operation, _ in lane]
            running = {one.view.operation_id for one in in_lanes} | self._held
            assert all(self._lanes.values()), "no lane is empty"
            assert len(running) == len(in_lanes) + len(self._held)
            assert running | set(self._ended) == set(self._operations)
            assert not running & set(self._ended)
            assert len(self._ended) <= self._max_ended_count

    def _schedule(self, lane: Hashable) -> None:
        operation, work = self._lanes[lane][0]
        view = operation.view
        self._scheduler.once(
            f"{view.kind.value} {view.operation_id}", lambda: self._run(lane, operation, work)
        )

    def _run(self, lane: Hashable, operation: Operation, work: Work) -> None:
        error: Exception | None = None
        try:
            operation.stop.check()
            operation.report(OperationProgress())
            work(operation)
        except Exception as failure:  # noqa: BLE001 - every failure of the work is the operation's
            error = failure
        state = self._outcome(operation, error)
        self._log(operation.view, state, error)
        if error is not None:
            forget_frames(error)
        self._finish(lane, operation, state, error)

    def _outcome(self, operation: Operation, error: Exception | None) -> OperationState:
        """The final state of work that has ended with this error, or without one."""
        if error is None:
            return OperationState.SUCCEEDED
        is_cancelled = operation.view.is_cancel_requested and not self._stop.is_set
        is_stopped = isinstance(error, StoppingError)
        return OperationState.CANCELLED if is_cancelled and is_stopped else OperationState.FAILED

    def _finish(
        self, lane: Hashable, operation: Operation, state: OperationState, error: Exception | None
    ) -> None:
        """End the first operation of a lane, and begin the next one."""
        with self._lock:
            self._end(operation, state, error if state is OperationState.FAILED else None)
            self._lanes[lane].popleft()
            has_next = bool(self._lanes[lane])
            if not has_next:
                del self._lanes[lane]
        if has_next:
            self._schedule(lane)

    def _end(self, operation: Operation, state: OperationState, error: Exception | None = None) -> None:
        """Keep an operation that ends. The caller holds the lock."""
        operation.end(state, error)
        self._ended.append(operation.view.operation_id)
        while len(self._ended) > self._max_ended_count:
            del self._operations[self._ended.popleft()]

    def _log(self, view: OperationView, state: OperationState, error: Exception | None) -> None:
        what = f"operation {view.operation_id}, {view.kind.value}"
        if state is not OperationState.FAILED:
            logger.info(
                "%s, has %s", what, "ended" if state is OperationState.SUCCEEDED else "been cancelled"
            )
        elif isinstance(error, LogStoreError):
            logger.warning("%s, failed: %s", what, error)
        else:
            logger.error("%s, failed unexpectedly", what, exc_info=error)


def unknown_operation(operation_id: str) -> UnknownOperationError:
    """The error for an operation that the server does not have, or does not show."""
    return UnknownOperationError(
        "the server does not have this operation, or not any more: a restart forgets them, and so do"
        " many newer ones; `stratalog operation list` shows those that it has",
        operation_id=operation_id,
    )
