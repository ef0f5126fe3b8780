"""Runs actors one request at a time, in an order that the caller chooses.

Each actor is ordinary, synchronous code in a thread of its own, but only one of them ever runs: an actor that
is resumed runs until it pauses (ahead of its next request) or ends, and all others wait. So a run
depends on nothing but the choices of the caller of `resume`, and the same choices give the same run.

An actor that is never resumed again has stopped for ever, in the middle of whatever it was doing. `close`
lets such threads go: they get `ActorStopped`, which no error handling catches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.testing.faulty_object_store import ActorStopped


class _Actor:
    """One actor's thread and the baton that it waits for. Guarded by the holder of the baton."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Semaphore(0)
        self.failure: BaseException | None = None
        self.has_ended = False
        self.thread: threading.Thread | None = None


class StepScheduler:
    """Runs actors in turns. Not thread-safe: one test drives it."""

    def __init__(self) -> None:
        self._actors: dict[str, _Actor] = {}
        self._main_baton = threading.Semaphore(0)
        self._is_closed = False

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        """Add an actor; it does nothing before it is resumed."""
        assert name not in self._actors, "actors have names of their own"
        actor = _Actor(name)
        actor.thread = threading.Thread(target=self._run, args=(actor, body), name=name, daemon=True)
        self._actors[name] = actor
        actor.thread.start()

    @property
    def runnable(self) -> tuple[str, ...]:
        """Actors that have not ended, in the order in which they were added."""
        return tuple(actor.name for actor in self._actors.values() if not actor.has_ended)

    def resume(self, name: str) -> None:
        """Let an actor run to its next pause or to its end. Raises what it raised."""
        actor = self._actors[name]
        assert not actor.has_ended, "an actor that has ended cannot go on"
        actor.baton.release()
        self._main_baton.acquire()
        if actor.failure is not None:
            raise actor.failure

    def pause(self, name: str) -> None:
        """Let the others act; called by an actor."""
        actor = self._actors[name]
        self._main_baton.release()
        actor.baton.acquire()
        if self._is_closed:
            raise ActorStopped

    def close(self) -> None:
        """End all actors where they are."""
        self._is_closed = True
        for actor in self._actors.values():
            if not actor.has_ended:
                actor.baton.release()
                self._main_baton.acquire()
        for actor in self._actors.values():
            if actor.thread is not None:
                actor.thread.join()

    def _run(self, actor: _Actor, body: Callable[[], None]) -> None:
        actor.baton.acquire()
        try:
            if not self._is_closed:
                body()
        except ActorStopped:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test by `resume`
            actor.failure = error
        finally:
            actor.has_ended = True
            self._main_baton.release()
