"""The needs of a job as numbers: its price, its scratch and its requests follow from them, so that no slice
is looked at again before it is rewritten."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from stratalog.compaction.plan.input_need import InputNeed


class HashedRun(NamedTuple):
    """The slices of a compacted run whose keys are found in their data. Immutable."""

    has_versions: bool
    record_counts: array[int]
    data_bytes: array[int]


class JobNeeds(NamedTuple):
    """The needs of a job. Immutable."""

    inputs: Mapping[str, InputNeed]
    """By the name of the input."""
    output_bytes: Mapping[tuple[int, int], int]
    """Data, key streams and indexes of each output object, an estimate, by the kind of its topics and its
    place."""
    key_bytes: int
    """The most bytes that the key streams of the outputs have."""
    hashed: tuple[HashedRun, ...]
