"""Batches that the cleaning kernels take and of whose keys the map knows nothing: they stay, whatever they
hold."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.header import parse_header
from stratalog.record.native import pure_clean_kernels, pure_offset_map, pure_open_transactions
from stratalog.record.native.clean_rule import CleanRule
from stratalog.record.record import Record

try:
    native: ModuleType | None = importlib.import_module("stratalog.record.native._kernels")
except ImportError:
    native = None

END = 2**63 - 1
KERNELS: dict[str, tuple[Any, Any, Any]] = {
    "pure": (
        pure_clean_kernels.clean_batches,
        pure_offset_map.OffsetMap,
        pure_open_transactions.OpenTransactions,
    )
}
if native is not None:
    KERNELS["native"] = native.clean_batches, native.OffsetMap, native.OpenTransactions


@pytest.mark.parametrize(
    ("size_bytes", "records_count", "is_taken"),
    [(6, 1, False), (7, 1, True), (14, 2, True), (14, 3, False), (63, 10, False)],
)
@pytest.mark.parametrize("sound_count", [0, 9])
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_count_of_records_fits_their_bytes(
    kernels: str, sound_count: int, size_bytes: int, records_count: int, *, is_taken: bool
) -> None:
    """No more is known of records that nobody has to judge, with a checksum that is true."""
    clean_batches, new_map, new_transactions = KERNELS[kernels]
    sound = [encode_batch([Record(0, 0, b"k", b"v")], base_offset=offset) for offset in range(sound_count)]
    header = parse_header(encode_batch([Record(0, 0, b"k", b"v")], base_offset=sound_count))
    batch = rebuild_batch(
        header._replace(last_offset_delta=9),
        b"\xff" * size_bytes,
        records_count=records_count,
        max_timestamp=5,
    )
    data = b"".join([*sound, batch])
    taken = data if is_taken else data[: -len(batch)]
    cleaned = clean_batches(data, 0, new_map(bytes(16), 9, 0.9), CleanRule(0, 0, END), new_transactions())
    assert (bytes(cleaned.data), cleaned.end_position) == (taken, len(taken))
