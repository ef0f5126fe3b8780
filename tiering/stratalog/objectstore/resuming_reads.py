"""Ranges of one object that are read on after their connection broke.

A store or a proxy resets a stream that idles or lasts too long. A new GET then asks for the rest of the
range, on the condition that the object still has the ETag of the first answer. A stream is resumed a bounded
number of times while nothing arrives, with a growing pause before each GET. It may last for hours.
"""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.base.errors import PreconditionFailedError, StoreCorruptError, StoreUnavailableError
from stratalog.objectstore.protocol import ObjectStore, ReadStream

MAX_RESUMPTIONS = 16
"""How often one stream is resumed without a byte in between. One that stands still while its job computes is
reset again and again; one that gives nothing in so many tries has a store that cannot serve it now."""
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0


class ResumingReads:
    """Reads ranges of one object, one after the other, and counts its requests. Not thread-safe but for
    `give_up`: guarded by its user."""

    def __init__(self, store: ObjectStore, clock: Clock, key: str) -> None:
        self.key = key
        self.get_count = 0
        """GETs of ranges; those that resumed one are counted apart."""
        self.resumed_get_count = 0
        self.bytes_read = 0
        """Bytes that have arrived, except those of a read that broke."""
        self.is_given_up = False
        self._store = store
        self._clock = clock

    def give_up(self) -> None:
        """Resume no stream any more. A read that another thread is in ends with its error then, at the
        latest after the pause that it is in."""
        self.is_given_up = True

    def open_range(self, position: int, size_bytes: int) -> ResumingStream:
        """A stream over exactly that range. Raises as `ObjectStore.open_range`."""
        self.get_count += 1
        return ResumingStream(
            self, self._store.open_range(self.key, position, size_bytes), position, size_bytes
        )

    def reopen_range(self, position: int, size_bytes: int, etag: str, pause_s: float) -> ReadStream:
        """A stream over the rest of a range, of the object that has this ETag. Raises as
        `ObjectStore.open_range`, and StoreCorruptError if the object has changed."""
        self.resumed_get_count += 1
        self._clock.sleep(pause_s)
        try:
            return self._store.open_range(self.key, position, size_bytes, if_match=etag)
        except PreconditionFailedError as error:
            raise StoreCorruptError(
                "an object changed while it was read; objects are written once, so find out what changed it",
                key=self.key,
                store=self._store.url,
            ) from error


class ResumingStream:
    """One range of an object, moving forward only. One user at a time, as every `ReadStream`."""

    def __init__(self, reads: ResumingReads, stream: ReadStream, position: int, size_bytes: int) -> None:
        self._reads = reads
        self._stream: ReadStream | None = stream
        self._position = position
        self._end_position = position + size_bytes
        self._etag: str | None = None
        self._left_count = MAX_RESUMPTIONS
        self._pause_s = FIRST_PAUSE_S

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer only at the end of the range, b"" behind it. Raises as
        `ReadStream.read`, and StoreCorruptError if the object has changed."""
        while True:
            try:
                data = self._open().read(size)
            except StoreUnavailableError:
                if not self._can_resume():
                    raise
                continue
            self._position += len(data)
            self._reads.bytes_read += len(data)
            if data:
                self._left_count, self._pause_s = MAX_RESUMPTIONS, FIRST_PAUSE_S
            return data

    def close(self) -> None:
        """Release the connection. May be called repeatedly."""
        stream, self._stream = self._stream, None
        self._end_position = self._position
        if stream is not None:
            stream.close()

    def _open(self) -> ReadStream:
        if self._stream is None:
            assert self._etag is not None, "a closed stream is not read"
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
            self._left_count -= 1
            rest_bytes = self._end_position - self._position
            self._stream = self._reads.reopen_range(self._position, rest_bytes, self._etag, pause_s)
        return self._stream

    def _can_resume(self) -> bool:
        """Release what is broken; whether another GET may be sent for the rest."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._etag = self._etag or stream.etag()
            stream.close()
        # Without an ETag the rest might be another object's.
        return self._left_count > 0 and bool(self._etag) and not self._reads.is_given_up
