"""The number of ranges of a hash that keys are divided into, by the measured size of some keys.

A task holds the keys of its range, and several times as much while it merges them. So keys of 400 bytes need
more ranges than those of 16. No commit says how large keys are: the driver reads some of them, of a few
slices all over the topic, if there are so many data that it matters.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.source.slice_span import SliceSpan

RANGE_BYTES = 64 << 20
"""The keys and offsets of a range, about."""
_ENTRY_BYTES = 48
"""About the bytes that a task holds for a key beside the key itself."""
_USUAL_KEY_BYTES = 16.0
SAMPLED_SPANS = 8


def mean_key_bytes(store: ObjectStore, spans: Sequence[SliceSpan]) -> float:
    """The mean size of keys, measured in the first rows of some spans; a usual one if all spans together are
    small, or have no keys. Raises StoreError, CorruptRecordError."""
    if sum(span.size_bytes for span in spans) <= RANGE_BYTES:
        return _USUAL_KEY_BYTES
    size_bytes = key_count = 0
    for number in range(min(SAMPLED_SPANS, len(spans))):
        span = spans[number * len(spans) // SAMPLED_SPANS if len(spans) > SAMPLED_SPANS else number]
        with closing(scan(store, [span], ("key",))) as found:
            keys = next(found, None)
        if keys is not None:
            column = cast("Any", keys.column("key"))
            size_bytes += column.nbytes
            key_count += len(column) - column.null_count
    return size_bytes / key_count if key_count else _USUAL_KEY_BYTES


def range_count(record_count: int, key_bytes: float) -> int:
    """The number of ranges for the keys of so many records, of this mean size."""
    return -(-int(record_count * (_ENTRY_BYTES + key_bytes)) // RANGE_BYTES)
