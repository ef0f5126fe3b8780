"""An object store for compaction: a budget limits its requests and bytes, a meter counts them, and a stop
signal ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_progress import Transfer
from stratalog.objectstore.protocol import DEFAULT_PART_BYTES, Buffer, ObjectStore, ObjectUpload, ReadStream
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.tier.upload_budget import UploadBudget


class _PacedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, note: Callable[[int], None]) -> None:
        """`note` gets the bytes that have arrived, and waits until they are paid for."""
        self._inner = inner
        self._note = note

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        # What has arrived is paid for before more is asked for.
        self._note(len(data))
        return data

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _PacedUpload:
    """One user at a time, as every `ObjectUpload`. An abort waits for nothing."""

    def __init__(self, inner: ObjectUpload, note: Callable[[int], None]) -> None:
        """`note` gets the bytes of each request, and waits until it is paid for."""
        self._inner = inner
        self._note = note

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._note(sum(memoryview(piece).nbytes for piece in data))
        self._inner.put_part(number, data)

    def complete(self, crc: int) -> None:
        self._note(0)
        self._inner.complete(crc)

    def abort(self) -> None:
        self._inner.abort()


class PacedObjectStore(StoppableObjectStore):
    """An object store whose reads and writes wait for a budget. Thread-safe if the inner store is. Raises as
    `StoppableObjectStore` does, also while a request waits."""

    def __init__(
        self,
        inner: ObjectStore,
        shard: int,
        budget: UploadBudget,
        stop: StopSignal,
        on_transfer: Callable[[Transfer], None] = lambda _: None,
    ) -> None:
        """`shard` takes from the budget. `on_transfer` gets each request for data when it is sent, and the
        bytes as they go."""
        super().__init__(inner, stop)
        self._on_transfer = on_transfer
        self._shard = shard
        self._budget = budget
        self._signal = stop

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self._write(memoryview(data).nbytes)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        super().put_parts(key, self._paced(parts, part_bytes), part_bytes=part_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        self._write(0)
        return _PacedUpload(super().open_upload(key), self._write)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._pay_request()
        self._pay(size)
        self._on_transfer(Transfer(get_count=1, read_bytes=size))
        return super().get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self._pay_request()
        # Only the rest of a broken stream is asked for by its ETag.
        is_resumed = if_match is not None
        self._on_transfer(Transfer(get_count=not is_resumed, resumed_get_count=is_resumed))
        return _PacedStream(super().open_range(key, position, size, if_match=if_match), self._arrived)

    def _arrived(self, size_bytes: int) -> None:
        self._on_transfer(Transfer(read_bytes=size_bytes))
        self._pay(size_bytes)

    def _pay(self, size_bytes: int) -> None:
        self._budget.take_bytes(self._shard, size_bytes, self._signal.check)

    def _write(self, size_bytes: int) -> None:
        """A request that sends so many bytes, once it may."""
        self._pay_request()
        if size_bytes:
            self._pay(size_bytes)
        self._on_transfer(Transfer(put_count=1, written_bytes=size_bytes))

    def _pay_request(self) -> None:
        self._budget.take_request(self._shard, self._signal.check)

    def _paced(self, parts: Iterable[Buffer], part_bytes: int) -> Iterator[Buffer]:
        """The parts, each once it may be sent. A request sends `part_bytes`."""
        sent_bytes = paid_count = 0
        for part in parts:
            size_bytes = memoryview(part).nbytes
            sent_bytes += size_bytes
            request_count = -(-sent_bytes // part_bytes) - paid_count
            for _ in range(request_count):
                self._pay_request()
            paid_count += request_count
            self._pay(size_bytes)
            self._on_transfer(Transfer(put_count=request_count, written_bytes=size_bytes))
            yield part
