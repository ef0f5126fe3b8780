"""The settings of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.types import Durability
from stratalog.record.codecs.compression import Codec

KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. Immutable. The defaults suit many small records over a fast network."""

    durability: Durability | None = None
    """The durability before a record is acknowledged; None: the topic's setting."""

    codec: Codec = Codec.NONE
    """Compression of batches. ZSTD is worth its time for text such as JSON."""

    batch_bytes: int = 512 * KIB
    """A batch is sent when it has about this size (before compression). A batch that is larger than its topic
    accepts (`max.message.bytes`, `segment.bytes`) is sent again in halves, so a fitting size saves work.
    """

    linger_ms: int = 5
    """A batch that does not fill up is sent after this time. 0: at the next turn of the event loop."""

    max_buffered_bytes: int = 64 << 20
    """`post` and `send` wait while more bytes than this are unacknowledged."""
