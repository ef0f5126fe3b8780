"""The settings of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.errors import InvalidRequestError
from stratalog.client.messages import DurabilityLike
from stratalog.client.whole_number import INT32_MAX
from stratalog.record.codecs.compression import Codec

KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. Immutable. The defaults suit many small records over a fast network."""

    compression: str = "none"
    """Compression of batches: none, gzip, snappy, lz4 or zstd. "zstd" is worth its time for text such as
    JSON.
    """

    idempotent: bool = True
    """A batch whose outcome is unknown, because the connection failed, is sent again, and the server stores
    it once. False: its records fail.
    """

    durability: DurabilityLike | None = None
    """The durability before a record is acknowledged; None: the topic's setting."""

    batch_bytes: int = 512 * KIB
    """A batch is sent when it has about this size (before compression), or the topic's `max.message.bytes` if
    that is less. A batch that is larger than its topic accepts all the same (once compressed, or by
    `segment.bytes`) is sent in halves, so a fitting size saves work.
    """

    linger_ms: int = 5
    """A batch that does not fill up is sent after this time. 0: at the next turn of the event loop. While
    five batches of its partition wait for their acknowledgement, it goes on filling."""

    max_buffered_bytes: int = 64 << 20
    """The buffer is full while more bytes than this are unacknowledged."""

    topics_max_age_s: float = 300.0
    """Topics are described again after this time, so that new partitions and limits are noticed."""

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a size or a time that means nothing."""
        for name, least in (("batch_bytes", 1), ("linger_ms", 0), ("max_buffered_bytes", 1)):
            number = getattr(self, name)
            if not isinstance(number, int) or not least <= number <= INT32_MAX:
                raise InvalidRequestError(
                    "the setting of the producer is out of range",
                    setting=name,
                    value=number,
                    allowed=f"a whole number from {least} to 2^31 - 1",
                )

    @property
    def codec(self) -> Codec:
        """The codec of `compression`. Raises InvalidRequestError."""
        try:
            return Codec[self.compression.upper()]
        except (KeyError, AttributeError):
            raise InvalidRequestError(
                "no such compression; choose another",
                compression=self.compression,
                allowed=", ".join(codec.name.lower() for codec in Codec),
            ) from None
