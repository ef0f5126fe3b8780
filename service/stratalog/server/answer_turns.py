"""Turns of the event loop for large answers, so that a crowd of readers behind does not hold up appends.

The loop encodes and sends answers itself, and a mebibyte takes it about a millisecond. Each pass of the loop
does all that is ready. An append takes more than ten of them: gRPC accepts the call, hands over its message,
the writer answers, gRPC sends. Beside a hundred readers these passes had a few answers of theirs each, so a
small append took as long as two dozen.

Large answers take turns, in the order in which they ask: `TURN_BYTES` or one of them, then `PASS_COUNT`
passes for all other work, then the next ones. A call that has come is at its handler after fewer passes.
While a small append is under way large answers wait for it. But an append that takes longer, as one that
waits for the disk or for the store does, holds them up for `MAX_WAIT_S` at most, and appends without a pause
leave them one mebibyte in `S_PER_MIB`. A large append takes as long as they do, and none waits for it.
An answer that meets no append, and no answer of another call, goes at once: a lone reader does not wait for
itself.

An answer that waits holds memory, and with little memory left answers are small, which costs more of the
processor. So reads of tiered data begin only as far as few tiered data wait (`begin_read`). Those of the
local log do not count: readers of these come back for ever, and would leave the others no room.

Reads of tiered data also wait until time has paid for those before them, where the server has a rate for them
(`remote.log.manager.fetch.max.bytes.per.second`, KIP-956).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple

from stratalog.cleaner.throttler import Throttler

LARGE_BYTES: Final = 64 << 10
"""The least answer that takes a turn, and the least append that none waits for."""
TURN_BYTES: Final = 256 << 10
"""The room of a turn. The answer that reaches it is the last one; a larger one has a turn of its own."""
PASS_COUNT: Final = 4
"""The passes of the loop between two turns. A pass without work takes some 10 microseconds."""
MAX_WAIT_S: Final = 0.004
"""An append that has come holds up large answers for so long at most. Most take a quarter of it."""
S_PER_MIB: Final = 0.004
"""The time in which large answers may have one mebibyte, whatever appends are under way."""
READ_BYTES: Final = 4 << 20
"""The room for reads of tiered data under way and tiered data that wait, for each thread that reads. With the
threads of the default it is the largest answer of a fetch."""
LONGEST_PAUSE_S: Final = 1.0
"""The time between two looks at the rate of reads, which may be altered meanwhile."""


class _Waiter(NamedTuple):
    """An answer that waits for its turn."""

    turn: asyncio.Future[None]
    size_bytes: int
    tiered_bytes: int
    reader: object


class AnswerTurns:
    """The turns of one event loop, to which it belongs."""

    def __init__(self, read_thread_count: int, throttler: Throttler) -> None:
        """`read_thread_count` threads read tiered data, at the rate of `throttler`."""
        self._throttler = throttler
        self._room_bytes = read_thread_count * READ_BYTES
        self._reading_bytes = 0
        """The sizes of reads of tiered data that have begun and not ended."""
        self._tiered_bytes = 0
        """The tiered data of the answers that wait."""
        self._reads: deque[tuple[asyncio.Future[None], int]] = deque()
        """Reads that wait, in order, with their sizes. Those that were given up are done."""
        self._pause: asyncio.TimerHandle | None = None
        """Ends a wait of reads for their rate."""
        self._pause_begin_s = 0.0
        self.throttled_s = 0.0
        """The time in which reads waited for their rate."""
        self._waiting: deque[_Waiter] = deque()
        """Answers in order. Those that were given up are done."""
        self._left_bytes = TURN_BYTES
        """The rest of the room of this turn."""
        self._reader: object = None
        """The reader that has used the turn last, in place of which no other one has come since."""
        self._passes_left = 0
        """The passes until the next turn."""
        self._is_passing = False
        """The next pass is asked for."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait for appends."""
        self._newest: asyncio.Future[Any] | None = None
        """The append that came last, until it is answered: those before it mostly are then, too."""
        self._is_call_expected = False
        """A call of an append has come without its message."""
        self._held_until_s = 0.0
        """Appends hold up large answers until then."""
        self._due_s = 0.0
        """Large answers have had their share of the time until then."""

    @property
    def waiting_count(self) -> int:
        """The answers that wait for their turn, with those that were given up meanwhile."""
        return len(self._waiting)

    @property
    def waiting_tiered_bytes(self) -> int:
        """The tiered data of these answers."""
        return self._tiered_bytes

    async def take(self, size_bytes: int, tiered_bytes: int = 0, reader: object = None) -> None:
        """Return when the loop may encode or send so many bytes of an answer, at once where they are few.
        `tiered_bytes` of them were read from the store. `reader` stands for the call, None for one that has
        no other answer."""
        if size_bytes < LARGE_BYTES:
            return
        loop = asyncio.get_running_loop()
        has_room = self._left_bytes > 0 or (reader is not None and reader is self._reader)
        if not self._waiting and has_room and not self._is_held(loop.time()):
            self._use(loop, size_bytes, reader)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiter(turn, size_bytes, tiered_bytes, reader))
        self._tiered_bytes += tiered_bytes
        if not self._is_passing:
            self._give(loop)
        await turn

    def expect_append(self) -> None:
        """Hold up large answers for a call whose message has yet to come."""
        self._is_call_expected = True
        self._held_until_s = asyncio.get_running_loop().time() + MAX_WAIT_S

    def add_append(self, size_bytes: int, answered: asyncio.Future[Any]) -> None:
        """Hold up large answers for an append of so many bytes, unless it is large. The future ends it."""
        self._is_call_expected = False
        if size_bytes >= LARGE_BYTES:
            return
        self._newest = answered
        self._held_until_s = asyncio.get_running_loop().time() + MAX_WAIT_S
        if self._waiting:
            answered.add_done_callback(self._end_append)

    async def begin_read(self, size_bytes: int) -> None:
        """Return when a read of up to so many bytes may begin; `end_read` follows then. A large one counts as
        `READ_BYTES`, so that it leaves the other threads to other readers, though the store may hang."""
        if not self._reads and self._may_read():
            self._begin(size_bytes)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reads.append((admitted, size_bytes))
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.end_read(size_bytes)
            raise

    def _begin(self, size_bytes: int) -> None:
        self._reading_bytes += min(size_bytes, READ_BYTES)
        self._throttler.owe(min(size_bytes, READ_BYTES))

    def end_read(self, size_bytes: int, found_bytes: int = 0) -> None:
        """Let the next reads begin. Time has to pay for the bytes that this one has found."""
        self._reading_bytes -= min(size_bytes, READ_BYTES)
        self._throttler.owe(found_bytes - min(size_bytes, READ_BYTES))
        if self._pause is not None:
            # It was for as much as the read might have found.
            self._pause.cancel()
            self._end_pause()
        else:
            self._admit()

    @property
    def _has_room(self) -> bool:
        """Whether another read may begin, whatever its size."""
        return self._reading_bytes + self._tiered_bytes < self._room_bytes

    def _may_read(self) -> bool:
        """Whether another read may begin now. If only the rate is against it, a later look is due."""
        if not self._has_room or self._pause is not None:
            return False
        wait_s = self._throttler.wait_s()
        if wait_s > 0:
            loop = asyncio.get_running_loop()
            self._pause_begin_s = loop.time()
            self._pause = loop.call_later(min(wait_s, LONGEST_PAUSE_S), self._end_pause)
        return wait_s == 0

    def _end_pause(self) -> None:
        self._pause = None
        self.throttled_s += asyncio.get_running_loop().time() - self._pause_begin_s
        self._admit()

    def _admit(self) -> None:
        while self._reads and self._reads[0][0].done():
            self._reads.popleft()
        while self._reads and self._may_read():
            admitted, size_bytes = self._reads.popleft()
            if not admitted.done():
                self._begin(size_bytes)
                admitted.set_result(None)

    def check(self) -> None:
        """Assert the invariants of the state."""
        assert self._reading_bytes >= 0
        assert self._tiered_bytes == sum(one.tiered_bytes for one in self._waiting)
        assert not self._reads or not self._has_room or self._pause is not None, "a read waits for an event"
        assert 0 <= self._passes_left <= PASS_COUNT
        assert not self._waiting or self._is_passing or self._timer is not None, (
            "an answer waits for an event"
        )

    def _end_append(self, answered: asyncio.Future[Any]) -> None:
        if answered is not self._newest:
            return
        self._newest = None
        if self._waiting and not self._is_passing:
            # The answer of the append goes out first.
            self._pass(asyncio.get_running_loop(), PASS_COUNT)

    def _is_held(self, now_s: float) -> bool:
        """Whether large answers wait for appends."""
        newest = self._newest
        has_appends = self._is_call_expected or (newest is not None and not newest.done())
        return has_appends and now_s < self._held_until_s and now_s < self._due_s

    def _use(self, loop: asyncio.AbstractEventLoop, size_bytes: int, reader: object) -> None:
        """Count the bytes of an answer that has its turn."""
        if self._left_bytes == TURN_BYTES:
            self._due_s = loop.time()
        self._reader = reader
        self._due_s += S_PER_MIB * size_bytes / (1 << 20)
        self._left_bytes -= size_bytes
        if not self._is_passing:
            self._pass(loop, PASS_COUNT)

    def _pass(self, loop: asyncio.AbstractEventLoop, pass_count: int) -> None:
        """Go on after so many passes."""
        self._is_passing = True
        self._passes_left = pass_count
        loop.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        loop = asyncio.get_running_loop()
        self._passes_left -= 1
        if self._waiting and self._passes_left > 0:
            loop.call_soon(self._next_pass)
            return
        # Without an answer that waits the turn ends with the first pass.
        self._is_passing = False
        self._left_bytes = TURN_BYTES
        self._give(loop)

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the first answers go on, as far as the turn has room."""
        while self._waiting and self._waiting[0].turn.done():
            self._forget()
        if not self._waiting or self._waits_for_appends(loop):
            return
        while self._waiting and self._left_bytes > 0:
            first = self._forget()
            if not first.turn.done():
                first.turn.set_result(None)
                self._use(loop, first.size_bytes, first.reader)

    def _forget(self) -> _Waiter:
        first = self._waiting.popleft()
        self._tiered_bytes -= first.tiered_bytes
        self._admit()
        return first

    def _waits_for_appends(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether appends hold up large answers; then a timer goes on later."""
        if not self._is_held(loop.time()):
            return False
        if self._timer is None:
            self._timer = loop.call_at(min(self._held_until_s, self._due_s), self._end_wait)
            if self._newest is not None:
                # It came while no answer waited for it.
                self._newest.add_done_callback(self._end_append)
        return True

    def _end_wait(self) -> None:
        self._timer = None
        if not self._is_passing:
            self._give(asyncio.get_running_loop())
