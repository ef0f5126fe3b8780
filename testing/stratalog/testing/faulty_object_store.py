"""An object store on which everything can go wrong that does on a network, one request at a time.

Every actor of a simulation gets a `FaultyObjectStore` of its own over one shared store, and all share a
`StoreTrace`. Each call becomes a numbered `Operation`; the plan chooses its fault; the trace keeps both and
the outcome. The same plan over the same calls gives the same trace, so a failure is repeated by its seed
and read in its trace.

`before` is called with each operation ahead of its fault, and `after` with each that the store has answered,
before the caller gets the answer. A test may let other actors act there, which interleaves them at the grain
of requests without a thread.

A stopped actor gets `ActorStopped`, which is no `Exception`: code that handles errors must not get the chance
to continue. Its writes that land late can still be released: a machine that is dead has packets under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, NoReturn, TypeVar

from stratalog.base.errors import LogStoreError, StoreUnavailableError
from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectStore,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)
from stratalog.testing.store_faults import Fault, FaultPlan, Operation, makes_a_difference, no_faults

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ActorStopped(BaseException):
    """The actor has stopped for ever: nothing of it may run on."""


class TraceEntry(NamedTuple):
    """An operation and its fault. `outcome` is the real effect, whatever the actor saw."""

    operation: Operation
    fault: Fault
    outcome: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.fault.value}, {self.outcome}"


class StoreTrace:
    """All operations of the actors that share it, in the order of their ends. Thread-safe by `_lock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operation_count = 0
        self._entries: list[TraceEntry] = []

    @property
    def operation_count(self) -> int:
        """How many operations have begun: the number of the next one."""
        with self._lock:
            return self._operation_count

    @property
    def entries(self) -> tuple[TraceEntry, ...]:
        with self._lock:
            return tuple(self._entries)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))

    def begin(self, actor: str, verb: str, key: str, condition: str) -> Operation:
        """Number the next operation."""
        with self._lock:
            self._operation_count += 1
            return Operation(self._operation_count - 1, actor, verb, key, condition)

    def end(self, operation: Operation, fault: Fault, outcome: str) -> None:
        """Note what became of it."""
        with self._lock:
            self._entries.append(TraceEntry(operation, fault, outcome))


class _Held(NamedTuple):
    operation: Operation
    apply: Callable[[], object]


class _CutOffStream:
    """Ends in an error after `remaining_bytes`. One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, remaining_bytes: int, key: str) -> None:
        self._inner = inner
        self._remaining_bytes = remaining_bytes
        self._key = key

    def read(self, size: int) -> bytes:
        if size > self._remaining_bytes:
            raise StoreUnavailableError("the stream was cut off by the test", key=self._key)
        self._remaining_bytes -= size
        return self._inner.read(size)

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _FlippedStream:
    """One bit of the byte at `position` is another. One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, position: int, random: Random) -> None:
        self._inner = inner
        self._position = position
        self._random = random

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        position, self._position = self._position, self._position - len(data)
        return _flipped(data, position, self._random) if 0 <= position < len(data) else data

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _FaultyUpload:
    """Each of its requests is an operation of the store. One user at a time, as every `ObjectUpload`."""

    def __init__(self, inner: ObjectUpload, write: Callable[[str, str, Callable[[], None]], None]) -> None:
        """`write(verb, condition, apply)` makes the request."""
        self._inner = inner
        self._write = write

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        copies = [bytes(piece) for piece in data]
        self._write("PUT", f"part {number}", lambda: self._inner.put_part(number, copies))

    def complete(self, crc: int) -> None:
        self._write("PUT", "complete", lambda: self._inner.complete(crc))

    def abort(self) -> None:
        self._write("DELETE", "abort", self._inner.abort)


def _flipped(data: bytes, position: int, random: Random) -> bytes:
    """The data with another bit in the byte at that position."""
    return data[:position] + bytes([data[position] ^ 1 << random.randrange(8)]) + data[position + 1 :]


class FaultyObjectStore:
    """An object store that fails as planned. Thread-safe as far as the plan and `random` are; `_lock` guards
    the writes that are held back."""

    def __init__(
        self,
        inner: ObjectStore,
        random: Random,
        plan: FaultPlan = no_faults,
        *,
        actor: str = "",
        trace: StoreTrace | None = None,
        before: Callable[[Operation], None] | None = None,
        after: Callable[[Operation], None] | None = None,
    ) -> None:
        """`random` chooses where a body, a listing or a bulk deletion is cut off."""
        self._inner = inner
        self._random = random
        self._plan = plan
        self._actor = actor
        self._trace = trace or StoreTrace()
        self._before = before
        self._after = after
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        self._is_stopped = False

    @property
    def trace(self) -> StoreTrace:
        return self._trace

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @property
    def held(self) -> tuple[Operation, ...]:
        """The writes and deletions that are under way and have not landed yet, oldest first."""
        with self._lock:
            return tuple(held.operation for held in self._held)

    def release(self, index: int = 0) -> None:
        """Let a held operation land. Its precondition is judged now; only the trace hears of it."""
        with self._lock:
            held = self._held.pop(index)
        with suppress(LogStoreError):
            self._apply(held.operation, Fault.LANDS_LATE, held.apply)

    def release_all(self) -> None:
        """Let everything land that is under way, oldest first."""
        while self.held:
            self.release()

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        condition = "if_absent" if if_absent else "if_match" if if_match is not None else ""
        copy = bytes(data)  # A write that lands late must not see what its caller does with the buffer.
        return self._write(
            "PUT", key, condition, lambda: self._inner.put(key, copy, if_match=if_match, if_absent=if_absent)
        )

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        operation, fault = self._begin("PUT", key, "")
        copies = [bytes(part) for part in parts]
        self._carry_out(operation, fault, lambda: self._inner.put_parts(key, copies, part_bytes=part_bytes))

    def open_upload(self, key: str) -> ObjectUpload:
        def write(verb: str, condition: str, apply: Callable[[], None]) -> None:
            self._write(verb, key, condition, apply)

        inner = self._write("PUT", key, "begin", lambda: self._inner.open_upload(key))
        return _FaultyUpload(inner, write)

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        return self._write("PUT", key, "", lambda: self._inner.copy(source, key, size_bytes))

    def get(self, key: str) -> StoredObject:
        return self._read("GET", key, "", lambda: self._inner.get(key), flip=self._flip_object)

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        def flip(found: StoredObject | None) -> StoredObject | None:
            return None if found is None else self._flip_object(found)

        return self._read("GET", key, "if_changed", lambda: self._inner.get_if_changed(key, etag), flip=flip)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        return self._read("GET", key, "", lambda: self._inner.get_range(key, position, size), flip=self._flip)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        def cut_off(stream: ReadStream) -> ReadStream:
            return _CutOffStream(stream, self._random.randrange(size), key)

        def flip(stream: ReadStream) -> ReadStream:
            return _FlippedStream(stream, self._random.randrange(size), self._random)

        def open_it() -> ReadStream:
            return self._inner.open_range(key, position, size, if_match=if_match)

        condition = "if_match" if if_match is not None else ""
        return self._read("GET", key, condition, open_it, cut_off, flip)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._read(
            "LIST",
            prefix,
            "",
            lambda: self._inner.list(prefix, start_after=start_after),
            self._cut_off_listing,
        )

    def delete_many(self, keys: Sequence[str]) -> None:
        keys = tuple(keys)
        first_key = keys[0] if keys else ""
        self._write("DELETE", first_key, "", lambda: self._inner.delete_many(keys), keys)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._read("LIST", prefix, "", lambda: self._inner.list_uploads(prefix), self._cut_off_listing)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        # Alone it is there or gone: the fault of a bulk deletion takes none of the keys.
        self._write("DELETE", upload.key, "", lambda: self._inner.abort_upload(upload))

    def remarks(self) -> Sequence[str]:
        return self._inner.remarks()

    def close(self) -> None:
        """Nothing: the shared store belongs to the test."""

    def _flip_object(self, found: StoredObject) -> StoredObject:
        return found._replace(data=self._flip(found.data))

    def _flip(self, data: bytes) -> bytes:
        return _flipped(data, self._random.randrange(len(data)), self._random) if data else data

    def _cut_off_listing(self, listing: Iterator[_Item]) -> Iterator[_Item]:
        found = list(listing)
        yield from found[: self._random.randint(0, len(found))]
        raise StoreUnavailableError("the listing was cut off by the test")

    def _read(
        self,
        verb: str,
        key: str,
        condition: str,
        apply: Callable[[], _Result],
        cut_off: Callable[[_Result], _Result] | None = None,
        flip: Callable[[_Result], _Result] | None = None,
    ) -> _Result:
        operation, fault = self._begin(verb, key, condition)
        if fault in (Fault.FAILS, Fault.STOPS_BEFORE) or (fault is Fault.IS_CUT_OFF and cut_off is None):
            self._trace.end(operation, fault, "no answer")
            self._fail(operation, fault)
        if fault is Fault.STOPS_AFTER:
            with suppress(LogStoreError):  # The actor stops whatever the answer would have been.
                self._apply(operation, fault, apply)
            self._fail(operation, fault)
        result = self._apply(operation, fault, apply)
        if fault is Fault.IS_FLIPPED and flip is not None:
            return flip(result)
        return cut_off(result) if fault is Fault.IS_CUT_OFF and cut_off is not None else result

    def _write(
        self, verb: str, key: str, condition: str, apply: Callable[[], _Result], keys: Sequence[str] = ()
    ) -> _Result:
        return self._carry_out(*self._begin(verb, key, condition), apply, keys)

    def _carry_out(
        self, operation: Operation, fault: Fault, apply: Callable[[], _Result], keys: Sequence[str] = ()
    ) -> _Result:
        if fault in (Fault.FAILS, Fault.STOPS_BEFORE):
            self._trace.end(operation, fault, "did not land")
            self._fail(operation, fault)
        if fault is Fault.LANDS_LATE:
            with self._lock:
                self._held.append(_Held(operation, apply))
            self._trace.end(operation, fault, "under way")
            self._fail(operation, fault)
        if fault is Fault.IS_CUT_OFF:
            some = self._random.sample(keys, self._random.randint(0, len(keys)))
            self._apply(operation, fault, lambda: self._inner.delete_many(some))
            self._fail(operation, fault)
        if fault in (Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED, Fault.STOPS_AFTER):
            with suppress(LogStoreError):  # A refusal that the actor does not hear of, or hears of below.
                self._apply(operation, fault, apply)
        if fault in (Fault.LANDS_UNKNOWN, Fault.STOPS_AFTER):
            self._fail(operation, fault)
        return self._apply(operation, fault, apply)

    def _begin(self, verb: str, key: str, condition: str) -> tuple[Operation, Fault]:
        if self._is_stopped:
            raise ActorStopped
        operation = self._trace.begin(self._actor, verb, key, condition)
        if self._before is not None:
            self._before(operation)
        fault = self._plan(operation)
        assert makes_a_difference(fault, verb), f"{fault} makes no difference for {verb}"
        return operation, fault

    def _apply(self, operation: Operation, fault: Fault, apply: Callable[[], _Result]) -> _Result:
        """Do the operation, and note its real outcome, whatever the actor sees."""
        try:
            result = apply()
        except LogStoreError as error:
            self._trace.end(operation, fault, type(error).__name__)
            raise
        self._trace.end(operation, fault, "ok")
        if self._after is not None:
            self._after(operation)
        return result

    def _fail(self, operation: Operation, fault: Fault) -> NoReturn:
        if fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER):
            self._is_stopped = True
            raise ActorStopped
        raise StoreUnavailableError("the test made this request fail", key=operation.key, fault=fault.value)
