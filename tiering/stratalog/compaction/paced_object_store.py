"""An object store for compaction, whose requests and bytes a budget limits and a stop signal ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import DEFAULT_PART_BYTES, Buffer, ObjectStore, ReadStream
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.tier.upload_budget import UploadBudget


class _PacedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, budget: UploadBudget, stop: StopSignal) -> None:
        self._inner = inner
        self._budget = budget
        self._stop = stop

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        # What has arrived is paid for before more is asked for.
        self._budget.take_bytes(len(data), self._stop.check)
        return data

    def close(self) -> None:
        self._inner.close()


class PacedObjectStore(StoppableObjectStore):
    """An object store whose reads and writes wait for a budget. Thread-safe if the inner store is. Raises as
    `StoppableObjectStore` does, also while a request waits."""

    def __init__(self, inner: ObjectStore, budget: UploadBudget, stop: StopSignal) -> None:
        super().__init__(inner, stop)
        self._budget = budget
        self._signal = stop

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self._budget.take_request(self._signal.check)
        self._budget.take_bytes(memoryview(data).nbytes, self._signal.check)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        super().put_parts(key, self._paced(parts, part_bytes), part_bytes=part_bytes)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._budget.take_request(self._signal.check)
        self._budget.take_bytes(size, self._signal.check)
        return super().get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int) -> ReadStream:
        self._budget.take_request(self._signal.check)
        return _PacedStream(super().open_range(key, position, size), self._budget, self._signal)

    def _paced(self, parts: Iterable[Buffer], part_bytes: int) -> Iterator[Buffer]:
        """The parts, each once it may be sent. A request sends `part_bytes`."""
        unpaid_bytes = 0
        for part in parts:
            size_bytes = memoryview(part).nbytes
            if unpaid_bytes <= 0:
                self._budget.take_request(self._signal.check)
                unpaid_bytes += part_bytes
            unpaid_bytes -= size_bytes
            self._budget.take_bytes(size_bytes, self._signal.check)
            yield part
