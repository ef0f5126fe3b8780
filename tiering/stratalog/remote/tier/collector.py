"""The collector: deletes from the store what no reader and no commit can need any more, log by log.

1. Pins whose time is over by the store's clock end, in a commit.
2. Once a day, history older than `history_ms` is dropped, except what the state of a pin needs.
3. A dropped file is deleted when
   * it was dropped longer ago than the grace period, by the store's clock: readers with an older head have
     finished;
   * no pin holds it: it was not live in the pinned state, and that is not built from it;
   * the commit that brought it is folded into a checkpoint: opening the shard reads the directory of every
     object that an inline commit brings, so the collector folds first where necessary. It does so long before
     the deletion: a pin of a commit behind the drop needs a checkpoint that has the file already.
   A commit says first which files these are, so that no pin of an earlier commit can come to hold them any
   more; what such a pin holds by then stays. Files are deleted in bulk, then forgotten in a commit. After a
   crash in between, the next pass deletes missing files again, which is no error. A file that the store
   keeps, because it is locked, stays dropped and is tried again after a day; it holds up no other file.
   The files that a fold replaced go together in the same way: the root of its checkpoint names them, and one
   name is forgotten once they are gone. Those of them that a pin holds, or that the store keeps, become
   dropped files of their own then, so that a pin holds no more than what it needs. Only a list of which the
   store lets nothing go at all stays a list, and is tried again after a day. The root is one of the files of
   the next fold, and stays until its own list is forgotten.
4. Files that were never committed are swept (`orphan_sweep`).

Topics play no part in this: a store without any is collected as well. A pass deletes dropped files turn by
turn until none is due or its time is over, so that a backlog falls however many files folds and compactions
drop. Its other work is bounded by counts. The next pass goes on where it ended. If the own clock does not
agree with the store's, nothing of this happens. Until a metadata version with their actions is finalized, 1,
2 and 4 wait; before that of pins of earlier commits, 3 goes on without its first commit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.document_ref import (
    DroppedObject,
    FileKind,
    Replacement,
    TrackedFile,
    newest_seq_of,
)
from stratalog.remote.metadata.head.head_actions import RaiseHorizon
from stratalog.remote.metadata.head.head_judge import trimmable_before
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_layout import first_seq_of_history
from stratalog.remote.tier.allowed_deletion import delete_allowed
from stratalog.remote.tier.orphan_sweep import Orphan, OrphanKind, OrphanSweep, SweepReport, SweepSettings
from stratalog.remote.tier.replaced_files import ReplacedFiles, free_files

MAX_LISTED_COUNT = 1000
"""Files that a report names."""
WRONG_CLOCK = (
    "the clocks of this server and of the store differ by more than five minutes; correct the wrong one"
)
REFUSED_RETRY_MS = 24 * 60 * 60 * 1000
"""Time after which the deletion of a file that the store keeps is tried again."""
_FOLDS_IN_GRACE = 8
"""A file's commit is folded once it has been dropped for the grace divided by this. Commits that are younger
than the rest of the grace have a checkpoint before them, then, that needs no deleted file."""
_TRIMMED_IN_A_COMMIT = 200
"""History files that one commit drops: their names are in the head until it is folded."""
_NO_ORPHANS: Mapping[OrphanKind, int] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Settings of the collector. Immutable."""

    grace_ms: int = 24 * 60 * 60 * 1000
    """How long a dropped file or an orphan stays. Must be longer than the longest scan that takes no pin, and
    than the longest time between the beginning of a PUT and its commit."""
    history_ms: int = 30 * 24 * 60 * 60 * 1000
    """How long commits stay in the history."""
    batch_count: int = 1000
    """Files between two commits."""
    max_file_count: int = 10_000
    """Dropped files that one turn deletes at most, and orphans that one pass deletes; the next one deletes
    the rest."""
    max_pass_ms: int = 4 * 60 * 1000
    """How long a pass begins further turns while more dropped files are due, by the store's clock."""
    max_listed_count: int = 100_000
    """Names of data, pages and checkpoints that one pass lists at most; the next pass goes on behind them."""


class WaitingFile(NamedTuple):
    """A dropped file, and the time of the store from which on it is deleted."""

    file: DroppedObject
    due_ms: int
    is_pinned: bool = False
    """A pin holds it, longer than that if need be."""


class CollectReport(NamedTuple):
    """The result of one pass, or of a look at what one would do."""

    deleted_count: int = 0
    """Dropped files that were deleted."""
    deleted_bytes: int = 0
    waiting_count: int = 0
    """Dropped files that were not deleted."""
    waiting_bytes: int = 0
    pinned_count: int = 0
    """Those of them that are due, and that a pin holds."""
    kept_count: int = 0
    """Dropped files and orphans that are due, and that the store refuses to delete."""
    clock_skew_ms: int = 0
    refusal: str = ""
    """Why nothing at all is deleted: the own clock is wrong."""
    deleted: tuple[WaitingFile, ...] = ()
    """The first `MAX_LISTED_COUNT` files of these."""
    waiting: tuple[WaitingFile, ...] = ()
    """The first `MAX_LISTED_COUNT` dropped files that were not deleted, those that are due next first. Those
    that a fold replaced are counted, and not named."""
    orphan_counts: Mapping[OrphanKind, int] = _NO_ORPHANS
    """Orphans that were deleted."""
    orphan_bytes: Mapping[OrphanKind, int] = _NO_ORPHANS
    """Size of these."""
    orphans: tuple[Orphan, ...] = ()
    """The first `MAX_LISTED_COUNT` of these."""
    waiting_orphans: tuple[Orphan, ...] = ()
    """The first `MAX_LISTED_COUNT` orphans that were found and stay for a later pass."""
    trimmed_count: int = 0
    """History files that were dropped. They are dropped files from then on."""
    expired_pin_count: int = 0
    """Pins that ended because their time was over."""
    unfinalized_count: int = 0
    """Logs whose pins, history and orphans wait for an operator to finalize a metadata version."""
    failures: tuple[str, ...] = ()
    """Work that the store refuses; a text for people each."""

    @property
    def is_refused(self) -> bool:
        return bool(self.refusal)

    @property
    def all_deleted_count(self) -> int:
        """Dropped files and orphans that were deleted."""
        return self.deleted_count + sum(self.orphan_counts.values())

    @property
    def all_deleted_bytes(self) -> int:
        return self.deleted_bytes + sum(self.orphan_bytes.values())

    def plus(self, other: CollectReport) -> CollectReport:
        waiting = sorted((*self.waiting, *other.waiting), key=lambda one: one.due_ms)
        return CollectReport(
            deleted_count=self.deleted_count + other.deleted_count,
            deleted_bytes=self.deleted_bytes + other.deleted_bytes,
            waiting_count=self.waiting_count + other.waiting_count,
            waiting_bytes=self.waiting_bytes + other.waiting_bytes,
            pinned_count=self.pinned_count + other.pinned_count,
            kept_count=self.kept_count + other.kept_count,
            clock_skew_ms=max(self.clock_skew_ms, other.clock_skew_ms, key=abs),
            refusal=self.refusal or other.refusal,
            deleted=(*self.deleted, *other.deleted)[:MAX_LISTED_COUNT],
            waiting=tuple(waiting[:MAX_LISTED_COUNT]),
            orphan_counts=_sum(self.orphan_counts, other.orphan_counts),
            orphan_bytes=_sum(self.orphan_bytes, other.orphan_bytes),
            orphans=(*self.orphans, *other.orphans)[:MAX_LISTED_COUNT],
            waiting_orphans=(*self.waiting_orphans, *other.waiting_orphans)[:MAX_LISTED_COUNT],
            trimmed_count=self.trimmed_count + other.trimmed_count,
            expired_pin_count=self.expired_pin_count + other.expired_pin_count,
            unfinalized_count=self.unfinalized_count + other.unfinalized_count,
            failures=(*self.failures, *other.failures),
        )


class Collector:
    """Deletes what the store no longer needs. Thread-safe: the sweeps remember their places under their own
    locks, and two passes at once do the same harmless work."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        catalog: Catalog | None = None,
        settings: CollectorSettings | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._settings = settings or CollectorSettings()
        sweep = SweepSettings(
            grace_ms=self._settings.grace_ms,
            batch_count=self._settings.batch_count,
            max_file_count=self._settings.max_file_count,
            max_listed_count=self._settings.max_listed_count,
        )
        logs: tuple[CommittedLog[Any], ...] = (metadata,) if catalog is None else (metadata, catalog)
        self._collections = tuple(
            _LogCollection(store, log, self._settings, OrphanSweep(store, log, sweep)) for log in logs
        )

    def run(
        self, stop: StopSignal | None = None, *, is_dry_run: bool = False, is_whole: bool = False
    ) -> CollectReport:
        """Delete what is due; a dry run only says what. `is_whole`: list all names and trim history now, and
        not once a day. Raises StoreError, and StoppingError between two batches of files once `stop` is set;
        files deleted before stay deleted.
        """
        stop = stop or StopSignal()
        self._metadata.refresh(dated=True)
        report = CollectReport(clock_skew_ms=self._metadata.clock_skew_ms)
        now_ms = self._metadata.store_date_ms
        is_trusted = self._metadata.is_clock_trusted
        for collection in self._collections:
            stop.check()
            if not is_trusted:
                report = report.plus(collection.refused())
            elif is_dry_run:
                report = report.plus(collection.look(now_ms, stop))
            else:
                report = report.plus(collection.run(now_ms, stop, is_whole=is_whole))
        return report


class _Left(NamedTuple):
    """A replacement whose files the store all refused to delete."""

    kept_count: int
    """Those that it refused."""
    until_ms: int
    """When they are tried again, by the store's clock."""


class _LogCollection:
    """Collects the files of one log. Thread-safe as the collector is: two passes at once may both try a file
    that the store keeps, or lose the note of one, which is then tried again."""

    def __init__(
        self,
        store: ObjectStore,
        log: CommittedLog[Any],
        settings: CollectorSettings,
        sweep: OrphanSweep,
    ) -> None:
        self._store = store
        self._log = log
        self._settings = settings
        self._sweep = sweep
        self._kept_until_ms: Mapping[str, int] = {}
        """Dropped files that the store refused to delete, and when each is tried again, by its clock."""
        self._replaced = ReplacedFiles(store, log.layout)
        self._left: Mapping[str, _Left] = {}
        """By the names of the replacements."""

    def refused(self) -> CollectReport:
        """The report of a log of which nothing may be deleted."""
        return self._dropped_report(self._log.refresh(), [], WRONG_CLOCK, 0)

    def look(self, now_ms: int, stop: StopSignal) -> CollectReport:
        """The report of a pass that deletes nothing, commits nothing, and counts pins that are over as
        ended.
        """
        state: HeadState = self._log.refresh()
        pins = tuple(pin for pin in state.pins if pin.until_ms > now_ms)
        seen = dataclasses.replace(state, pins=pins)
        kept = self._still_kept(state, now_ms)
        due = [file for file in self._due(seen, now_ms) if file.name not in kept]
        report = self._dropped_report(seen, due, "", now_ms)._replace(kept_count=len(kept))
        report = report.plus(self._look_at_replaced(seen, now_ms, stop))
        if not self._log.is_finalized(RaiseHorizon):
            return _with_kept(report)._replace(unfinalized_count=1)
        swept = self._sweep.run(now_ms, stop, is_dry_run=True)
        before, files = self._trimmable(state, now_ms)
        return _with_kept(report.plus(_sweep_report(swept)))._replace(
            trimmed_count=len(files) if before else 0, expired_pin_count=len(state.pins) - len(pins)
        )

    def run(self, now_ms: int, stop: StopSignal, *, is_whole: bool) -> CollectReport:
        """Delete what is due, in the order of the module's theory."""
        state: HeadState = self._log.refresh()
        if not self._log.is_finalized(RaiseHorizon):
            return self._collect(now_ms, stop)._replace(unfinalized_count=1)
        expired: tuple[int, ...] = ()
        if any(pin.until_ms <= now_ms for pin in state.pins):
            expired = self._log.unpin_expired(now_ms)
        trimmed_count = 0
        if is_whole or self._sweep.is_whole_due(now_ms):
            trimmed_count = self._trim(now_ms, stop)
        report = self._collect(now_ms, stop)
        swept = self._sweep.run(now_ms, stop, is_whole=is_whole)
        return report.plus(_sweep_report(swept))._replace(
            trimmed_count=trimmed_count, expired_pin_count=len(expired)
        )

    def _still_kept(self, state: HeadState, now_ms: int) -> dict[str, int]:
        """The dropped files that the store has refused to delete and that are not tried yet."""
        dropped = state.dropped_objects
        return {
            name: until_ms
            for name, until_ms in self._kept_until_ms.items()
            if until_ms > now_ms and name in dropped
        }

    def _due(self, state: HeadState, now_ms: int) -> list[DroppedObject]:
        """The files whose grace is over and that nothing holds."""
        return [file for file in self._past_grace(state, now_ms) if not state.is_held(file)]

    def _past_grace(self, state: HeadState, now_ms: int) -> list[DroppedObject]:
        return _dropped_by(state, now_ms - self._settings.grace_ms)

    def _collect(self, now_ms: int, stop: StopSignal) -> CollectReport:
        """Delete and forget dropped files, then those of replacements."""
        gone, failures = self._collect_dropped(now_ms, stop)
        replaced = self._collect_replaced(now_ms, stop)
        state: HeadState = self._log.state()
        self._left = {one.name: self._left[one.name] for one in state.replacements if one.name in self._left}
        kept_count = len(self._kept_until_ms) + sum(left.kept_count for left in self._left.values())
        report = self._dropped_report(state, gone, "", now_ms).plus(replaced)
        return report._replace(kept_count=kept_count, failures=(*failures, *replaced.failures))

    def _collect_replaced(self, now_ms: int, stop: StopSignal) -> CollectReport:
        """Delete the files of replacements whose grace is over, those of the oldest fold first."""
        report = CollectReport()
        has_begun = False
        for replacement in self._old_replacements(self._log.state(), now_ms):
            left = self._left.get(replacement.name)
            if left is not None and now_ms < left.until_ms:
                continue
            if has_begun and not self._has_time(now_ms):
                break
            has_begun = True
            report = report.plus(self._collect_list(replacement, now_ms, stop))
        return report

    def _collect_list(self, replacement: Replacement, now_ms: int, stop: StopSignal) -> CollectReport:
        """Delete the files of a replacement that nothing holds, make rows of the others, and forget it."""
        files = self._replaced.read(replacement)
        if files is None:
            return self._without_list(replacement)
        free, held = free_files(self._log.state(), files)
        if free:
            # Otherwise nothing is said, so what becomes free meanwhile stays, as a row.
            free, held = free_files(self._log.begin_deletion([replacement]), files)
        kept: set[str] = set()
        failures: list[str] = []
        for start in range(0, len(free), self._settings.batch_count):
            stop.check()
            keys = [file.key(self._log.layout) for file in free[start : start + self._settings.batch_count]]
            kept_keys, failure = delete_allowed(self._store, keys)
            kept.update(kept_keys)
            failures += failure
        gone = [file for file in free if file.key(self._log.layout) not in kept]
        refused = [file for file in free if file.key(self._log.layout) in kept]
        retry_ms = now_ms + REFUSED_RETRY_MS
        if refused and not gone:
            # Rows would fill the state soon where the store lets nothing go at all.
            self._left = {**self._left, replacement.name: _Left(len(refused), retry_ms)}
        else:
            self._log.finish_list(replacement, [*held, *refused])
            later = dict.fromkeys((file.name for file in refused), retry_ms)
            self._kept_until_ms = {**self._kept_until_ms, **later}
        return CollectReport(
            deleted_count=len(gone),
            deleted_bytes=sum(file.size_bytes for file in gone),
            deleted=self._listed(gone, set()),
            failures=tuple(failures[:1]),
        )

    def _without_list(self, replacement: Replacement) -> CollectReport:
        """Forget a replacement whose root is missing or damaged, unless a pin may hold one of its files. They
        are orphans from then on."""
        state: HeadState = self._log.refresh()
        if state.replacement(replacement.name) is None:
            return CollectReport()  # another collector has finished it
        if not _has_earlier_pin(state, replacement):
            state = self._log.begin_deletion([replacement])
        if _has_earlier_pin(state, replacement):
            return CollectReport()
        self._log.finish_list(replacement, [])
        problem = (
            f"the checkpoint {replacement.name}, which lists {replacement.file_count} replaced files, is"
            " missing or damaged: what is left of them is deleted as orphans"
        )
        return CollectReport(failures=(problem,))

    def _look_at_replaced(self, state: HeadState, now_ms: int, stop: StopSignal) -> CollectReport:
        """The report of a pass over replacements that deletes nothing."""
        report = CollectReport()
        for replacement in self._old_replacements(state, now_ms):
            stop.check()
            left = self._left.get(replacement.name)
            if left is not None and now_ms < left.until_ms:
                report = report.plus(CollectReport(kept_count=left.kept_count))
                continue
            files = self._replaced.read(replacement)
            if files is None:
                continue
            free, held = free_files(state, files)
            others = (one for one in state.replacements if one is not replacement)
            state = dataclasses.replace(state, replacements=tuple(others))
            size_bytes = sum(file.size_bytes for file in free)
            found = CollectReport(
                deleted_count=len(free),
                deleted_bytes=size_bytes,
                waiting_count=-len(free),
                waiting_bytes=-size_bytes,
                pinned_count=sum(state.holding_pin(file) is not None for file in held),
                deleted=self._listed(free, set()),
            )
            report = report.plus(found)
        return report

    def _old_replacements(self, state: HeadState, now_ms: int) -> list[Replacement]:
        """The replacements whose grace is over, in the order of their folds."""
        return [one for one in state.replacements if one.time_ms <= now_ms - self._settings.grace_ms]

    def _collect_dropped(self, now_ms: int, stop: StopSignal) -> tuple[list[DroppedObject], tuple[str, ...]]:
        """Delete and forget dropped files; returns them, and the refusals of the store."""
        state: HeadState = self._log.state()
        early_ms = now_ms - self._settings.grace_ms // _FOLDS_IN_GRACE
        if any(
            not state.is_deletable(file) and state.holding_pin(file) is None
            for file in _dropped_by(state, early_ms)
        ):
            self._log.fold()
        deleted: list[DroppedObject] = []
        failures: list[str] = []
        while True:
            gone, refusals, is_more = self._collect_some(now_ms, stop)
            deleted += gone
            failures += refusals
            if not is_more or not self._has_time(now_ms):
                return deleted, tuple(failures[:1])

    def _has_time(self, now_ms: int) -> bool:
        """Whether a pass that began at `now_ms` has time for another turn."""
        date_ms = self._log.expected_date_ms
        return date_ms is not None and date_ms < now_ms + self._settings.max_pass_ms

    def _collect_some(self, now_ms: int, stop: StopSignal) -> tuple[list[DroppedObject], list[str], bool]:
        """One turn: delete and forget at most `max_file_count` files. Returns them, the refusals of the
        store, and whether more are due."""
        state: HeadState = self._log.state()
        kept = self._still_kept(state, now_ms)
        due = [
            file for file in self._due(state, now_ms) if state.is_deletable(file) and file.name not in kept
        ]
        is_more = len(due) > self._settings.max_file_count
        due = due[: self._settings.max_file_count]
        state = self._log.begin_deletion(due)
        due = [file for file in due if not state.is_held(file)]
        deleted: list[DroppedObject] = []
        failures: list[str] = []
        for start in range(0, len(due), self._settings.batch_count):
            stop.check()
            files = due[start : start + self._settings.batch_count]
            refused, failure = delete_allowed(self._store, [file.key(self._log.layout) for file in files])
            failures += failure
            kept.update(
                (file.name, now_ms + REFUSED_RETRY_MS)
                for file in files
                if file.key(self._log.layout) in refused
            )
            gone = [file for file in files if file.name not in kept]
            if gone:
                self._log.forget([file.name for file in gone])
            deleted += gone
        self._kept_until_ms = kept
        return deleted, failures, is_more

    def _trim(self, now_ms: int, stop: StopSignal) -> int:
        """Drop old history, one commit for each `_TRIMMED_IN_A_COMMIT` files; returns their number."""
        before, files = self._trimmable(self._log.state(), now_ms)
        count = 0
        for start in range(0, len(files), _TRIMMED_IN_A_COMMIT):
            stop.check()
            batch = files[start : start + _TRIMMED_IN_A_COMMIT]
            is_last = start + len(batch) == len(files)
            end = before if is_last else newest_seq_of(FileKind.HISTORY, batch[-1].name) + 1
            count += len(self._log.trim_history(end, batch))
        return count

    def _trimmable(self, state: HeadState, now_ms: int) -> tuple[int, list[TrackedFile]]:
        """The first commit whose history stays, and the history files before it, oldest first; at most as
        many as one pass deletes. No file of these is needed, committed or not.
        """
        before = min(self._log.seq_at(now_ms - self._settings.history_ms) + 1, trimmable_before(state))
        if before <= state.history_start_seq:
            return 0, []
        found: list[TrackedFile] = []
        for info in self._store.list(FileKind.HISTORY.key(self._log.layout, "")):
            name = info.key.rpartition("/")[2]
            if not FileKind.HISTORY.is_name(name):
                continue
            if first_seq_of_history(name) >= before or len(found) == self._settings.max_file_count:
                break
            if newest_seq_of(FileKind.HISTORY, name) < before and name not in state.dropped_objects:
                found.append(TrackedFile(FileKind.HISTORY, name, info.size))
        found.sort(key=lambda file: newest_seq_of(FileKind.HISTORY, file.name))
        if found:
            before = min(before, newest_seq_of(FileKind.HISTORY, found[-1].name) + 1)
        return before, found

    def _dropped_report(
        self, state: HeadState, gone: list[DroppedObject], refusal: str, now_ms: int
    ) -> CollectReport:
        names = {file.name for file in gone}
        waiting = [file for file in state.dropped if file.name not in names]
        held = {file.name for file in waiting if state.holding_pin(file) is not None}
        return CollectReport(
            deleted_count=len(gone),
            deleted_bytes=sum(file.size_bytes for file in gone),
            waiting_count=len(waiting) + sum(one.file_count for one in state.replacements),
            waiting_bytes=sum(file.size_bytes for file in waiting)
            + sum(one.size_bytes for one in state.replacements),
            pinned_count=sum(file.name in held for file in self._past_grace(state, now_ms)),
            refusal=refusal,
            deleted=self._listed(gone, held),
            waiting=self._listed(waiting, held),
        )

    def _listed(self, files: Iterable[DroppedObject], held: set[str]) -> tuple[WaitingFile, ...]:
        found = sorted(files, key=self._due_ms)[:MAX_LISTED_COUNT]
        return tuple(WaitingFile(file, self._due_ms(file), file.name in held) for file in found)

    def _due_ms(self, file: DroppedObject) -> int:
        """The time before which the file is not deleted: one that the store keeps is tried later."""
        return max(file.time_ms + self._settings.grace_ms, self._kept_until_ms.get(file.name, 0))


def _with_kept(report: CollectReport) -> CollectReport:
    """The report of a look, which says also what the store has refused to delete before."""
    if not report.kept_count:
        return report
    kept = (
        f"due files that the store has refused to delete: {report.kept_count}; they are locked, or the"
        " server may not delete them, and are tried again a day later"
    )
    return report._replace(failures=(*report.failures, kept))


def _has_earlier_pin(state: HeadState, replacement: Replacement) -> bool:
    """Whether a pin may hold files that a fold replaced."""
    return any(pin.state_seq < replacement.seq for pin in state.pins)


def _dropped_by(state: HeadState, time_ms: int) -> list[DroppedObject]:
    """The files that were dropped by this time, in the order of their commits."""
    return [file for file in state.dropped if file.time_ms <= time_ms]


def _sweep_report(swept: SweepReport) -> CollectReport:
    counts: Counter[OrphanKind] = Counter()
    sizes: Counter[OrphanKind] = Counter()
    for orphan in swept.deleted:
        counts[orphan.kind] += 1
        sizes[orphan.kind] += orphan.size_bytes
    return CollectReport(
        orphan_counts=MappingProxyType(counts),
        orphan_bytes=MappingProxyType(sizes),
        kept_count=swept.kept_count,
        orphans=swept.deleted[:MAX_LISTED_COUNT],
        waiting_orphans=swept.waiting[:MAX_LISTED_COUNT],
        failures=swept.failures,
    )


def _sum(one: Mapping[OrphanKind, int], other: Mapping[OrphanKind, int]) -> Mapping[OrphanKind, int]:
    kinds = [kind for kind in OrphanKind if kind in one or kind in other]
    return MappingProxyType({kind: one.get(kind, 0) + other.get(kind, 0) for kind in kinds})
