"""The aborted transactions with data in a range of offsets, in the form that the cleaning kernels take."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from stratalog.record.header import BatchHeader

_FIELDS = 3


class AbortedSpans:
    """A set of spans of aborted transactions. Immutable, hence thread-safe."""

    __slots__ = ("values",)

    def __init__(self, values: array[int] | None = None) -> None:
        """`values` come from `ordered`; no spans by default."""
        self.values = array("q") if values is None else values
        """Three numbers a span, ascending by producer and first offset: a producer's id, the first offset of
        its transaction, and that of the marker."""

    def __bool__(self) -> bool:
        return bool(self.values)

    def has(self, header: BatchHeader) -> bool:
        """Return whether the batch, which lies in the range, is data of an aborted transaction."""
        return is_aborted(self.values, header)


def ordered(spans: Iterable[tuple[int, int, int]]) -> array[int]:
    """The `AbortedSpans.values` of these spans. Spans of one producer overlap only if something is damaged;
    the later one then ends at the highest end so far."""
    values = array("q")
    producer_before, last_before = -1, -1
    for producer_id, first_offset, last_offset in sorted(spans):
        last_before = max(last_offset, last_before) if producer_id == producer_before else last_offset
        producer_before = producer_id
        values.extend((producer_id, first_offset, last_before))
    return values


def is_aborted(values: Sequence[int], header: BatchHeader) -> bool:
    """`AbortedSpans.has` for bare `AbortedSpans.values`."""
    if not header.is_transactional or header.is_control:
        return False
    place = bisect_right(
        range(len(values) // _FIELDS),
        (header.producer_id, header.base_offset),
        key=lambda index: (values[_FIELDS * index], values[_FIELDS * index + 1]),
    )
    if place == 0:
        return False
    producer_id, _, last_offset = values[_FIELDS * (place - 1) : _FIELDS * place]
    return producer_id == header.producer_id and header.base_offset < last_offset
