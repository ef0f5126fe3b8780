"""Transactions of which a clean has met data, in plain Python: twin of the compiled class.

See ``offset_map``.
"""

from __future__ import annotations


class OpenTransactions:
    """Not thread-safe: of one pass over a log, in the order of offsets."""

    __slots__ = ("_is_kept",)

    def __init__(self) -> None:
        self._is_kept: dict[int, bool] = {}

    def __len__(self) -> int:
        """Those whose markers have not come by yet."""
        return len(self._is_kept)

    def on_data(self, producer_id: int, *, is_kept: bool) -> None:
        """A batch of the producer's transaction came by, and stays, be it without records, or goes."""
        self._is_kept[producer_id] = is_kept or self._is_kept.get(producer_id, False)

    def on_marker(self, producer_id: int) -> bool | None:
        """The end of the producer's transaction comes by: whether data of it stays; None where none came."""
        return self._is_kept.pop(producer_id, None)
