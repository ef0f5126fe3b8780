"""The errors of decompression, the same for every codec."""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError


def malformed(codec_name: str) -> CorruptRecordError:
    """The error for bytes that the codec cannot have written."""
    return CorruptRecordError(
        "the compressed records cannot be decompressed; send the batch again", codec=codec_name
    )


def too_large(codec_name: str, max_bytes: int) -> CorruptRecordError:
    """The error for data that decompresses to more than the reader allows."""
    return CorruptRecordError(
        "the batch decompresses to more than the allowed size; send fewer records in a batch, or, if it is "
        "stored already, read on after it",
        codec=codec_name,
        max_bytes=max_bytes,
    )
