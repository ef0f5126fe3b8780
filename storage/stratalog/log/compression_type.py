"""Which codec a topic's batches are stored in: the producer's own, or one for all of them."""

from __future__ import annotations

import enum

from stratalog.record.codecs.compression import Codec


class CompressionType(enum.Enum):
    """The values of `compression.type`, as Kafka spells them."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"

    def codec_for(self, source: Codec) -> Codec:
        """What a batch is stored in that came in `source`."""
        match self:
            case CompressionType.PRODUCER:
                return source
            case CompressionType.UNCOMPRESSED:
                return Codec.NONE
            case _:
                return Codec[self.name]
