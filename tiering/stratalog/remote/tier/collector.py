"""The collector: deletes files that commits have dropped, once no reader can need them.

A file in the state's list of dropped files is deleted when

* it was dropped longer ago than the grace period, by the store's clock: readers with an older head have
  finished;
* no pin is in the state;
* the commit that brought it is folded into a checkpoint: opening the shard reads the directory of every
  object that an inline commit brings, so the collector folds first where necessary;
* the own clock agrees with the store's.

Files are deleted in bulk, then forgotten in a commit. After a crash in between, the next pass deletes missing
files again, which is no error. Files that were never committed (orphans) are not in the list and not deleted
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_layout import StoreLayout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Settings of the collector. Immutable."""

    grace_ms: int = 24 * 60 * 60 * 1000
    """How long a dropped file stays. Must be longer than the longest scan that takes no pin."""
    batch_count: int = 1000
    """Files between two commits."""
    max_file_count: int = 10_000
    """Files that one pass deletes at most; the next pass deletes the rest."""


class CollectReport(NamedTuple):
    """The result of one pass."""

    deleted_count: int = 0
    deleted_bytes: int = 0
    waiting_count: int = 0
    """Dropped files that were not deleted."""
    clock_skew_ms: int = 0
    is_refused: bool = False
    """Nothing was deleted, because the own clock is wrong or a pin holds everything."""


class CollectedLog(Protocol):
    """The part of a `MetadataLog` or `Catalog` that a collector uses."""

    @property
    def layout(self) -> StoreLayout: ...

    def state(self) -> HeadState: ...

    def refresh(self, *, dated: bool = False) -> HeadState: ...

    def fold(self) -> int | None: ...

    def forget(self, names: Iterable[str]) -> tuple[str, ...]: ...


class Collector:
    """Deletes files that commits have dropped. Thread-safe: it keeps nothing between calls, and two passes at
    once do the same harmless work."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        catalog: Catalog | None = None,
        settings: CollectorSettings | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._logs: tuple[CollectedLog, ...] = (metadata,) if catalog is None else (metadata, catalog)
        self._settings = settings or CollectorSettings()

    def run(self) -> CollectReport:
        """Delete the files that are due. Raises StoreError; files deleted before stay deleted."""
        self._metadata.refresh(dated=True)
        report = CollectReport(clock_skew_ms=self._metadata.clock_skew_ms)
        for log in self._logs:
            state = log.refresh()
            if not self._metadata.is_clock_trusted or state.pins:
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

    def _collect(self, log: CollectedLog, state: HeadState) -> Sequence[DroppedObject]:
        if not all(map(state.is_deletable, self._due(state))):
            log.fold()
            state = log.state()
        due = [file for file in self._due(state) if state.is_deletable(file)][: self._settings.max_file_count]
        for start in range(0, len(due), self._settings.batch_count):
            files = due[start : start + self._settings.batch_count]
            self._store.delete_many([file.key(log.layout) for file in files])
            log.forget([file.name for file in files])
        return due

    def _due(self, state: HeadState) -> list[DroppedObject]:
        end_ms = self._metadata.store_date_ms - self._settings.grace_ms
        return [file for file in state.dropped if file.time_ms <= end_ms]
