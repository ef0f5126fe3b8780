"""Segments that take the place of others: who may still read what, and what is refused."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.cleaner.clean.segment_writer import SegmentWriter
from stratalog.log.exchange import segment_exchange
from stratalog.log.exchange.cleaned_segment import CleanedSegment
from stratalog.log.exchange.segment_swap import announce_swap
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.segment.indexes.transaction_index import bytes_below
from stratalog.segment.log_segment import LogSegment
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.cleaning_history import CONFIG, CleaningHistory
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import NEVER_MS, LogMachine
from tests.support.logs.overwriting import flip, overwrite


def filled(seed: int = 3, disk: FaultyFileSystem | None = None) -> CleaningHistory:
    history = CleaningHistory(random.Random(seed), disk)
    for number in range(40):
        history.write()
        history.write_as(1)
        if number % 5 == 0:
            history.end_transaction(1, committed=number % 2 == 0)
    history.end_transaction(1, committed=False)
    history.log.roll()
    history.write()
    return history


def copied(log: UnifiedLog, group: Sequence[LogSegment]) -> CleanedSegment:
    """The batches of the group, as they are."""
    writer = SegmentWriter(log.segment_exchange.resources, log.local_log.directory, group[0].base_offset, 100)
    for segment in group:
        writer.write(segment.read_bytes(0, segment.size_bytes))
        if segment.has_aborted:
            writer.add_aborted(segment.indexes().transaction_index.to_bytes())
    return writer.finish(7000)


def replace(log: UnifiedLog, cleaned: Sequence[CleanedSegment], replaced: Sequence[LogSegment]) -> bool:
    return log.segment_exchange.replace(cleaned, replaced, lambda _: None)


REFUSALS = (OSError, DataDirectoryError)
PATIENCE_S = 30


def is_rename(name: str) -> bool:
    return name.startswith("rename ")


def copies_of(log: UnifiedLog) -> list[str]:
    """Files of a copy that has not taken the place of its segments."""
    names = log.segment_exchange.resources.filesystem.list_directory(log.local_log.directory)
    return [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


class Exchange:
    """A filled log that is durable, and a copy of some of its segments that is to take their place. Used by
    one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.history = filled(disk=self.disk)
        self.log = self.history.log
        self.log.flusher.flush()
        self.before, self.group = read_local(self.log), self.log.local_log.segments[1:3]
        self.cleaned = copied(self.log, self.group)

    def run(self) -> bool:
        return replace(self.log, [self.cleaned], self.group)

    def require_found(self) -> None:
        """Another process finds the same log, where this one is killed now and where the power fails."""
        for survival in (Survival(Kept.ALL, Kept.ALL), Survival(Kept.NONE, Kept.NONE)):
            machine = LogMachine(self.disk.reopened(survival), CONFIG, producer_id_expiration_ms=NEVER_MS)
            assert read_local(machine.start()) == self.before


def test_readers_that_have_an_old_segment_do_not_read_the_new_file_of_its_name() -> None:
    log = filled().log
    number, old = next(one for one in enumerate(log.local_log.segments) if one[1].has_aborted)
    assert old.read_bytes(0, 61)
    assert replace(log, [copied(log, [old])], [old])
    assert log.local_log.segments[number] is not old
    assert log.local_log.segments[number].path == old.path
    for ask in (
        lambda: old.read_bytes(0, 61),
        lambda: old.position_of(old.base_offset),
        lambda: list(old.batches()),
        lambda: old.collect_aborted(0, old.end_offset),
        old.lend,
    ):
        with pytest.raises(FileNotFoundError):
            ask()


def test_what_is_not_in_the_log_any_more_is_not_replaced() -> None:
    log = filled().log
    group = log.local_log.segments[:2]
    cleaned = copied(log, group)
    log.increment_log_start_offset(group[1].base_offset)
    log.retention.delete_old_segments()
    segments = log.local_log.segments
    assert not replace(log, [cleaned], group)
    assert log.local_log.segments is segments
    assert not copies_of(log)
    log.check()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_copy_that_records_deleted_meanwhile_make_wrong_replaces_nothing(is_deleted: bool) -> None:
    exchange = Exchange()
    log, segments = exchange.log, exchange.log.local_log.segments
    start_offset = log.offsets.log_start_offset
    if is_deleted:
        log.increment_log_start_offset(start_offset + 1)
    is_replaced = log.segment_exchange.replace(
        [exchange.cleaned], exchange.group, lambda _: None, max_start_offset=start_offset
    )
    assert is_replaced == (not is_deleted)
    assert (log.local_log.segments is segments) == is_deleted
    assert not copies_of(log)
    log.check()
    if is_deleted:
        assert replace(log, [copied(log, exchange.group)], exchange.group)
    log.check()


class NotedLock:
    """A lock that notes that another thread asks for it. Thread-safe."""

    def __init__(self, inner: Any, asked: threading.Event) -> None:
        self._inner, self._asked = inner, asked
        self._owner = threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._owner:
            self._asked.set()
        self._inner.__enter__()

    def __exit__(self, *_: object) -> None:
        self._inner.__exit__()


def test_a_deletion_waits_for_an_exchange_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first rename on a start of the process goes on with the exchange. A copy that is right only
    without the deletion was in the log then, although the deletion had been acknowledged."""
    exchange = Exchange()
    log, start_offset = exchange.log, exchange.log.offsets.log_start_offset
    asked = threading.Event()
    monkeypatch.setattr(log, "flush_lock", NotedLock(log.flush_lock, asked))
    deleting: list[threading.Thread] = []
    starts: list[int] = []

    def delete() -> None:
        log.increment_log_start_offset(start_offset + 1)
        asked.set()

    def announce(*swap: Any) -> None:
        announce_swap(*swap)
        deleting.append(threading.Thread(target=delete))
        deleting[0].start()
        assert asked.wait(PATIENCE_S)
        starts.append(
            LogMachine(exchange.disk.reopened(EVERYTHING_KEPT), CONFIG).start().offsets.log_start_offset
        )

    monkeypatch.setattr(segment_exchange, "announce_swap", announce)
    is_replaced = log.segment_exchange.replace(
        [exchange.cleaned], exchange.group, lambda _: None, max_start_offset=start_offset
    )
    deleting[0].join(PATIENCE_S)
    assert starts == [start_offset], "it is not durable before the exchange"
    assert is_replaced
    assert log.offsets.log_start_offset == start_offset + 1
    log.check()


def test_the_active_segment_is_never_replaced() -> None:
    log = filled().log
    group = log.local_log.segments[-2:]
    assert not replace(log, [copied(log, group)], group)
    log.check()


def test_whichever_rename_is_refused_the_log_has_the_old_segments_or_the_new_ones() -> None:
    """For want of space alone the log is never taken offline; nor before an old file was renamed."""
    offline_count = 0

    def verify(failure: Failure[Exchange]) -> None:
        nonlocal offline_count
        exchange = failure.subject
        log, group = exchange.log, exchange.group
        exchange.require_found()
        if log.availability.is_offline:
            assert failure.number == errno.EPERM
            assert group[0].is_dropped
            offline_count += 1
            return
        assert read_local(log) == exchange.before
        log.check()
        assert not copies_of(log)
        if group[0] in log.local_log.segments:
            assert replace(log, [copied(log, group)], group)
        assert read_local(log) == exchange.before
        exchange.history.write()

    CrashSweep(Exchange, Exchange.run).at_failures(
        verify, expected=REFUSALS, errors=[errno.ENOSPC, errno.EDQUOT, errno.EPERM], only=is_rename
    )
    assert offline_count > 0


def test_a_rename_that_was_done_and_is_said_to_have_failed_loses_nothing() -> None:
    """A request that was sent twice finds what the first one has left, for one."""
    offline_count = 0

    def verify(failure: Failure[Exchange]) -> None:
        nonlocal offline_count
        exchange = failure.subject
        offline_count += exchange.log.availability.is_offline
        if not exchange.log.availability.is_offline:
            assert read_local(exchange.log) == exchange.before
            exchange.log.check()
        exchange.require_found()

    CrashSweep(Exchange, Exchange.run).at_failures(
        verify,
        expected=REFUSALS,
        errors=[errno.ENOENT, errno.ENOSPC, errno.EPERM],
        only=is_rename,
        part=1.0,
    )
    assert offline_count > 0


@pytest.mark.parametrize("part", [0, 1])
def test_where_it_is_unknown_whether_a_file_was_renamed_its_copy_stays(part: int) -> None:
    """Neither the rename nor a look at the old name says anything."""
    rehearsal, exchange = Exchange(), Exchange()
    assert rehearsal.run()
    disk, old_path = exchange.disk, exchange.group[0].path
    [rename, *_] = [
        number for number, one in enumerate(rehearsal.disk.trace, 1) if one.startswith(f"rename {old_path} ")
    ]
    disk.fail_at(rename, number=errno.EPERM, part=part)
    disk.fail_at(rename + 1, number=errno.EMFILE)
    with pytest.raises(DataDirectoryError):
        exchange.run()
    assert disk.trace[rename] == f"open_read {old_path}"
    assert exchange.log.availability.is_offline
    exchange.require_found()


def test_a_clean_whose_flush_finds_no_descriptor_leaves_nothing() -> None:
    rehearsal, exchange = Exchange(), Exchange()
    log, first = exchange.log, exchange.disk.operation_count
    assert rehearsal.run()
    names = [name.split(" ")[0] for name in rehearsal.disk.trace]
    first_sync = names.index("sync_directory", first) + 1
    exchange.disk.fail_at(first_sync, number=errno.EMFILE)
    with pytest.raises(DataDirectoryError) as failure:
        exchange.run()
    assert os.strerror(errno.EMFILE) in str(failure.value.fields["reason"])
    assert not copies_of(log)
    assert not log.availability.is_offline
    assert replace(log, [copied(log, exchange.group)], exchange.group)
    log.check()


@pytest.mark.parametrize("cut", [0, 1])
def test_a_file_that_is_not_what_was_written_replaces_nothing(cut: int) -> None:
    history = filled()
    log = history.log
    group = log.local_log.segments[:1]
    cleaned = copied(log, group)
    disk, path = history.machine.disk, group[0].path + CLEANED_SUFFIX
    flip(disk, path, disk.file_size(path) - 1)
    overwrite(disk, path, disk.read_file(path)[: disk.file_size(path) - cut])
    segments = log.local_log.segments
    with pytest.raises(CorruptRecordError) as failure:
        replace(log, [cleaned], group)
    assert failure.value.fields == {
        "path": path,
        "size_bytes": cleaned.size_bytes - cut,
        "expected_bytes": cleaned.size_bytes,
    }
    assert log.local_log.segments is segments
    log.check()


def test_batches_that_are_not_sound_are_not_written() -> None:
    log = filled().log
    segment = log.local_log.segments[0]
    data = segment.read_bytes(0, segment.size_bytes)
    second = next(position for position, _ in batches(data) if position > 0)
    writer = SegmentWriter(log.segment_exchange.resources, log.local_log.directory, 0, 100)
    writer.write(data[second:])
    with pytest.raises(CorruptRecordError):
        writer.write(data[:second])
    flipped = bytearray(data)
    flipped[second - 1] ^= 1
    writer = SegmentWriter(log.segment_exchange.resources, log.local_log.directory, 0, 100)
    with pytest.raises(CorruptRecordError):
        writer.write(bytes(flipped))


def test_a_reader_that_has_the_file_open_finishes() -> None:
    log = filled().log
    old = log.local_log.segments[0]
    expected = [located.header for located in old.batches()]
    reading = old.batches()
    found = [next(reading).header]
    assert replace(log, [copied(log, log.local_log.segments[:2])], log.local_log.segments[:2])
    found += [located.header for located in reading]
    assert found == expected


class BesideALeftover(Exchange):
    """The first segment has half of a copy, as a process leaves it that was killed. All else is known to be
    durable."""

    def __init__(self) -> None:
        super().__init__()
        self.history.machine.checkpoint()
        overwrite(self.disk, self.log.local_log.segments[0].path + CLEANED_SUFFIX, b"half of a batch")


def test_a_copy_that_was_left_below_does_not_undo_an_exchange() -> None:
    """A machine dies in the midst of it: a start finds the old segments or the new ones."""
    CrashSweep(BesideALeftover, Exchange.run, count=30).at_deaths(
        lambda death: death.subject.require_found(),
        always=lambda name: name.startswith(("rename", "sync_directory")),
    )


def halves(log: UnifiedLog, group: Sequence[LogSegment]) -> list[CleanedSegment]:
    """The batches of the group in two segments, the second of which begins within one of the group."""
    data = b"".join(segment.read_bytes(0, segment.size_bytes) for segment in group)
    bounds = [position for position, header in batches(data) if header.base_offset < group[-1].base_offset]
    middle, resources = bounds[len(bounds) // 2], log.segment_exchange.resources
    first = SegmentWriter(resources, log.local_log.directory, group[0].base_offset, 100)
    first.write(data[:middle])
    second = SegmentWriter(resources, log.local_log.directory, first.next_offset, 100)
    second.write(data[middle:])
    for segment in group:
        aborted = segment.indexes().transaction_index.to_bytes() if segment.has_aborted else b""
        size = bytes_below(aborted, first.next_offset)
        first.add_aborted(aborted[:size])
        second.add_aborted(aborted[size:])
    return [first.finish(7000), second.finish(7000)]


class TakenBack(Exchange):
    """An exchange whose first old file cannot be renamed, so that it is taken back."""

    def __init__(self, *, is_divided: bool) -> None:
        super().__init__()
        self.history.machine.checkpoint()
        self.many = [self.cleaned]
        if is_divided:
            self.many = halves(self.log, self.group)
        self.disk.fail_where(
            lambda name: name.startswith(f"rename {self.group[0].path} "), number=errno.EPERM
        )

    def run(self) -> bool:
        with pytest.raises(PermissionError):
            replace(self.log, self.many, self.group)
        return False


@pytest.mark.parametrize("is_divided", [False, True])
def test_a_death_while_an_exchange_is_taken_back_leaves_the_same_records(is_divided: bool) -> None:
    """A start must not take the new files that are left for an exchange that goes on."""

    def verify(death: Death[TakenBack]) -> None:
        for found in death.disks():
            log = LogMachine(found, CONFIG, producer_id_expiration_ms=NEVER_MS).start()
            assert read_local(log) == death.subject.before
            log.check()
            assert not copies_of(log)

    CrashSweep(lambda: TakenBack(is_divided=is_divided), TakenBack.run, count=8).at_deaths(
        verify, always=lambda name: name.startswith("unlink ") and name.endswith(SWAP_SUFFIX)
    )
