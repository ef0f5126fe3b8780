"""Deletes files that commits have dropped, once nobody can need them any more.

A file in the state's list of dropped files is deleted when

* it was dropped longer ago than the grace, by the store's clock: readers with an older head have finished;
* no pin is in the state;
* the commit that brought it is folded into a checkpoint: whoever opens the shard reads the directory of
  every object that an inline commit brings, so a fold comes first where one is needed;
* the own clock agrees with the store's.

Files are deleted in bulk, then forgotten in a commit. A crash in between repeats deletes of what is gone,
which is no error. What never was committed (orphans) is not in the list and not deleted here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.document_ref import DroppedObject
from stratalog.remote.metadata_log import MetadataLog
from stratalog.remote.shard_state import ShardState
from stratalog.remote.store_clock import MAX_CLOCK_SKEW_MS, clock_skew_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Immutable."""

    grace_ms: int = 24 * 60 * 60 * 1000
    """How long a dropped file stays. Longer than the longest scan that takes no pin."""
    batch_count: int = 1000
    """Files between two commits."""
    max_files_per_run: int = 10_000
    """Bounds a run; what is left is the next one's."""


class CollectReport(NamedTuple):
    """What a run deleted, and what it left."""

    deleted_count: int = 0
    deleted_bytes: int = 0
    waiting_count: int = 0
    """Dropped files that are still there."""
    clock_skew_ms: int = 0
    is_refused: bool = False
    """Nothing was deleted because the own clock is wrong or a pin holds everything."""


class Collector:
    """Thread-safe: it keeps nothing between calls, and two runs at once do the same harmless work."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        metadata: MetadataLog,
        settings: CollectorSettings | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._settings = settings or CollectorSettings()

    def run(self) -> CollectReport:
        """Delete what is due. Raises StoreError; what was done by then stays done."""
        state = self._metadata.refresh(dated=True)
        skew_ms = clock_skew_ms(self._clock, self._metadata)
        if abs(skew_ms) > MAX_CLOCK_SKEW_MS or state.pins:
            return CollectReport(waiting_count=len(state.dropped), clock_skew_ms=skew_ms, is_refused=True)
        if any(not state.is_deletable(file) for file in self._due(state)):
            self._metadata.fold()
            state = self._metadata.state()
        due = [file for file in self._due(state) if state.is_deletable(file)][
            : self._settings.max_files_per_run
        ]
        for start in range(0, len(due), self._settings.batch_count):
            self._delete(due[start : start + self._settings.batch_count])
        return CollectReport(
            deleted_count=len(due),
            deleted_bytes=sum(file.size_bytes for file in due),
            waiting_count=len(self._metadata.state().dropped),
            clock_skew_ms=skew_ms,
        )

    def _due(self, state: ShardState) -> list[DroppedObject]:
        """Dropped files whose grace is over, oldest drop first."""
        end_ms = self._metadata.store_date_ms - self._settings.grace_ms
        return [file for file in state.dropped if file.time_ms <= end_ms]

    def _delete(self, files: Sequence[DroppedObject]) -> None:
        self._store.delete_many([file.key(self._metadata.layout) for file in files])
        self._metadata.forget([file.name for file in files])
