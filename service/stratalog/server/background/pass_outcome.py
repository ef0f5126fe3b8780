"""The outcome of one pass of a background task, for its log line, its metrics and `tier status`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Backlog(NamedTuple):
    """The work that a pass has left for later ones."""

    count: int = 0
    """Pieces of work, such as files that wait to be deleted, or partitions with something to upload."""
    size_bytes: int = 0
    record_count: int = 0
    oldest_ms: int = -1
    """Since when the oldest piece has waited, in milliseconds since 1970 UTC; -1 if nothing waits or it has
    no time."""


class PassOutcome(NamedTuple):
    """The outcome of one pass that did not raise. Immutable."""

    done: Mapping[str, int] = _NOTHING
    """Amounts of finished work by a plural noun, such as `{"objects": 2, "bytes": 4096}`. A pass without any
    was idle."""
    refusals: Mapping[str, int] = _NOTHING
    """Pieces of work that a rule refused, by a stable word for the reason, such as `clock`, `pinned` or
    `stale-configuration`. The word is a label of a metric."""
    failures: tuple[str, ...] = ()
    """Failures of single partitions or files, which do not stop the others; a text for people each."""
    backlog: Backlog = Backlog()
