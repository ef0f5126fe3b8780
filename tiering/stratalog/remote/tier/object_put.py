"""An object on its way to the store, sent by another thread than the one that commits it.

The sender repeats the same bytes under the same name after an unknown outcome. After a few attempts the name
is given up for ever; the object, if it landed, is an orphan. Each part that the sender takes is progress. The
waiting thread gives an object up that makes none for too long: nothing can end a request that hangs, so its
thread stays with it, and its bytes are kept until the request has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter
from stratalog.remote.objects.repeated_put import PutAttempts, put_object
from stratalog.remote.store_layout import StoreLayout
from stratalog.remote.tier.upload_budget import UploadBudget

_LOOK_S = 1.0
"""Time between two looks of the waiting thread at the stop signal."""


class PutSettings(NamedTuple):
    """How an object is sent."""

    attempts: PutAttempts
    stall_ms: int
    """Time without progress after which it is given up."""


class ObjectPut:
    """An object on its way. Thread-safe: `_changed` guards what both threads use. One thread calls `run`, the
    other one all else."""

    def __init__(
        self,
        clock: Clock,
        target: ObjectStore,
        layout: StoreLayout,
        writer: ObjectWriter,
        budget: UploadBudget,
        stop: StopSignal,
        settings: PutSettings,
    ) -> None:
        """`writer` has ended all slices; it is finished here, and closed once nothing is sent any more.
        `stop` ends the sending between two parts. Raises OSError if the spool's disk fails."""
        with ExitStack() as undo:
            undo.callback(writer.close)
            self.finished: FinishedObject = writer.finish()
            undo.pop_all()
        self._clock = clock
        self._own_stop = StopSignal(stop)
        self._store = StoppableObjectStore(target, self._own_stop)
        assert layout.shard is not None, "the catalog has no data"
        self._layout, self._shard = layout, layout.shard
        self._writer = writer
        self._budget = budget
        self._settings = settings
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._has_begun = self._is_done = self._is_paced = self._is_closed = False
        self._progress_s = clock.monotonic_s()

    @property
    def is_done(self) -> bool:
        """The object is stored, or an error is known."""
        return self._is_done

    @property
    def is_lingering(self) -> bool:
        """The object was given up, and its request has not ended, or its bytes are not freed yet."""
        return self._is_closed and self._has_begun and not self._is_done

    def run(self) -> None:
        """Send the object. Raises nothing; `wait` does."""
        if not self._begin():
            return
        error: BaseException | None = None
        try:
            self._send()
        except BaseException as failure:  # noqa: BLE001 - the waiting thread raises it
            error = failure
        self._end(error)

    def _begin(self) -> bool:
        with self._changed:
            self._has_begun = not self._is_closed
            self._progress_s = self._clock.monotonic_s()
            return self._has_begun

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            is_given_up = self._is_closed
            if not is_given_up:
                self._note_done(error)
        if is_given_up:
            # The place of a given-up object is free once its files are: another one may get it then.
            try:
                self._free()
            finally:
                with self._changed:
                    self._note_done(error)

    def _note_done(self, error: BaseException | None) -> None:
        """Called with `_changed` held."""
        self._is_done, self._error = True, error
        self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the object is stored. Raises the error of the sender: StoreError, StoppingError, OSError
        if the spool's disk fails. Raises StoreUnavailableError if there is no progress."""
        with self._changed:
            while not self._is_done:
                if not self._has_begun:
                    # A scheduler that closes begins nothing any more.
                    self._own_stop.check()
                left_s = self._left_s()
                if left_s <= 0:
                    raise StoreUnavailableError(
                        "an upload made no progress and was given up, the next pass tries again; find out why"
                        " the store does not answer",
                        object=self.finished.ref.name,
                        size_bytes=self.finished.ref.size_bytes,
                        silent_s=round(self._settings.stall_ms / 1000 - left_s),
                        store=self._store.url,
                    )
                self._clock.wait(self._changed, min(_LOOK_S, left_s))
            if self._error is not None:
                raise self._error

    def wait_while(self, is_idle: Callable[[], bool]) -> None:
        """Wait until `wait` would not, or `is_idle` returns False, which is asked again after `nudge`. Raises
        nothing."""
        with self._changed:
            while not self._is_done and is_idle() and not self._own_stop.is_set:
                left_s = self._left_s()
                if left_s <= 0:
                    return
                self._clock.wait(self._changed, min(_LOOK_S, left_s))

    def nudge(self) -> None:
        """Let `wait_while` look again. Any thread."""
        with self._changed:
            self._changed.notify_all()

    def _left_s(self) -> float:
        """The time after which it is given up without progress. Called with `_changed` held."""
        silent_s = 0.0 if self._is_paced else self._clock.monotonic_s() - self._progress_s
        return self._settings.stall_ms / 1000 - silent_s

    def close(self) -> None:
        """Free the object's bytes; a sender that still runs ends at its next part, and frees them then."""
        self._own_stop.set()
        with self._changed:
            is_running = self._has_begun and not self._is_done
            self._is_closed = True
        if not is_running:
            self._free()

    def _free(self) -> None:
        """Let go of the bytes. Name, size and slices stay, for those that still have this object."""
        self.finished = self.finished.without_bytes()
        self._writer.close()

    def _send(self) -> None:
        put_object(
            self._clock,
            self._store,
            self._layout,
            self.finished,
            self._settings.attempts,
            before_attempt=self._before_attempt,
            before_part=self._before_part,
        )

    def _before_attempt(self) -> None:
        self._paced(lambda: self._budget.take_request(self._shard, self._own_stop.check))

    def _before_part(self, size_bytes: int) -> None:
        self._paced(lambda: self._budget.take_bytes(self._shard, size_bytes, self._own_stop.check))

    def _paced(self, wait: Callable[[], None]) -> None:
        """Wait for the budget, which is no stall, and count as progress."""
        self._is_paced = True
        try:
            wait()
        finally:
            self._progress_s = self._clock.monotonic_s()
            self._is_paced = False
