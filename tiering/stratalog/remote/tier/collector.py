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
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_layout import StoreLayout

MAX_LISTED_COUNT = 1000
"""Files that a report names."""
WRONG_CLOCK = (
    "the clocks of this server and of the store differ by more than five minutes; correct the wrong one"
)
PINNED = "a pin keeps all dropped files; this version makes none, so ask the software that made it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Settings of the collector. Immutable."""

    grace_ms: int = 24 * 60 * 60 * 1000
    """How long a dropped file stays. Must be longer than the longest scan that takes no pin."""
    batch_count: int = 1000
    """Files between two commits."""
    max_file_count: int = 10_000
    """Files that one pass deletes at most; the next pass deletes the rest."""


class WaitingFile(NamedTuple):
    """A dropped file, and the time of the store from which on it is deleted."""

    file: DroppedObject
    due_ms: int


class CollectReport(NamedTuple):
    """The result of one pass, or of a look at what one would do."""

    deleted_count: int = 0
    deleted_bytes: int = 0
    waiting_count: int = 0
    """Dropped files that were not deleted."""
    clock_skew_ms: int = 0
    refusal: str = ""
    """Why nothing is deleted of what is due: the own clock is wrong, or a pin holds everything."""
    deleted: tuple[WaitingFile, ...] = ()
    """The first `MAX_LISTED_COUNT` files of these."""
    waiting: tuple[WaitingFile, ...] = ()
    """The first `MAX_LISTED_COUNT` dropped files that were not deleted, those that are due next first."""
    waiting_bytes: int = 0

    @property
    def is_refused(self) -> bool:
        return bool(self.refusal)

    def plus(self, other: CollectReport) -> CollectReport:
        waiting = sorted((*self.waiting, *other.waiting), key=lambda one: one.due_ms)
        return CollectReport(
            deleted_count=self.deleted_count + other.deleted_count,
            deleted_bytes=self.deleted_bytes + other.deleted_bytes,
            waiting_count=self.waiting_count + other.waiting_count,
            clock_skew_ms=max(self.clock_skew_ms, other.clock_skew_ms, key=abs),
            refusal=self.refusal or other.refusal,
            deleted=(*self.deleted, *other.deleted)[:MAX_LISTED_COUNT],
            waiting=tuple(waiting[:MAX_LISTED_COUNT]),
            waiting_bytes=self.waiting_bytes + other.waiting_bytes,
        )


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

    def run(self, stop: StopSignal | None = None, *, is_dry_run: bool = False) -> CollectReport:
        """Delete the files that are due; a dry run only says which. Raises StoreError, and StoppingError
        between two batches of files once `stop` is set; files deleted before stay deleted.
        """
        self._metadata.refresh(dated=True)
        report = CollectReport(clock_skew_ms=self._metadata.clock_skew_ms)
        for log in self._logs:
            state = log.refresh()
            refusal = self._refusal(state)
            due = [] if refusal else self._due(state)[: self._settings.max_file_count]
            if due and not is_dry_run:
                due = self._collect(log, state, stop or StopSignal())
                state = log.state()
            gone = {file.name for file in due}
            waiting = [file for file in state.dropped if file.name not in gone]
            report = report.plus(
                CollectReport(
                    deleted_count=len(due),
                    deleted_bytes=sum(file.size_bytes for file in due),
                    waiting_count=len(waiting),
                    refusal=refusal,
                    deleted=self._listed(due),
                    waiting=self._listed(waiting),
                    waiting_bytes=sum(file.size_bytes for file in waiting),
                )
            )
        return report

    def _refusal(self, state: HeadState) -> str:
        if not self._metadata.is_clock_trusted:
            return WRONG_CLOCK
        return PINNED if state.pins else ""

    def _listed(self, files: Iterable[DroppedObject]) -> tuple[WaitingFile, ...]:
        found = sorted(files, key=lambda file: file.time_ms)[:MAX_LISTED_COUNT]
        return tuple(WaitingFile(file, file.time_ms + self._settings.grace_ms) for file in found)

    def _collect(self, log: CollectedLog, state: HeadState, stop: StopSignal) -> list[DroppedObject]:
        if not all(map(state.is_deletable, self._due(state))):
            log.fold()
            state = log.state()
        due = [file for file in self._due(state) if state.is_deletable(file)][: self._settings.max_file_count]
        for start in range(0, len(due), self._settings.batch_count):
            stop.check()
            files = due[start : start + self._settings.batch_count]
            self._store.delete_many([file.key(log.layout) for file in files])
            log.forget([file.name for file in files])
        return due

    def _due(self, state: HeadState) -> list[DroppedObject]:
        end_ms = self._metadata.store_date_ms - self._settings.grace_ms
        return [file for file in state.dropped if file.time_ms <= end_ms]
