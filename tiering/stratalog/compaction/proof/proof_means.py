"""The means of a proof: reads of slices, scratch, and the number of keys in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.compaction.proof.slice_reads import SliceReads
from stratalog.remote.objects.spool import Spool


class ProofMeans(NamedTuple):
    """The means of each step of a proof. Thread-safe: its parts are."""

    reads: SliceReads
    make_scratch: Callable[[], Spool]
    """Makes scratch of its own for each call, from any thread."""
    max_part_entries: int
    """Keys that are sorted in memory at once, for each slice that is being hashed."""
