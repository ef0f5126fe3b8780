"""Finds and deletes orphans: files of a log that no commit refers to, and unfinished multipart uploads.

A crash between a PUT and its commit, a refused job or a lost race leaves files that the state does not know.
A listing alone cannot tell them from files that are about to be committed. So a sweep

1. lists names, which sort by birth, up to a commit that is older than the grace, and keeps those that the
   head does not refer to: the candidates. Without any it ends here;
2. commits `raise_horizon` to that commit. From now on whatever was born before is refused: no candidate can
   be committed any more;
3. reads the head again, and deletes the candidates born before the horizon that this head does not refer to.
   One that was committed before step 2 is in that head.

A crash at any point leaves a raised horizon, or fewer orphans; the next sweep repeats the rest.

A dry run lists all files that no commit refers to, with the time before which no sweep deletes them. Files
that were put while it listed may have been committed since, so it compares with a second head. What is left
may still be an upload under way: only the grace tells.

The birth of a file is the newest commit that its writer knew, so a file is young until a later commit is
older than the grace. In a log without later commits the horizon's own commit is that one.

A sweep lists only the young end: names from where the last one ended. All names are listed once a day,
because a PUT may land late; with them history files (their names do not sort by birth), probes and multipart
uploads. A history file is live if the chain from the head to `history_start_seq` contains it. The commits of
a file follow from its LAST, so a listing shows the chain; only where two files end at the same commit the
later file is read, which names the right one.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stratalog.base.errors import (
    ObjectNotFoundError,
    StoreAccessDeniedError,
    StoreNotUsableError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.protocol import ObjectInfo, ObjectStore, UnfinishedUpload
from stratalog.remote.metadata.head.checkpoint import TimePoint
from stratalog.remote.metadata.head.committed_log import CommittedLog, References
from stratalog.remote.metadata.head.document_ref import FileKind, newest_seq_of
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.store_layout import first_seq_of_history, seq_prefix
from stratalog.remote.tier.allowed_deletion import delete_allowed
from stratalog.remote.tier.replaced_files import ReplacedFiles


class OrphanKind(enum.Enum):
    """Kinds of garbage that no commit has dropped."""

    DATA = "data"
    PAGE = "page"
    CHECKPOINT = "checkpoint"
    HISTORY = "history"
    SCRATCH = "scratch"
    """Probes."""
    UPLOAD = "upload"
    """Unfinished multipart uploads; their size is unknown."""


_BY_BIRTH = (
    (FileKind.DATA, OrphanKind.DATA),
    (FileKind.PAGE, OrphanKind.PAGE),
    (FileKind.CHECKPOINT, OrphanKind.CHECKPOINT),
)
"""Kinds whose names sort by birth."""
NEVER_MS = -1


class Orphan(NamedTuple):
    """A file that no commit refers to, or an unfinished multipart upload."""

    kind: OrphanKind
    key: str
    size_bytes: int
    modified_ms: int
    """The time of its write, by the store's clock."""
    due_ms: int = NEVER_MS
    """The time of the store's clock before which no sweep deletes it; -1 outside of a dry run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Settings of a sweep. Immutable."""

    grace_ms: int
    """Files that were begun later than this ago are no orphans yet."""
    batch_count: int = 1000
    """Files of one deletion."""
    max_file_count: int = 10_000
    """Orphans that one sweep deletes at most; the next sweep deletes the rest."""
    max_listed_count: int = 100_000
    """Names of data, pages and checkpoints that a periodic sweep lists; the next one goes on behind them."""
    whole_period_ms: int = 24 * 60 * 60 * 1000
    """How often all names are listed."""


class SweepReport(NamedTuple):
    """The result of a sweep."""

    deleted: tuple[Orphan, ...] = ()
    """The deleted orphans; those that would be deleted in a dry run."""
    waiting: tuple[Orphan, ...] = ()
    """Candidates that were found and stay for a later sweep; in a dry run all files that no commit refers to
    and that stay for now, uploads under way among them."""
    failures: tuple[str, ...] = ()
    """Work that the store refuses; a text for people each."""
    kept_count: int = 0
    """Those of `waiting` that the store refuses to delete; in a dry run those that it has refused."""


class _Dues:
    """The times before which no sweep deletes files of a log. Immutable.

    A file goes once a commit behind its birth is older than the grace. In a log without one the next commit
    is still to come.
    """

    def __init__(self, points: Sequence[TimePoint], now_ms: int, grace_ms: int) -> None:
        """`points` are in the order of their commits."""
        self._seqs = [point.seq for point in points]
        # The earliest time from each point on: clocks of writers may differ.
        earliest = itertools.accumulate((point.time_ms for point in reversed(points)), min, initial=now_ms)
        self._times_ms = [*earliest][::-1]
        self._grace_ms = grace_ms

    def of(self, orphan: Orphan) -> int:
        """The time of one file."""
        if orphan.kind is OrphanKind.SCRATCH:
            return orphan.modified_ms + self._grace_ms
        return self._times_ms[bisect.bisect_right(self._seqs, _birth(orphan))] + self._grace_ms


@dataclasses.dataclass(slots=True)
class _Scan:
    """The place of a listing that goes on in the next sweep. Not thread-safe: one sweep has it."""

    is_whole: bool
    seq: int
    """The commit that is older than the grace: candidates were born at or before it."""
    begun_ms: int
    level: int = 0
    after: str = ""
    left_count: int = sys.maxsize
    """Names that this sweep may still list, of those that sort by birth."""
    is_done: bool = False
    has_young: bool = False
    """Whether files are candidates whose grace is not over."""
    history_names: tuple[str, ...] = ()
    """All history files that were listed."""


class OrphanSweep:
    """Sweeps one log. Thread-safe: `_lock` lets one sweep run at a time and guards its place."""

    def __init__(self, store: ObjectStore, log: CommittedLog[Any], settings: SweepSettings) -> None:
        self._store = store
        self._log = log
        self._settings = settings
        self._replaced = ReplacedFiles(store, log.layout)
        self._lock = threading.Lock()
        self._swept_seq = 0
        """Names born before were listed by a finished sweep."""
        self._whole_ms = NEVER_MS
        self._scan: _Scan | None = None
        self._kept_until_ms: Mapping[str, int] = {}
        """Orphans that the store refused to delete, and about when each is tried again, by its clock."""

    def is_whole_due(self, now_ms: int) -> bool:
        """Whether all names are listed next: daily, and first of all."""
        return self._whole_ms == NEVER_MS or now_ms - self._whole_ms >= self._settings.whole_period_ms

    def run(
        self, now_ms: int, stop: StopSignal, *, is_dry_run: bool = False, is_whole: bool = False
    ) -> SweepReport:
        """Delete orphans; `now_ms` is the time of the store's clock. A dry run only says which would go.

        With `is_whole` all names are listed now. Raises StoreError, and StoppingError between two batches.
        """
        with self._lock:
            if is_dry_run:
                old_seq = self._old_seq(now_ms)
                scan = _Scan(is_whole=True, seq=old_seq, begun_ms=now_ms, has_young=True)
                return self._dry_run(scan, now_ms, stop)
            scan, self._scan = self._next_scan(now_ms, is_whole=is_whole), None
            report = self._run(scan, now_ms, stop)
            # Only now: after a failure the same names are listed again.
            if scan.is_done:
                self._swept_seq = max(self._swept_seq, scan.seq)
                self._whole_ms = scan.begun_ms if scan.is_whole else self._whole_ms
            else:
                self._scan = scan
            return report

    def _next_scan(self, now_ms: int, *, is_whole: bool) -> _Scan:
        if self._scan is not None and not is_whole:
            scan = self._scan
        else:
            scan = _Scan(
                is_whole=is_whole or self.is_whole_due(now_ms), seq=self._old_seq(now_ms), begun_ms=now_ms
            )
        scan.left_count = sys.maxsize if is_whole else self._settings.max_listed_count
        return scan

    def _old_seq(self, now_ms: int) -> int:
        return self._log.seq_at(now_ms - self._settings.grace_ms)

    def _dry_run(self, scan: _Scan, now_ms: int, stop: StopSignal) -> SweepReport:
        references = self._log.references(self._replaced.names)
        dues = _Dues(self._log.commit_times(), now_ms, self._settings.grace_ms)
        going: list[Orphan] = []
        waiting: list[Orphan] = []
        for one in self._candidates(scan, references, now_ms, stop):
            found = one._replace(due_ms=max(dues.of(one), self._kept_until_ms.get(one.key, 0)))
            some = going if found.due_ms <= now_ms else waiting
            if len(some) < self._settings.max_file_count:
                some.append(found)
        going = self._uncommitted(going, scan.history_names)
        waiting = self._uncommitted(waiting, scan.history_names)
        uploads, failures = self._uploads(sys.maxsize, stop)
        for upload in uploads:
            found = _orphan_of(upload, upload.begun_ms + self._settings.grace_ms)
            (going if found.due_ms <= now_ms else waiting).append(found)
        kept_count = sum(self._kept_until_ms.get(one.key, 0) > now_ms for one in waiting)
        return SweepReport(tuple(going), tuple(waiting), failures, kept_count)

    def _run(self, scan: _Scan, now_ms: int, stop: StopSignal) -> SweepReport:
        references = self._log.references(self._replaced.names)
        candidates = self._candidates(scan, references, now_ms, stop)
        files = self._first(candidates)
        scan.is_done = len(files) < self._settings.max_file_count and scan.left_count > 0
        horizon_seq = self._raise_horizon(scan.seq, files)
        due = self._still_orphans(files, horizon_seq, scan.history_names)
        kept: set[str] = set()
        refusals: list[str] = []
        for start in range(0, len(due), self._settings.batch_count):
            stop.check()
            batch = due[start : start + self._settings.batch_count]
            refused, failure = delete_allowed(self._store, [one.key for one in batch])
            kept.update(refused)
            refusals += failure
        retry_ms = now_ms + self._settings.whole_period_ms
        self._kept_until_ms = {
            key: until_ms for key, until_ms in self._kept_until_ms.items() if until_ms > now_ms
        } | dict.fromkeys(kept, retry_ms)
        deleted = [one for one in due if one.key not in kept]
        gone = {one.key for one in deleted}
        waiting = tuple(one for one in files if one.key not in gone)
        old_ms = now_ms - self._settings.grace_ms
        uploads, failures = self._uploads(old_ms, stop) if scan.is_done and scan.is_whole else ([], ())
        for upload in uploads:
            stop.check()
            self._store.abort_upload(upload)
        return SweepReport(
            (*deleted, *map(_orphan_of, uploads)), waiting, (*refusals[:1], *failures), len(kept)
        )

    def _first(self, candidates: Iterator[Orphan]) -> list[Orphan]:
        """The first candidates, as many as one sweep deletes."""
        return list(itertools.islice(candidates, self._settings.max_file_count))

    def _raise_horizon(self, seq: int, files: Iterable[Orphan]) -> int:
        """Commit the horizon if a file of the log's tree is a candidate; returns the horizon."""
        if seq and any(one.kind is not OrphanKind.SCRATCH for one in files):
            self._log.raise_horizon(seq)
        state: HeadState = self._log.state()
        return state.orphan_horizon_seq

    def _still_orphans(
        self, files: Sequence[Orphan], horizon_seq: int, history_names: Sequence[str]
    ) -> list[Orphan]:
        """Those of the candidates that may be deleted, by a head that was read after the horizon."""
        return self._uncommitted([one for one in files if _birth(one) < horizon_seq], history_names)

    def _uncommitted(self, files: Sequence[Orphan], history_names: Sequence[str]) -> list[Orphan]:
        """Those of the candidates that the head, which is read now, does not refer to either."""
        if not files:
            return []
        references = self._log.references(self._replaced.names)
        has_history = any(one.kind is OrphanKind.HISTORY for one in files)
        chain = self._history_chain(history_names, references) if has_history else frozenset[str]()
        return [
            one
            for one in files
            if one.kind is OrphanKind.SCRATCH
            or not (references.has(_name(one.key)) or _name(one.key) in chain)
        ]

    def _candidates(
        self,
        scan: _Scan,
        references: References,
        now_ms: int,
        stop: StopSignal,
    ) -> Iterator[Orphan]:
        """The candidates behind the scan's place, which moves on with them."""
        old_ms = now_ms - self._settings.grace_ms
        for level, (file_kind, kind) in enumerate(_BY_BIRTH):
            if level < scan.level or scan.left_count == 0:
                continue
            for info in self._names_by_birth(scan, file_kind, level, stop):
                name = _name(info.key)
                if not file_kind.is_name(name) or references.has(name):
                    continue
                birth = newest_seq_of(file_kind, name)
                # In a quiet log the newest commit gets no older one behind it but by the horizon's commit.
                is_quiet = self._log.state().seq == scan.seq
                is_old = birth < scan.seq or (birth == scan.seq and is_quiet and info.modified_ms <= old_ms)
                if is_old or scan.has_young:
                    yield Orphan(kind, info.key, info.size, info.modified_ms)
        if not scan.is_whole or scan.left_count == 0:
            return
        if scan.level <= len(_BY_BIRTH):
            scan.level, scan.after = len(_BY_BIRTH), ""
            yield from self._history_candidates(scan, references, old_ms, stop)
        scan.level = len(_BY_BIRTH) + 1
        yield from self._probes(sys.maxsize if scan.has_young else old_ms, stop)

    def _names_by_birth(
        self, scan: _Scan, kind: FileKind, level: int, stop: StopSignal
    ) -> Iterator[ObjectInfo]:
        """The files of a kind that were born at or before the scan's commit, from its place on; with young
        ones all."""
        prefix = kind.key(self._log.layout, "")
        if level > scan.level:
            scan.level, scan.after = level, ""
        first = "" if scan.is_whole else prefix + seq_prefix(self._swept_seq)
        end = prefix + seq_prefix(scan.seq + 1)
        for info in self._store.list(prefix, start_after=max(scan.after, first)):
            if (info.key >= end and not scan.has_young) or scan.left_count == 0:
                return
            stop.check()
            scan.left_count -= 1
            scan.after = info.key
            yield info

    def _history_candidates(
        self, scan: _Scan, references: References, old_ms: int, stop: StopSignal
    ) -> Iterator[Orphan]:
        found: dict[str, ObjectInfo] = {}
        for info in self._store.list(FileKind.HISTORY.key(self._log.layout, "")):
            stop.check()
            name = _name(info.key)
            if FileKind.HISTORY.is_name(name):
                found[name] = info
        scan.history_names = tuple(found)
        chain = self._history_chain(scan.history_names, references)
        is_quiet = self._log.state().seq == scan.seq
        for name, info in found.items():
            birth = newest_seq_of(FileKind.HISTORY, name)
            is_old = birth < scan.seq or (birth == scan.seq and is_quiet and info.modified_ms <= old_ms)
            if (is_old or scan.has_young) and not references.has(name) and name not in chain:
                yield Orphan(OrphanKind.HISTORY, info.key, info.size, info.modified_ms)

    def _history_chain(self, names: Sequence[str], references: References) -> frozenset[str]:
        """Those of the history files that the head refers to, through newer ones; all if that is unclear.

        Files with the same LAST have the same FIRST: a commit number says which commits were inline then. So
        a file that was listed alone in place of another one leads to the right files before it.
        """
        by_last: dict[int, list[str]] = defaultdict(list)
        for name in names:
            by_last[newest_seq_of(FileKind.HISTORY, name)].append(name)
        if references.history is None or not by_last:
            return frozenset()
        chain: set[str] = set()
        current: str | None = references.history.name
        oldest_seq = max(min(by_last), references.history_start_seq)
        try:
            while current is not None and (last := first_seq_of_history(current) - 1) >= oldest_seq:
                listed = by_last[last]
                current = listed[0] if len(listed) == 1 else self._log.history_before(current)
                if current is not None:
                    chain.add(current)
        except ObjectNotFoundError:
            # Trimmed and collected since it was listed, or it was an orphan itself: nothing is certain now.
            return frozenset(names)
        return frozenset(chain if current is not None else names)

    def _probes(self, old_ms: int, stop: StopSignal) -> Iterator[Orphan]:
        """The probes that were written by this time."""
        for prefix in self._log.layout.scratch_prefixes:
            for info in self._store.list(prefix):
                stop.check()
                if info.modified_ms <= old_ms:
                    yield Orphan(OrphanKind.SCRATCH, info.key, info.size, info.modified_ms)

    def _uploads(self, until_ms: int, stop: StopSignal) -> tuple[list[UnfinishedUpload], tuple[str, ...]]:
        """Unfinished uploads that were begun by this time, as many as one sweep deletes; the refusals of the
        store."""
        uploads: list[UnfinishedUpload] = []
        try:
            for upload in self._store.list_uploads(self._log.layout.prefix):
                stop.check()
                if upload.begun_ms <= until_ms:
                    uploads.append(upload)
                if len(uploads) == self._settings.max_file_count:
                    break
        except (StoreAccessDeniedError, StoreNotUsableError) as error:
            problem = (
                "unfinished multipart uploads are not collected: allow the server to list them, or let a"
                f" lifecycle rule of the bucket abort them: {error}"
            )
            return [], (problem,)
        return uploads, ()


def _orphan_of(upload: UnfinishedUpload, due_ms: int = NEVER_MS) -> Orphan:
    return Orphan(OrphanKind.UPLOAD, upload.key, 0, upload.begun_ms, due_ms)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


_FILE_KINDS = {kind: file_kind for file_kind, kind in _BY_BIRTH} | {OrphanKind.HISTORY: FileKind.HISTORY}


def _birth(orphan: Orphan) -> int:
    """The birth of a file; that of a probe is before every horizon."""
    file_kind = _FILE_KINDS.get(orphan.kind)
    return NEVER_MS if file_kind is None else newest_seq_of(file_kind, _name(orphan.key))
