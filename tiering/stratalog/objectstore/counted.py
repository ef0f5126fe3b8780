"""An object store that counts its requests and their bytes, for what a store charges, and measures how long
they take and how they fail.

A request counts when it is made, whether it succeeds or not. Bytes count when they have arrived (or, for
writes, been accepted), a stream's as they are read. A write of parts counts as the requests that S3 needs, a
listing as one request, a bulk deletion as one for each thousand keys. Repetitions of a request by the library
of the store are not seen.

A duration is that of one call: a write of parts is one, whatever requests it needs. A stream takes until it
is open, and a listing the time in which it is asked for more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.histogram import Histogram, HistogramCounts
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

_T = TypeVar("_T")

_KEYS_PER_DELETE = 1000
GET_PRICE = 0.000_4
"""US dollars for 1,000 GET requests of S3 Standard in US East."""
PUT_PRICE = 0.005
"""US dollars for 1,000 PUT, COPY, POST or LIST requests of the same."""


class RequestKind(NamedTuple):
    """Requests that are counted together."""

    verb: str
    """GET, PUT, COPY, LIST or DELETE."""
    kind: str
    """The kind of the keys; a bulk deletion has that of its first key."""


class RequestCount(NamedTuple):
    """Requests, and bytes of their bodies."""

    requests: int = 0
    size_bytes: int = 0


class RequestTimes(NamedTuple):
    """How long calls took, and how many failed."""

    durations: HistogramCounts
    """Seconds of calls, failed ones included."""
    failures: Mapping[str, int]
    """Calls that failed, by the code of their error. A missing object and an unmet condition are among them,
    which callers expect."""


class StoreUse(NamedTuple):
    """The use of a store during some time."""

    counts: Mapping[RequestKind, RequestCount]
    times: Mapping[RequestKind, RequestTimes]


class RequestPrices(NamedTuple):
    """Prices in US dollars for 1,000 requests."""

    get: float = GET_PRICE
    put: float = PUT_PRICE

    def cost(self, verb: str, request_count: int) -> float:
        """US dollars for these requests. Deletions are free; copies and listings cost as much as puts."""
        price = {"GET": self.get, "DELETE": 0.0}.get(verb, self.put)
        return price * request_count / 1000


SpanOf = Callable[[str, str], AbstractContextManager[object]]
"""Surrounds a request with this verb and key, for traces."""


class _Times:
    """The mutable form of `RequestTimes`. Guarded by the store's lock."""

    def __init__(self) -> None:
        self.durations = Histogram()
        self.failures: dict[str, int] = {}

    def add(self, other: RequestTimes) -> None:
        self.durations.add_counts(other.durations)
        for code, count in other.failures.items():
            self.failures[code] = self.failures.get(code, 0) + count


class _CountedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, count_bytes: Callable[[int], None]) -> None:
        self._inner = inner
        self._count_bytes = count_bytes

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._count_bytes(len(data))
        return data

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _CountedUpload:
    """One user at a time, as every `ObjectUpload`."""

    def __init__(
        self,
        inner: ObjectUpload,
        count: Callable[[int, int], None],
        timed: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`count` counts requests and bytes, `timed` measures the block."""
        self._inner = inner
        self._count = count
        self._timed = timed

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._count(1, 0)
        with self._timed():
            self._inner.put_part(number, data)
        self._count(0, sum(memoryview(piece).nbytes for piece in data))

    def complete(self, crc: int) -> None:
        self._count(1, 0)
        with self._timed():
            self._inner.complete(crc)

    def abort(self) -> None:
        self._inner.abort()


class CountedObjectStore:
    """An object store that counts requests and bytes. Thread-safe: `_lock` guards the counts and is never
    held during a request."""

    def __init__(
        self,
        inner: ObjectStore,
        kind_of: Callable[[str], str],
        clock: Clock | None = None,
        span_of: SpanOf | None = None,
    ) -> None:
        """`kind_of` returns the kind of a key, or of the prefix of a listing. Without a clock only failures
        are noted, and no durations."""
        self._inner = inner
        self._kind_of = kind_of
        self._clock = clock
        self._span_of = span_of or _no_span
        self._lock = threading.Lock()
        self._counts: dict[RequestKind, RequestCount] = {}
        self._times: dict[RequestKind, _Times] = {}

    def counts(self) -> dict[RequestKind, RequestCount]:
        """A copy of the counts since the start or the last `reset`."""
        with self._lock:
            return dict(self._counts)

    def reset(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._counts.clear()

    def times(self) -> dict[RequestKind, RequestTimes]:
        """The durations and failures since the start."""
        with self._lock:
            return _as_values(self._times)

    def take_use(self) -> StoreUse:
        """The counts and times since the start or the last call; they begin anew."""
        with self._lock:
            counts, self._counts = self._counts, {}
            times, self._times = self._times, {}
            return StoreUse(counts, _as_values(times))

    def add_use(self, use: StoreUse) -> None:
        """Count requests that another process has made."""
        for kind, count in use.counts.items():
            self._count(kind, requests=count.requests, size_bytes=count.size_bytes)
        with self._lock:
            for kind, times in use.times.items():
                self._times.setdefault(kind, _Times()).add(times)

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        kind = self._count_requests("PUT", key)
        with self._timed(kind, key):
            etag = self._inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self._count(kind, size_bytes=memoryview(data).nbytes)
        return etag

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        kind = self._count_requests("PUT", key)
        sizes: list[int] = []
        with self._timed(kind, key):
            self._inner.put_parts(key, _noting_sizes(parts, sizes), part_bytes=part_bytes)
        size_bytes = sum(sizes)
        # A multipart upload has a request for each part, one before them, and one behind.
        further_count = 1 - (-size_bytes // part_bytes) if size_bytes > part_bytes else 0
        self._count(kind, requests=further_count, size_bytes=size_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        kind = self._count_requests("PUT", key)
        with self._timed(kind, key):
            upload = self._inner.open_upload(key)
        return _CountedUpload(
            upload,
            lambda requests, size_bytes: self._count(kind, requests=requests, size_bytes=size_bytes),
            lambda: self._timed(kind, key),
        )

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        kind = self._count_requests("COPY", key)
        with self._timed(kind, key):
            return self._inner.copy(source, key, size_bytes)

    def get(self, key: str) -> StoredObject:
        kind = self._count_requests("GET", key)
        with self._timed(kind, key):
            found = self._inner.get(key)
        self._count(kind, size_bytes=len(found.data))
        return found

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        kind = self._count_requests("GET", key)
        with self._timed(kind, key):
            found = self._inner.get_if_changed(key, etag)
        self._count(kind, size_bytes=0 if found is None else len(found.data))
        return found

    def get_range(self, key: str, position: int, size: int) -> bytes:
        kind = self._count_requests("GET", key)
        with self._timed(kind, key):
            data = self._inner.get_range(key, position, size)
        self._count(kind, size_bytes=len(data))
        return data

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        kind = self._count_requests("GET", key)
        with self._timed(kind, key):
            stream = self._inner.open_range(key, position, size, if_match=if_match)
        return _CountedStream(stream, lambda size_bytes: self._count(kind, size_bytes=size_bytes))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        kind = self._count_requests("LIST", prefix)
        return self._timed_items(kind, self._inner.list(prefix, start_after=start_after))

    def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            self._inner.delete_many(keys)
            return
        kind = self._count_requests("DELETE", keys[0], requests=-(-len(keys) // _KEYS_PER_DELETE))
        with self._timed(kind, keys[0]):
            self._inner.delete_many(keys)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        kind = self._count_requests("LIST", prefix)
        return self._timed_items(kind, self._inner.list_uploads(prefix))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        kind = self._count_requests("DELETE", upload.key)
        with self._timed(kind, upload.key):
            self._inner.abort_upload(upload)

    def remarks(self) -> Sequence[str]:
        return self._inner.remarks()

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def _timed(self, kind: RequestKind, key: str) -> Generator[None]:
        """Measure the block, which is one call of the inner store."""
        begin_s, failure = self._now_s(), ""
        try:
            with self._span_of(kind.verb, key):
                yield
        except Exception as error:
            failure = _code_of(error)
            raise
        finally:
            self._add_time(kind, self._now_s() - begin_s, failure)

    def _timed_items(self, kind: RequestKind, items: Iterator[_T]) -> Iterator[_T]:
        """The items of a listing. The time in which they are asked for counts as one call."""
        duration_s, failure = 0.0, ""
        try:
            while True:
                begin_s = self._now_s()
                try:
                    item = next(items)
                except StopIteration:
                    return
                except Exception as error:
                    failure = _code_of(error)
                    raise
                finally:
                    duration_s += self._now_s() - begin_s
                yield item
        finally:
            self._add_time(kind, duration_s, failure)

    def _now_s(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic_s()

    def _add_time(self, kind: RequestKind, duration_s: float, failure: str) -> None:
        with self._lock:
            times = self._times.setdefault(kind, _Times())
            if self._clock is not None:
                times.durations.add(duration_s)
            if failure:
                times.failures[failure] = times.failures.get(failure, 0) + 1

    def _count_requests(self, verb: str, key: str, requests: int = 1) -> RequestKind:
        kind = RequestKind(verb, self._kind_of(key))
        self._count(kind, requests=requests)
        return kind

    def _count(self, kind: RequestKind, *, requests: int = 0, size_bytes: int = 0) -> None:
        with self._lock:
            before = self._counts.get(kind, RequestCount())
            self._counts[kind] = RequestCount(before.requests + requests, before.size_bytes + size_bytes)


def _no_span(_verb: str, _key: str) -> AbstractContextManager[object]:
    return nullcontext()


def _code_of(error: Exception) -> str:
    return error.code if isinstance(error, LogStoreError) else type(error).__name__


def _as_values(times: Mapping[RequestKind, _Times]) -> dict[RequestKind, RequestTimes]:
    return {kind: RequestTimes(one.durations.counts(), one.failures.copy()) for kind, one in times.items()}


def _noting_sizes(parts: Iterable[Buffer], sizes: list[int]) -> Iterator[Buffer]:
    """Yield the parts, which may be iterated only once, and collect their sizes."""
    for part in parts:
        sizes.append(memoryview(part).nbytes)
        yield part
