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
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from stratalog.base.clock import Clock
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.log_state import LogState
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_clock import MAX_CLOCK_SKEW_MS, clock_skew_ms
from stratalog.remote.store_layout import StoreLayout


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


class CollectedLog(Protocol):
    """What a collector needs of a `MetadataLog` or a `Catalog`."""

    @property
    def layout(self) -> StoreLayout: ...

    def state(self) -> LogState: ...

    def refresh(self, *, dated: bool = False) -> LogState: ...

    def fold(self) -> int | None: ...

    def forget(self, names: Iterable[str]) -> tuple[str, ...]: ...


class Collector:
    """Thread-safe: it keeps nothing between calls, and two runs at once do the same harmless work."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        metadata: MetadataLog,
        catalog: Catalog | None = None,
        settings: CollectorSettings | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._logs: tuple[CollectedLog, ...] = (metadata,) if catalog is None else (metadata, catalog)
        self._settings = settings or CollectorSettings()

    def run(self) -> CollectReport:
        """Delete what is due. Raises StoreError; what was done by then stays done."""
        self._metadata.refresh(dated=True)
        report = CollectReport(clock_skew_ms=clock_skew_ms(self._clock, self._metadata))
        for log in self._logs:
            state = log.refresh()
            if abs(report.clock_skew_ms) > MAX_CLOCK_SKEW_MS or state.pins:
                report = report._replace(
                    is_refused=True, waiting_count=report.waiting_count + len(state.dropped_objects)
                )
                continue
            deleted = self._collect(log, state)
            report = report._replace(
                deleted_count=report.deleted_count + len(deleted),
                deleted_bytes=report.deleted_bytes + sum(file.size_bytes for file in deleted),
                waiting_count=report.waiting_count + len(log.state().dropped_objects),
            )
        return report

    def _collect(self, log: CollectedLog, state: LogState) -> Sequence[DroppedObject]:
        if not all(map(state.is_deletable, self._due(state))):
            log.fold()
            state = log.state()
        due = [file for file in self._due(state) if state.is_deletable(file)][
            : self._settings.max_files_per_run
        ]
        for start in range(0, len(due), self._settings.batch_count):
            files = due[start : start + self._settings.batch_count]
            self._store.delete_many([file.key(log.layout) for file in files])
            log.forget([file.name for file in files])
        return due

    def _due(self, state: LogState) -> list[DroppedObject]:
        """Dropped files whose grace is over, oldest drop first."""
        end_ms = self._metadata.store_date_ms - self._settings.grace_ms
        return [file for file in state.dropped if file.time_ms <= end_ms]
