"""Decompresses the batches of a client's request, within bounds, within the memory of all requests, and as
long as the caller lets it go on.

A few kilobytes may stand for any number of mebibytes. So the bound of a batch, and of all batches of a
request, grows with what was sent, and the memory is asked for before it is used: for the size that a frame of
zstd declares, or else for a usual one, and for more once that was too little. At most one batch of a request
is decompressed at a time.

A few kilobytes may stand for seconds of work, too. So the caller is asked before each step of it: it may stop
the request for good, or have it validated anew where long work holds up nothing.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.log.log_config import LogConfig
from stratalog.record.codecs.compression import (
    LEAST_SENT_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SENT_BYTES,
    MAX_SENT_FACTOR,
    Codec,
    compression_work_bytes,
    decompress,
    expected_bytes,
)

STEP_FACTOR = 4
"""Where the expected size was too little, so many times of it are tried."""
LEAST_STEP_BYTES = 1 << 16
"""The least that is tried, whatever a frame declares: a frame of one byte may stand before a large one."""

BATCH_WORK_BYTES = 8 << 10
"""The work with a batch of a request that the kernel has not accepted, however small the batch is: about
30 µs. A request may have hundreds of thousands of them."""


class LongWorkError(Exception):
    """The validation of a request needs more work than its caller allows here. It is no outcome of the
    request, of which nothing was written: the caller validates it anew, elsewhere."""


class Unpacking(Protocol):
    """The memory and the work of one request's compressed batches. One thread at a time uses it."""

    def work(self, size_bytes: int) -> None:
        """Asked before work that takes about as long as the decompression of so many bytes. For each batch of
        a request that the kernel has not accepted it is asked at first, with `BATCH_WORK_BYTES`, and behind
        it, with 0. Raises the LogStoreError of the request if its validation shall end, or LongWorkError."""
        ...

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes in place of those that were held. Raises OverloadedError if there are not so
        many, and holds what it held then."""
        ...

    def count(self, size_bytes: int) -> None:
        """Note that so many bytes were decompressed, also where they were refused: those of the last call of
        `work`."""
        ...


class _Unlimited:
    """Memory and work without a bound, for callers that bound their requests. Immutable."""

    def work(self, size_bytes: int) -> None:
        """There is always time."""

    def hold(self, size_bytes: int) -> None:
        """There is always room."""

    def count(self, size_bytes: int) -> None:
        """No account needs it."""


UNLIMITED: Unpacking = _Unlimited()


class UnpackingRoom:
    """The bytes that the batches of one request may still decompress to. Belongs to one thread."""

    def __init__(self, request_bytes: int, config: LogConfig, unpacking: Unpacking) -> None:
        self._least_bytes = max(LEAST_SENT_BYTES, config.max_message_bytes)
        """The bound of small batches: as much may be sent compressed, however well, as may be sent plain."""
        self._unpacking = unpacking
        self.room_bytes = min(max(self._least_bytes, MAX_SENT_FACTOR * request_bytes), MAX_REQUEST_BYTES)

    def take(self, size_bytes: int) -> None:
        """Count the records of a batch, also those that came plain."""
        self.room_bytes -= size_bytes

    def max_bytes(self, batch_bytes: int) -> int:
        """The bound of the next batch, which has so many bytes as it was sent."""
        return min(self._max_bytes_alone(batch_bytes), self.room_bytes)

    def is_short_for(self, batch_bytes: int) -> bool:
        """Whether such a batch could be larger in a request of its own."""
        return self.room_bytes < self._max_bytes_alone(batch_bytes)

    def _max_bytes_alone(self, batch_bytes: int) -> int:
        return min(max(self._least_bytes, MAX_SENT_FACTOR * batch_bytes), MAX_SENT_BYTES)

    def work(self, size_bytes: int = 0) -> None:
        """Ask whether to go on, with work that takes as long as the decompression of so many bytes. Raises as
        `Unpacking.work`."""
        self._unpacking.work(size_bytes)

    def work_to_compress(self, codec: Codec, size_bytes: int, level: int | None) -> None:
        """Ask whether to compress so many bytes. Raises as `Unpacking.work`."""
        self._unpacking.work(compression_work_bytes(codec, size_bytes, level))

    def unpack(self, codec: Codec, section: Buffer, max_bytes: int) -> Buffer:
        """The decompressed section of a batch, whose memory is held until the next one, or `close`.

        Raises CorruptRecordError, with the field `max_bytes` if it is larger than that; OverloadedError; as
        `Unpacking.work`.
        """
        step_bytes = max(expected_bytes(codec, section), LEAST_STEP_BYTES)
        while True:
            step_bytes = min(step_bytes, max_bytes)
            self._unpacking.work(step_bytes)
            self._unpacking.hold(step_bytes)
            try:
                payload = decompress(codec, section, step_bytes)
            except CorruptRecordError as failure:
                if "max_bytes" not in failure.fields or step_bytes == max_bytes:
                    self._unpacking.count(step_bytes)
                    raise
                step_bytes *= STEP_FACTOR
            else:
                self._unpacking.count(len(payload))
                return payload

    def close(self) -> None:
        """Give the memory back."""
        self._unpacking.hold(0)
