"""The rule by which a row of batches is filtered, and what is left of it."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import Buffer


class BatchFilter(NamedTuple):
    """Which records of a slice stay, beside what its survivor bits say."""

    first_offset: int
    """Records below are not kept."""
    end_offset: int
    """A batch that reaches beyond is not taken."""
    has_tombstones: bool
    """False where no batch has to be looked into for them."""
    drop_until_ms: int | None
    """Tombstones with a horizon up to this go; None: all stay."""
    stamp_ms: int | None
    """Tombstones without a horizon get this one; None: they get none."""


class FilteredBatches(NamedTuple):
    """What is left of consecutive plain batches."""

    data: Buffer
    """The batches that stay or were made anew; part of the input itself where none was."""
    end_position: int
    """Behind the last batch that was taken."""
    next_ordinal: int
    """Of the first record behind it."""
    records_count: int
    first_offset: int
    """Of a record that is kept; -1 where there is none, as is the next."""
    last_offset: int
    dropped_tombstone_count: int
    fingerprint: int
