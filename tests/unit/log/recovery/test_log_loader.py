"""Recovery: every kind of leftover that a crash can leave, and the kinds that it cannot."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.log_config import LogConfig
from stratalog.log.recovery.log_recovery import LoadProgress, RecoveryReport
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.header import parse_header
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.filled_log import CONFIG as UNTIERED
from tests.support.logs.filled_log import FilledLog, path_of
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine
from tests.support.logs.overwriting import flip, overwrite

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def test_a_tail_that_is_cut_off_anywhere_ends_at_the_last_whole_batch() -> None:
    filled = FilledLog(3, CONFIG)
    disk, machine, log = filled.killed(), filled.machine, filled.log
    whole = disk.read_file(path_of(0))
    batch_bytes = len(whole) // 3
    for size in range(len(whole) + 1):
        overwrite(disk, path_of(0), whole[:size])
        log = machine.start()
        assert log.offsets.log_end_offset == 3 * (size // batch_bytes)
        assert log.recovery_report.truncated_bytes == size % batch_bytes
        assert disk.file_size(path_of(0)) == size - size % batch_bytes
        log.check()
        machine.kill()


@pytest.mark.parametrize(
    "nonsense", [bytes(4096), b"\xff" * 300, bytes(range(256)) * 3, b"\0\0\0\0\0\0\0\x09"]
)
def test_a_block_of_nonsense_behind_the_data_is_removed(nonsense: bytes) -> None:
    filled = FilledLog(3, CONFIG)
    disk, machine, ledger = filled.killed(), filled.machine, filled.ledger
    whole = disk.read_file(path_of(0))
    overwrite(disk, path_of(0), whole + nonsense)
    log = machine.start()
    assert disk.read_file(path_of(0)) == whole
    assert log.recovery_report.truncated_bytes == len(nonsense)
    ledger.verify(log, after_crash=True)


def test_a_segment_that_lost_its_end_without_a_trace_ends_the_log() -> None:
    """Whole batches are missing and the next segment is there: no checksum tells, the names do."""
    filled = FilledLog(20, CONFIG)
    disk, machine, ledger = filled.killed(), filled.machine, filled.ledger
    bases = filled.bases
    data = disk.read_file(path_of(bases[0]))
    overwrite(disk, path_of(bases[0]), data[: -parse_header(data).size_in_bytes])
    log = machine.start()
    assert log.offsets.log_end_offset == bases[1] - 3
    assert len(log.reader.segments()) == 1
    ledger.verify(log, after_crash=True)


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("was_killed", [True, False])
@pytest.mark.parametrize("written_by_broker", [True, False])
def test_segments_that_overlap_differ_from_those_with_holes(
    written_by_broker: bool, was_killed: bool, has_checkpoint: bool
) -> None:
    """A copy of a compacted log that was made twice has segments of before and after. No index tells."""
    filled = FilledLog(20, CONFIG).flushed()
    disk, machine = filled.killed(), filled.machine
    bases = filled.bases
    if not was_killed:
        machine.start()
        machine.stop()
    # The data of the third segment, under the name of the first one.
    overwrite(disk, path_of(bases[0]), disk.read_file(path_of(bases[2])))
    for suffix in (".index", ".timeindex"):
        disk.unlink(path_of(bases[0]).replace(".log", suffix))
    if not has_checkpoint:
        disk.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
    machine = LogMachine(disk, CONFIG, written_by_broker=written_by_broker)
    is_walked = was_killed and not has_checkpoint
    before = disk.contents()
    if not written_by_broker and not is_walked:
        # Only readers look at what one of our own logs has below its recovery point.
        machine.start()
        return
    with pytest.raises(DataDirectoryError) as refused:
        machine.start()
    assert (refused.value.fields["path"], refused.value.fields["base_offset"]) == (
        path_of(bases[0]),
        bases[1],
    )
    after = disk.contents()
    assert {path: after[path] for path in after if path.startswith(PARTITION_DIR)} == {
        path: before[path] for path in before if path.startswith(PARTITION_DIR)
    }


def test_only_what_is_not_known_to_be_durable_is_walked() -> None:
    disk = FaultyFileSystem(FilledLog(40, CONFIG).flushed().killed())
    log = LogMachine(disk, CONFIG).start()
    read = [line.split(" ")[1] for line in disk.trace if line.startswith("read_at ")]
    assert set(read) == {path_of(log.reader.segments()[-1].base_offset)}


def test_a_clean_stop_needs_no_recovery() -> None:
    filled = FilledLog(20, CONFIG)
    disk, ledger = FaultyFileSystem(filled.stopped()), filled.ledger
    log = LogMachine(disk, CONFIG).start()
    assert log.recovery_report == RecoveryReport(was_clean=True)
    assert not any(line.startswith(("sync /data/orders", "truncate")) for line in disk.trace)
    ledger.verify(log, after_crash=False)


@pytest.mark.parametrize("damage", ["index", "log"])
def test_a_clean_stop_is_not_believed_against_the_evidence(damage: str) -> None:
    filled = FilledLog(4, CONFIG)
    machine, ledger, disk = filled.machine, filled.ledger, filled.stopped()
    if damage == "index":
        overwrite(disk, path_of(0, ".index"), bytes.fromhex("0000000100000010"))
    else:
        overwrite(disk, path_of(0), disk.read_file(path_of(0)) + b"more")
    log = machine.start()
    assert not log.recovery_report.was_clean
    ledger.verify(log, after_crash=True)


def test_what_a_closed_log_says_of_aborted_transactions_is_held_against_the_batches() -> None:
    """Also of the segment that takes appends: the markers are there, of transactions that began before it."""
    machine = LogMachine(MemoryFileSystem(), CONFIG)
    first, ledger = machine.start(), LogLedger()
    for producer_id in (1, 2):
        ledger.append(first, [ledger.producer_batch(producer_id, 2, is_transactional=True), ledger.batch(1)])
    for producer_id in (2, 1):
        ledger.end_transaction(first, producer_id, committed=False, now_ms=machine.clock.now_ms())
    expected = [entry[:3] for entry in first.reader.aborted_transactions(0, first.offsets.log_end_offset)]
    assert expected == [(2, 3, 6), (1, 0, 7)]
    machine.stop()
    disk, path, damaged_count = machine.disk, path_of(6, ".txnindex"), 0
    for position in range(disk.file_size(path)):
        flip(disk, path, position, position % 8)
        log = machine.start()
        found = log.reader.aborted_transactions(0, log.offsets.log_end_offset)
        assert [entry[:3] for entry in found] == expected, position
        damaged_count += not log.recovery_report.was_clean
        log.check()
        machine.stop()
    assert damaged_count >= 2 * 26, "producer, first and last offset, version"


@pytest.mark.parametrize(
    "fault", ["missing", "zeros", "flipped", "of another time", "no aborted", "an aborted flipped"]
)
@pytest.mark.parametrize("was_clean", [True, False])
def test_from_a_segment_without_a_sound_seal_on_a_log_is_walked_and_sealed_again(
    fault: str, *, was_clean: bool
) -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    first, ledger = machine.start(), LogLedger()
    for number in range(4):
        ledger.append(first, [ledger.producer_batch(number, 2, is_transactional=True)])
        ledger.append(first, [ledger.batch(2)])
        ledger.end_transaction(first, number, committed=number == 2, now_ms=machine.clock.now_ms())
    first.roll()
    ledger.append(first, [ledger.batch(1)])
    segments = first.reader.segments()
    truth = first.reader.aborted_transactions(0, first.offsets.log_end_offset)
    assert len(segments) == 4
    assert len(truth) == 3
    machine.stop()
    whole = disk.contents()
    for victim, info in enumerate(segments[:-1]):
        again = disk.after_crash(Survival(Kept.ALL, Kept.ALL))
        path = path_of(info.base_offset).removesuffix(".log")
        if fault == "no aborted":
            if f"{path}.txnindex" not in whole:
                continue
            again.unlink(f"{path}.txnindex")
        elif fault == "an aborted flipped":
            if f"{path}.txnindex" not in whole:
                continue
            # The last bit of where the transaction began.
            overwrite(again, f"{path}.txnindex", flipped(disk.read_file(f"{path}.txnindex"), 17, 0))
        elif fault == "missing":
            again.unlink(f"{path}.seal")
        else:
            seal = SegmentSeal.from_bytes(disk.read_file(f"{path}.seal"))
            size_before = (seal.log_size_bytes - 1).to_bytes(8, "big")
            changed = {
                "zeros": bytes(len(seal.to_bytes())),
                "flipped": flipped(seal.to_bytes(), len(seal.to_bytes()) - 1, 3),
                "of another time": seal._replace(body=size_before + seal.body[8:]).to_bytes(),
            }
            overwrite(again, f"{path}.seal", changed[fault])
        if not was_clean:
            again.unlink(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")
        machine = LogMachine(again, CONFIG)
        log = machine.start()
        walked = sum(segment.size_bytes for segment in segments[victim:])
        assert log.recovery_report.recovered_bytes == walked
        ledger.verify(log, after_crash=True)
        assert log.reader.aborted_transactions(0, log.offsets.log_end_offset) == truth
        machine.stop()
        after = again.contents()
        names = (".log", "index", ".seal")
        assert {name: data for name, data in after.items() if name.endswith(names)} == {
            name: data for name, data in whole.items() if name.endswith(names)
        }
        assert machine.start().recovery_report.was_clean


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_damage_below_the_recovery_point_is_not_cut_off() -> None:
    filled = FilledLog(4, CONFIG).flushed()
    disk, machine = filled.killed(), filled.machine
    data = bytearray(disk.read_file(path_of(0)))
    data[100] ^= 1
    overwrite(disk, path_of(0), bytes(data))
    # What would be tidied up on the way.
    for name in (f"{7:020d}.snapshot", f"{7:020d}.index", f"{7:020d}.log.deleted", f"{7:020d}.snapshot.tmp"):
        overwrite(disk, f"{PARTITION_DIR}/{name}", b"?")
    before = {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in disk.list_directory(PARTITION_DIR)}
    with pytest.raises(DataDirectoryError) as failure:
        machine.start()
    assert failure.value.fields["recovery_point"] == 12
    after = {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in disk.list_directory(PARTITION_DIR)}
    assert after == before
    machine.kill()
    # The way out that the message names.
    overwrite(disk, f"{DATA_DIR}/recovery-point-offset-checkpoint", b"0\n0\n")
    assert machine.start().offsets.log_end_offset == 0


@pytest.mark.parametrize(
    "contents", [b"", b"0\n1\n", b"nonsense", b"\xff\xfe", b"0\n1\norders 0 -4\n", b"7\n0\n"]
)
def test_a_checkpoint_that_cannot_be_read_costs_a_longer_walk_only(contents: bytes) -> None:
    filled = FilledLog(20, CONFIG).flushed()
    disk, machine, ledger = filled.killed(), filled.machine, filled.ledger
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        overwrite(disk, f"{DATA_DIR}/{name}", contents)
    log = machine.start()
    assert log.recovery_report.recovered_bytes == log.local_log.segments.size_bytes
    ledger.verify(log, after_crash=True)


def test_drops_that_were_under_way_are_finished_and_orphans_removed() -> None:
    filled = FilledLog(20, CONFIG)
    disk, machine, ledger = filled.killed(), filled.machine, filled.ledger
    bases = filled.bases
    # The first segment was being dropped: its data is renamed, its indexes are not yet.
    disk.rename(path_of(0), path_of(0) + ".deleted")
    for name in ("00000000000000000000.snapshot", "leader-epoch-checkpoint", "notes.txt"):
        overwrite(disk, f"{PARTITION_DIR}/{name}", b"?")
    log = machine.start()
    names = set(disk.list_directory(PARTITION_DIR))
    # What is damaged of the log's own is removed or made again; what is not its own is left alone.
    assert "00000000000000000000.snapshot" not in names
    assert disk.read_file(f"{PARTITION_DIR}/leader-epoch-checkpoint") == b"0\n1\n1 %d\n" % bases[1]
    assert "notes.txt" in names
    assert not [name for name in names if name.endswith(".deleted")]
    assert not {f"{0:020d}.index", f"{0:020d}.timeindex"} & names
    assert log.offsets.local_log_start_offset == bases[1]
    ledger.local_start_offset = bases[1]
    ledger.verify(log, after_crash=True)


def test_a_log_that_lost_what_was_deleted_goes_on_behind_it() -> None:
    filled = FilledLog(6)
    filled.log.increment_log_start_offset(16)
    machine, ledger, disk = filled.machine, filled.ledger, filled.killed()
    data = disk.read_file(path_of(0))
    overwrite(disk, path_of(0), data[: parse_header(data).size_in_bytes])
    log = machine.start()
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (16, 16)
    assert log.recovery_report.lost_end_offset == 3
    ledger.append(log, [ledger.batch(1)])
    log.check()
    machine.kill()
    assert machine.start().offsets.log_end_offset == 17


class Shortened:
    """A log whose end is below its log start of 40 since the process was killed, about to be opened.

    Its last segments are gone, or a damaged batch makes the recovery cut them.
    """

    def __init__(self, *, is_cut: bool) -> None:
        filled = FilledLog(14)
        filled.log.increment_log_start_offset(40)
        disk, (_, second, *later) = filled.killed(), filled.bases
        if is_cut:
            flip(disk, path_of(second), disk.file_size(path_of(second)) - 1)
        for base_offset in [] if is_cut else [second, *later]:
            disk.unlink(path_of(base_offset))
        self.disk = FaultyFileSystem(disk.after_crash(EVERYTHING_KEPT))

    def start(self) -> UnifiedLog:
        return LogMachine(self.disk, UNTIERED).start()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_log_start_beyond_the_end_survives_a_crash_at_every_operation(is_cut: bool) -> None:
    def verify(death: Death[Shortened]) -> None:
        for disk in death.disks():
            log = LogMachine(disk, UNTIERED).start()
            assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (40, 40)
            assert len(log.reader.segments()) == 1
            log.check()

    assert Shortened(is_cut=is_cut).start().recovery_report.lost_end_offset is not None
    CrashSweep(lambda: Shortened(is_cut=is_cut), Shortened.start, count=20).at_deaths(verify)


def test_leader_epochs_begin_at_the_log_start_after_a_crash_too() -> None:
    """Though their file still has those that were deleted."""
    machine = LogMachine(config=LogConfig(remote_storage_enable=False, retention_ms=-1))
    log, ledger = machine.start(), LogLedger()
    for epoch in (2, 4, 7):
        ledger.leader_epoch = epoch
        ledger.append(log, [ledger.batch(3)])
    log.increment_log_start_offset(5)
    before = [log.end_offset_for(epoch) for epoch in range(9)]
    assert before == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 6), (4, 6), (4, 6), (7, 9), None]
    machine.kill()
    log = machine.start()
    assert [log.end_offset_for(epoch) for epoch in range(9)] == before
    machine.stop()
    log = machine.start()
    assert [log.end_offset_for(epoch) for epoch in range(9)] == before


def test_indexes_of_sealed_segments_are_durable_with_their_data() -> None:
    filled = FilledLog(20, CONFIG).flushed()
    disk, log = filled.disk, filled.log
    left = disk.after_crash(Survival(Kept.NONE, Kept.NONE)).contents()
    sealed = [path_of(info.base_offset).removesuffix(".log") for info in log.reader.segments()[:-1]]
    for path in (stem + suffix for stem in sealed for suffix in (".index", ".timeindex")):
        assert left[path] == disk.read_file(path) != b""


def test_a_recovery_tells_how_far_it_is_and_a_clean_start_says_nothing() -> None:
    filled = FilledLog(20, CONFIG)
    machine, sizes = filled.machine, [info.size_bytes for info in filled.log.reader.segments()]
    filled.killed()
    told: list[LoadProgress] = []
    manager = machine.open()
    manager.open_log(PARTITION, TOPIC_ID, machine.config, on_progress=told.append)
    remaining = [(len(sizes) - number, sum(sizes[number:])) for number in range(len(sizes))]
    assert told == [LoadProgress(PARTITION_DIR, count, size) for count, size in remaining]
    machine.stop()
    told.clear()
    machine.open().open_log(PARTITION, TOPIC_ID, machine.config, on_progress=told.append)
    assert told == []
