"""What decompression ends in when the bytes are wrong: one error, told the same way for every codec."""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError


def malformed(codec_name: str) -> CorruptRecordError:
    """The bytes are not, or not wholly, what the codec writes."""
    return CorruptRecordError(
        "the compressed records cannot be decompressed; send the batch again", codec=codec_name
    )


def too_large(codec_name: str, max_bytes: int) -> CorruptRecordError:
    """More would come out than the reader allows."""
    return CorruptRecordError(
        "the records are larger than a batch may be once decompressed; put fewer records into a batch, or, "
        "where it is stored already, read on behind it",
        codec=codec_name,
        max_bytes=max_bytes,
    )
