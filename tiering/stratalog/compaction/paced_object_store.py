"""An object store for compaction, whose requests and bytes a budget limits and a stop signal ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import DEFAULT_PART_BYTES, Buffer, ObjectStore, ObjectUpload, ReadStream
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.tier.upload_budget import UploadBudget


class _PacedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, pay: Callable[[int], None]) -> None:
        """`pay` waits until so many bytes are paid for."""
        self._inner = inner
        self._pay = pay

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        # What has arrived is paid for before more is asked for.
        self._pay(len(data))
        return data

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _PacedUpload:
    """One user at a time, as every `ObjectUpload`. An abort waits for nothing."""

    def __init__(self, inner: ObjectUpload, pay: Callable[[int], None]) -> None:
        """`pay` waits until a request with so many bytes is paid for."""
        self._inner = inner
        self._pay = pay

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._pay(sum(memoryview(piece).nbytes for piece in data))
        self._inner.put_part(number, data)

    def complete(self, crc: int) -> None:
        self._pay(0)
        self._inner.complete(crc)

    def abort(self) -> None:
        self._inner.abort()


class PacedObjectStore(StoppableObjectStore):
    """An object store whose reads and writes wait for a budget. Thread-safe if the inner store is. Raises as
    `StoppableObjectStore` does, also while a request waits."""

    def __init__(self, inner: ObjectStore, shard: int, budget: UploadBudget, stop: StopSignal) -> None:
        """`shard` takes from the budget."""
        super().__init__(inner, stop)
        self._shard = shard
        self._budget = budget
        self._signal = stop

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self._pay_request()
        self._pay(memoryview(data).nbytes)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        super().put_parts(key, self._paced(parts, part_bytes), part_bytes=part_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        self._pay_request()
        return _PacedUpload(super().open_upload(key), self._pay_write)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._pay_request()
        self._pay(size)
        return super().get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self._pay_request()
        return _PacedStream(super().open_range(key, position, size, if_match=if_match), self._pay)

    def _pay(self, size_bytes: int) -> None:
        self._budget.take_bytes(self._shard, size_bytes, self._signal.check)

    def _pay_write(self, size_bytes: int) -> None:
        self._pay_request()
        if size_bytes:
            self._pay(size_bytes)

    def _pay_request(self) -> None:
        self._budget.take_request(self._shard, self._signal.check)

    def _paced(self, parts: Iterable[Buffer], part_bytes: int) -> Iterator[Buffer]:
        """The parts, each once it may be sent. A request sends `part_bytes`."""
        unpaid_bytes = 0
        for part in parts:
            size_bytes = memoryview(part).nbytes
            if unpaid_bytes <= 0:
                self._pay_request()
                unpaid_bytes += part_bytes
            unpaid_bytes -= size_bytes
            self._pay(size_bytes)
            yield part
