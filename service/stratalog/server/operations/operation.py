"""One piece of long work that a caller started: its state, its progress and its result.

The work runs on one thread and reports to its operation. Others look at snapshots (`OperationView`), wait for
changes, or cancel it. A cancellation sets the stop signal of the operation, which the work checks between its
steps. The signal is also set when the server stops.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_progress import CompactionProgress
from stratalog.server.operations.operation_results import LeftOutShard, OperationResult

RUNNING_MS = -1
"""The end of an operation that runs."""


class OperationKind(enum.Enum):
    """The kinds of long work."""

    UPLOAD = "upload"
    COMPACTION = "compaction"
    RETENTION = "retention"
    VERIFICATION = "verification"
    COLLECTION = "collection"
    MOVE = "move"


class OperationState(enum.Enum):
    """The states of an operation; all but the first are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self is not OperationState.RUNNING


class OperationProgress(NamedTuple):
    """A measure of the work; a total of 0 is not known."""

    phase: str = ""
    done_count: int = 0
    total_count: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    compaction: CompactionProgress | None = None
    """More of a compaction."""


class OperationView(NamedTuple):
    """An operation at one moment."""

    operation_id: UUID
    number: int
    """Counts the operations of this process."""
    kind: OperationKind
    topics: tuple[str, ...]
    """The topics that it is limited to; empty: all."""
    start_ms: int
    end_ms: int = RUNNING_MS
    state: OperationState = OperationState.RUNNING
    progress: OperationProgress = OperationProgress()
    is_cancel_requested: bool = False
    error: Exception | None = None
    """The failure of a failed operation."""
    result: OperationResult | None = None
    """Work that failed or was cancelled has the result up to then."""
    left_out: tuple[LeftOutShard, ...] = ()
    """Shards of other servers that the work has left out, known at its end."""


class Operation:
    """A piece of long work. Thread-safe: `_lock` guards the view, which is replaced whole, and the listeners,
    which are called without it."""

    def __init__(
        self,
        clock: Clock,
        view: OperationView,
        stop: StopSignal,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        """`on_cancel` is called by a cancellation, besides the signal."""
        self._clock = clock
        self._view = view
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._on_cancel = on_cancel
        self.stop = stop
        """Set once the work shall end early."""

    @property
    def view(self) -> OperationView:
        return self._view

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change, on the thread that made it. It must not wait."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def report(self, progress: OperationProgress) -> None:
        """Replace the progress."""
        self._change(lambda view: view._replace(progress=progress))

    def set_result(self, result: OperationResult) -> None:
        """Replace the result up to now."""
        self._change(lambda view: view._replace(result=result))

    def leave_out(self, shards: tuple[LeftOutShard, ...]) -> None:
        """Note the shards of other servers that the work has left out."""
        self._change(lambda view: view._replace(left_out=shards))

    def cancel(self) -> None:
        """Ask the work to end. Without effect once it has ended."""
        with self._lock:
            if self._view.state.is_final or self._view.is_cancel_requested:
                return
            self._view = self._view._replace(is_cancel_requested=True)
        self.stop.set()
        self._tell()
        if self._on_cancel is not None:
            self._on_cancel()

    def end(self, state: OperationState, error: Exception | None = None) -> None:
        """Reach a final state. Called once, by the registry."""
        assert state.is_final
        end_ms = self._clock.now_ms()
        self._change(lambda view: view._replace(state=state, error=error, end_ms=end_ms))

    def _change(self, change: Callable[[OperationView], OperationView]) -> None:
        with self._lock:
            assert not self._view.state.is_final, "a final state stays"
            self._view = change(self._view)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()
