"""Entries as columns are the same entries."""

from __future__ import annotations

from stratalog.remote.objects.slice_entry import LastBatch, LeaderEpoch, PartRef, SliceEntry
from tests.support.tiered.sample_entry import sample_entry

ENTRIES = (
    sample_entry(10, 20, data_bytes=500, record_count=7),
    sample_entry(20, 25)._replace(
        tombstone_count=2, leader_epochs=(LeaderEpoch(3, 10),), last_batch=LastBatch(15, 3, 8)
    ),
)


def test_columns_are_the_entries() -> None:
    columns = SliceEntry.columns_of(ENTRIES)
    assert columns["base_offset"] == (10, 20)
    assert SliceEntry.of_columns(columns | {"other": ()}) == ENTRIES
    indexes = [PartRef(1, 2, 3), PartRef(4, 5, 6)]
    placed = SliceEntry.of_columns(columns | {"index": indexes})
    assert placed == tuple(entry._replace(index=index) for entry, index in zip(ENTRIES, indexes, strict=True))


def test_no_entries_have_empty_columns() -> None:
    columns = SliceEntry.columns_of(())
    assert columns.keys() == set(SliceEntry._fields)
    assert SliceEntry.of_columns(columns) == ()
