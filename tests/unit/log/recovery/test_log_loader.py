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
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def log_path(base_offset: int) -> str:
    return f"{PARTITION_DIR}/{base_offset:020d}.log"


def rewrite(disk: MemoryFileSystem, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.truncate(0)
    file.append([data])
    file.close()


def filled(
    disk: MemoryFileSystem, request_count: int, *, flush: bool
) -> tuple[LogMachine, UnifiedLog, LogLedger]:
    """A machine that was killed with so many requests of three records each in its log."""
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    ledger = LogLedger()
    for _ in range(request_count):
        ledger.append(log, [ledger.batch(3)])
    if flush:
        log.flusher.flush()
        machine.checkpoint()
    machine.kill()
    return machine, log, ledger


def test_a_tail_that_is_cut_off_anywhere_ends_at_the_last_whole_batch() -> None:
    disk = MemoryFileSystem()
    machine, log, _ = filled(disk, 3, flush=False)
    whole = disk.read_file(log_path(0))
    batch_bytes = len(whole) // 3
    for size in range(len(whole) + 1):
        rewrite(disk, log_path(0), whole[:size])
        log = machine.start()
        assert log.offsets.log_end_offset == 3 * (size // batch_bytes)
        assert log.recovery_report.truncated_bytes == size % batch_bytes
        assert disk.file_size(log_path(0)) == size - size % batch_bytes
        log.check()
        machine.kill()


@pytest.mark.parametrize(
    "nonsense", [bytes(4096), b"\xff" * 300, bytes(range(256)) * 3, b"\0\0\0\0\0\0\0\x09"]
)
def test_a_block_of_nonsense_behind_the_data_is_removed(nonsense: bytes) -> None:
    disk = MemoryFileSystem()
    machine, _, ledger = filled(disk, 3, flush=False)
    whole = disk.read_file(log_path(0))
    rewrite(disk, log_path(0), whole + nonsense)
    log = machine.start()
    assert disk.read_file(log_path(0)) == whole
    assert log.recovery_report.truncated_bytes == len(nonsense)
    ledger.verify(log, after_crash=True)


def test_nonsense_in_the_middle_ends_the_log_and_takes_later_segments_along() -> None:
    disk = MemoryFileSystem()
    machine, log, ledger = filled(disk, 20, flush=False)
    bases = [info.base_offset for info in log.reader.segments()]
    assert len(bases) > 3
    data = bytearray(disk.read_file(log_path(bases[1])))
    size = parse_header(data).size_in_bytes
    data[2 * size : 3 * size] = bytes(size)
    rewrite(disk, log_path(bases[1]), bytes(data))
    log = machine.start()
    assert log.offsets.log_end_offset == bases[1] + 6
    assert [info.base_offset for info in log.reader.segments()] == bases[:2]
    ledger.verify(log, after_crash=True)
    ledger.append(log, [ledger.batch(30)])
    ledger.verify(log, after_crash=False)


def test_a_segment_that_lost_its_end_without_a_trace_ends_the_log() -> None:
    """Whole batches are missing and the next segment is there: no checksum tells, the names do."""
    disk = MemoryFileSystem()
    machine, log, ledger = filled(disk, 20, flush=False)
    bases = [info.base_offset for info in log.reader.segments()]
    data = disk.read_file(log_path(bases[0]))
    rewrite(disk, log_path(bases[0]), data[: -parse_header(data).size_in_bytes])
    log = machine.start()
    assert log.offsets.log_end_offset == bases[1] - 3
    assert len(log.reader.segments()) == 1
    ledger.verify(log, after_crash=True)


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("was_killed", [True, False])
@pytest.mark.parametrize("written_by_broker", [True, False])
def test_segments_that_overlap_are_told_apart_from_those_with_holes(
    written_by_broker: bool, was_killed: bool, has_checkpoint: bool
) -> None:
    """A copy of a compacted log that was made twice has segments of before and after. No index tells."""
    disk = MemoryFileSystem()
    machine, log, _ = filled(disk, 20, flush=True)
    bases = [info.base_offset for info in log.reader.segments()]
    if not was_killed:
        machine.start()
        machine.stop()
    # The data of the third segment, under the name of the first one.
    rewrite(disk, log_path(bases[0]), disk.read_file(log_path(bases[2])))
    for suffix in (".index", ".timeindex"):
        disk.unlink(log_path(bases[0]).replace(".log", suffix))
    if not has_checkpoint:
        disk.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
    machine = LogMachine(disk, CONFIG, written_by_broker=written_by_broker)
    is_walked = was_killed and not has_checkpoint
    before = disk.contents()
    if not written_by_broker and not is_walked:
        # Nobody looks at what one of our own logs has below its recovery point, but who reads it.
        machine.start()
        return
    with pytest.raises(DataDirectoryError) as failure:
        machine.start()
    assert failure.value.fields.keys() == {"path", "end_offset", "base_offset"}
    after = disk.contents()
    assert {path: after[path] for path in after if path.startswith(PARTITION_DIR)} == {
        path: before[path] for path in before if path.startswith(PARTITION_DIR)
    }


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("contents", [None, b"", b"garbage that is no index", bytes(240)])
def test_index_files_of_what_is_recovered_mean_nothing(suffix: str, contents: bytes | None) -> None:
    disk = MemoryFileSystem()
    machine, log, ledger = filled(disk, 20, flush=False)
    for info in log.reader.segments():
        path = log_path(info.base_offset).removesuffix(".log") + suffix
        if contents is not None:
            rewrite(disk, path, contents)
        elif disk.exists(path):
            disk.unlink(path)
    log = machine.start()
    ledger.verify(log, after_crash=True)
    for record in read_local(log):
        assert log.reader.read(record.offset, 1).batches


def test_index_files_below_the_recovery_point_are_made_again_when_they_are_needed() -> None:
    disk = MemoryFileSystem()
    machine, log, ledger = filled(disk, 20, flush=True)
    for info in log.reader.segments()[:-1]:
        for suffix in (".index", ".timeindex"):
            disk.unlink(log_path(info.base_offset).removesuffix(".log") + suffix)
    log = machine.start()
    assert log.recovery_report.recovered_bytes < 1024
    ledger.verify(log, after_crash=True)
    assert disk.exists(log_path(0).removesuffix(".log") + ".timeindex")


def test_only_what_is_not_known_to_be_durable_is_walked() -> None:
    inner = MemoryFileSystem()
    filled(inner, 40, flush=True)
    disk = FaultyFileSystem(inner)
    log = LogMachine(disk, CONFIG).start()
    read = [line.split(" ")[1] for line in disk.trace if line.startswith("read_at ")]
    # One header of the first segment, where the file lets the only leader epoch begin.
    assert read.count(log_path(0)) == 1
    assert set(read) == {log_path(0), log_path(log.reader.segments()[-1].base_offset)}


def test_a_clean_stop_needs_no_recovery() -> None:
    inner = MemoryFileSystem()
    machine = LogMachine(inner, CONFIG)
    log = machine.start()
    ledger = LogLedger()
    for _ in range(20):
        ledger.append(log, [ledger.batch(3)])
    machine.stop()
    disk = FaultyFileSystem(inner)
    log = LogMachine(disk, CONFIG).start()
    assert log.recovery_report == RecoveryReport(was_clean=True)
    assert not any(line.startswith(("sync /data/orders", "truncate")) for line in disk.trace)
    ledger.verify(log, after_crash=False)


@pytest.mark.parametrize("damage", ["index", "log"])
def test_a_clean_stop_is_not_believed_against_the_evidence(damage: str) -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    first = machine.start()
    ledger = LogLedger()
    for _ in range(4):
        ledger.append(first, [ledger.batch(3)])
    machine.stop()
    if damage == "index":
        rewrite(disk, log_path(0).removesuffix(".log") + ".index", bytes.fromhex("0000000100000010"))
    else:
        rewrite(disk, log_path(0), disk.read_file(log_path(0)) + b"more")
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
    disk, path = machine.disk, log_path(6).removesuffix(".log") + ".txnindex"
    whole, damaged_count = disk.read_file(path), 0
    for position in range(len(whole)):
        for bit in range(8):
            assert isinstance(disk, MemoryFileSystem)
            rewrite(disk, path, flipped(whole, position, bit))
            log = machine.start()
            found = log.reader.aborted_transactions(0, log.offsets.log_end_offset)
            assert [entry[:3] for entry in found] == expected, (position, bit)
            damaged_count += not log.recovery_report.was_clean
            log.check()
            machine.stop()
    assert damaged_count >= 2 * 8 * 26, "producer, first and last offset, version"


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
        path = log_path(info.base_offset).removesuffix(".log")
        if fault == "no aborted":
            if f"{path}.txnindex" not in whole:
                continue
            again.unlink(f"{path}.txnindex")
        elif fault == "an aborted flipped":
            if f"{path}.txnindex" not in whole:
                continue
            # The last bit of where the transaction began.
            rewrite(again, f"{path}.txnindex", flipped(disk.read_file(f"{path}.txnindex"), 17, 0))
        elif fault == "missing":
            again.unlink(f"{path}.seal")
        else:
            seal = SegmentSeal.from_bytes(disk.read_file(f"{path}.seal"))
            changed = {
                "zeros": bytes(len(seal.to_bytes())),
                "flipped": flipped(seal.to_bytes(), len(seal.to_bytes()) - 1, 3),
                "of another time": seal._replace(log_size_bytes=seal.log_size_bytes - 1).to_bytes(),
            }
            rewrite(again, f"{path}.seal", changed[fault])
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
    disk = MemoryFileSystem()
    machine, _, _ = filled(disk, 4, flush=True)
    data = bytearray(disk.read_file(log_path(0)))
    data[100] ^= 1
    rewrite(disk, log_path(0), bytes(data))
    # What would be tidied up on the way.
    for name in (f"{7:020d}.snapshot", f"{7:020d}.index", f"{7:020d}.log.deleted", f"{7:020d}.snapshot.tmp"):
        rewrite(disk, f"{PARTITION_DIR}/{name}", b"?")
    before = {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in disk.list_directory(PARTITION_DIR)}
    with pytest.raises(DataDirectoryError) as failure:
        machine.start()
    assert failure.value.fields["recovery_point"] == 12
    after = {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in disk.list_directory(PARTITION_DIR)}
    assert after == before
    machine.kill()
    # The way out that the message names.
    rewrite(disk, f"{DATA_DIR}/recovery-point-offset-checkpoint", b"0\n0\n")
    assert machine.start().offsets.log_end_offset == 0


@pytest.mark.parametrize(
    "contents", [b"", b"0\n1\n", b"nonsense", b"\xff\xfe", b"0\n1\norders 0 -4\n", b"7\n0\n"]
)
def test_a_checkpoint_that_cannot_be_read_costs_a_longer_walk_only(contents: bytes) -> None:
    disk = MemoryFileSystem()
    machine, _, ledger = filled(disk, 20, flush=True)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        rewrite(disk, f"{DATA_DIR}/{name}", contents)
    log = machine.start()
    assert log.recovery_report.recovered_bytes == log.local_log.segments.size_bytes
    ledger.verify(log, after_crash=True)


def test_drops_that_were_under_way_are_finished_and_orphans_removed() -> None:
    disk = MemoryFileSystem()
    machine, log, ledger = filled(disk, 20, flush=False)
    bases = [info.base_offset for info in log.reader.segments()]
    # The first segment was being dropped: its data is renamed, its indexes are not yet.
    disk.rename(log_path(0), log_path(0) + ".deleted")
    for name in ("00000000000000000000.snapshot", "leader-epoch-checkpoint", "notes.txt"):
        rewrite(disk, f"{PARTITION_DIR}/{name}", b"?")
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
    disk = MemoryFileSystem()
    config = LogConfig(segment_bytes=1024, remote_storage_enable=False)
    machine = LogMachine(disk, config)
    log = machine.start()
    ledger = LogLedger()
    for _ in range(6):
        ledger.append(log, [ledger.batch(3)])
    log.increment_log_start_offset(16)
    machine.kill()
    data = disk.read_file(log_path(0))
    rewrite(disk, log_path(0), data[: parse_header(data).size_in_bytes])
    log = machine.start()
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (16, 16)
    assert log.recovery_report.lost_end_offset == 3
    ledger.append(log, [ledger.batch(1)])
    log.check()
    machine.kill()
    assert machine.start().offsets.log_end_offset == 17


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_log_start_beyond_the_end_survives_a_crash_at_every_operation(is_cut: bool) -> None:
    """The end is below it because segments are gone, or because this very recovery cuts them."""
    config = LogConfig(segment_bytes=1024, index_interval_bytes=100, remote_storage_enable=False)
    disk = MemoryFileSystem()
    machine = LogMachine(disk, config)
    log, ledger = machine.start(), LogLedger()
    for _ in range(14):
        ledger.append(log, [ledger.batch(3)])
    log.increment_log_start_offset(40)
    machine.kill()
    disk = disk.after_crash(Survival(Kept.ALL, Kept.ALL))
    bases = [int(name[:-4]) for name in disk.list_directory(PARTITION_DIR) if name.endswith(".log")]
    data = bytearray(disk.read_file(log_path(bases[1])))
    if is_cut:
        data[-1] ^= 1
        rewrite(disk, log_path(bases[1]), bytes(data))
    for base in [] if is_cut else bases[1:]:
        disk.unlink(log_path(base))
    disk = disk.after_crash(Survival(Kept.ALL, Kept.ALL))
    whole = FaultyFileSystem(disk.after_crash(Survival(Kept.ALL, Kept.ALL)))
    assert LogMachine(whole, config).start().recovery_report.lost_end_offset is not None
    for operation in range(1, whole.operation_count + 1):
        dying = FaultyFileSystem(disk.after_crash(Survival(Kept.ALL, Kept.ALL)))
        dying.crash_at(operation, part=0.5)
        with pytest.raises(SimulatedCrash):
            LogMachine(dying, config).start()
        for kept in (Kept.NONE, Kept.HALF, Kept.ALL):
            found = LogMachine(dying.reopened(Survival(kept, kept)), config).start()
            assert (
                found.offsets.log_start_offset,
                found.offsets.log_end_offset,
                len(found.reader.segments()),
            ) == (40, 40, 1)
            found.check()


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
    disk = MemoryFileSystem()
    log = LogMachine(disk, CONFIG).start()
    ledger = LogLedger()
    for _ in range(20):
        ledger.append(log, [ledger.batch(3)])
    log.flusher.flush()
    left = disk.after_crash(Survival(Kept.NONE, Kept.NONE)).contents()
    sealed = [log_path(info.base_offset).removesuffix(".log") for info in log.reader.segments()[:-1]]
    for path in (stem + suffix for stem in sealed for suffix in (".index", ".timeindex")):
        assert left[path] == disk.read_file(path) != b""


def test_a_recovery_tells_how_far_it_is_and_a_clean_start_says_nothing() -> None:
    disk = MemoryFileSystem()
    machine, log, _ = filled(disk, 20, flush=False)
    sizes = [info.size_bytes for info in log.reader.segments()]
    told: list[LoadProgress] = []
    manager = machine.open()
    manager.open_log(PARTITION, TOPIC_ID, machine.config, on_progress=told.append)
    remaining = [(len(sizes) - number, sum(sizes[number:])) for number in range(len(sizes))]
    assert told == [LoadProgress(PARTITION_DIR, count, size) for count, size in remaining]
    machine.stop()
    told.clear()
    machine.open().open_log(PARTITION, TOPIC_ID, machine.config, on_progress=told.append)
    assert told == []
