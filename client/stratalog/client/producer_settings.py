"""What a producer can be told."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.types import Durability
from stratalog.record.codecs.compression import Codec

KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Defaults suit many small records over a fast network."""

    acks: Durability | None = None
    """What must hold before a record is acknowledged; None: what the topic asks for."""

    codec: Codec = Codec.NONE
    """How batches are compressed. ZSTD pays off for text such as JSON."""

    batch_bytes: int = 512 * KIB
    """A batch is sent once it is about this large (before compression). One that is larger than its topic
    takes (`max.message.bytes`, `segment.bytes`) is sent again in halves, so a size that fits saves work.
    """

    linger_ms: int = 5
    """A batch that does not fill up is sent after so long. 0: at the next turn of the event loop."""

    max_buffered_bytes: int = 64 << 20
    """`post` and `send` wait while more than this is not acknowledged yet."""
