"""What a recovery cuts off: gone as a torn tail, kept where sound batches are in it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.log_config import LogConfig
from stratalog.record.header import parse_header
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1)
SURVIVALS = (
    Survival(Kept.NONE, Kept.NONE),
    Survival(Kept.NONE, Kept.ALL),
    Survival(Kept.HALF, Kept.HALF),
    Survival(Kept.ALL, Kept.ALL),
)


def log_path(base_offset: int) -> str:
    return f"{PARTITION_DIR}/{base_offset:020d}.log"


def killed(request_count: int) -> tuple[MemoryFileSystem, list[int]]:
    """A log of three records a batch that nobody has closed, all of it on the disk, and its segments."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    log, ledger = machine.start(), LogLedger()
    for _ in range(request_count):
        ledger.append(log, [ledger.batch(3)])
    bases = [info.base_offset for info in log.reader.segments()]
    machine.kill()
    return disk.after_crash(Survival(Kept.ALL, Kept.ALL)), bases


def rewrite(disk: MemoryFileSystem, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.truncate(0)
    file.append([data])
    file.sync()


def damage(disk: MemoryFileSystem, base_offset: int, ordinal: int) -> int:
    """Flip a bit in the last byte of that batch of a segment; where the batch begins."""
    data = bytearray(disk.read_file(log_path(base_offset)))
    size = parse_header(data).size_in_bytes
    data[(ordinal + 1) * size - 1] ^= 1
    rewrite(disk, log_path(base_offset), bytes(data))
    return ordinal * size


def cut_files(disk: MemoryFileSystem | FaultyFileSystem) -> dict[str, bytes]:
    names = [name for name in disk.list_directory(PARTITION_DIR) if name.endswith(".cut")]
    return {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in names}


def test_sound_batches_behind_the_damage_are_kept_with_later_segments() -> None:
    disk, bases = killed(20)
    position = damage(disk, bases[1], 1)
    whole = {base: disk.read_file(log_path(base)) for base in bases}
    log = LogMachine(disk, CONFIG).start()
    assert log.offsets.log_end_offset == bases[1] + 3
    expected = {f"{bases[1] + 3:020d}.cut": whole[bases[1]][position:]}
    expected |= {f"{base:020d}.cut": whole[base] for base in bases[2:]}
    assert cut_files(disk) == expected
    assert log.recovery_report.remains == tuple(f"{PARTITION_DIR}/{name}" for name in sorted(expected))


@pytest.mark.parametrize("tail", [b"", bytes(5000), b"\x02" * 700, bytes(range(256)) * 3])
def test_of_a_torn_tail_nothing_is_kept(tail: bytes) -> None:
    disk, bases = killed(5)
    data = disk.read_file(log_path(bases[0]))
    rewrite(disk, log_path(bases[0]), data[:-3] + tail)
    log = LogMachine(disk, CONFIG).start()
    assert log.offsets.log_end_offset == 12
    assert log.recovery_report.truncated_bytes > 0
    assert (cut_files(disk), log.recovery_report.remains) == ({}, ())


def test_what_an_earlier_recovery_kept_is_not_overwritten() -> None:
    disk, bases = killed(4)
    damage(disk, bases[0], 1)
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    first = cut_files(disk)
    ledger = LogLedger()
    for _ in range(2):
        log.appender.append_as_leader(ledger.batch(3), 1)
    machine.kill()
    damage(disk, bases[0], 1)
    LogMachine(disk, CONFIG).start()
    assert cut_files(disk).keys() == {f"{3:020d}.cut", f"{3:020d}-2.cut"}
    assert first.items() < cut_files(disk).items()


def test_a_crash_at_any_operation_loses_nothing_of_what_is_cut() -> None:
    disk, bases = killed(14)
    damage(disk, bases[1], 1)
    whole = FaultyFileSystem(disk.after_crash(SURVIVALS[0]))
    LogMachine(whole, CONFIG).start()
    operation_count = whole.operation_count
    expected = set(cut_files(whole).values())
    assert len(expected) == len(bases) - 1
    for operation in range(1, operation_count + 1):
        dying = FaultyFileSystem(disk.after_crash(SURVIVALS[0]))
        dying.crash_at(operation, part=0.5)
        with pytest.raises(SimulatedCrash):
            LogMachine(dying, CONFIG).start()
        for survival in SURVIVALS:
            found = dying.reopened(survival)
            log = LogMachine(found, CONFIG).start()
            assert log.offsets.log_end_offset == bases[1] + 3
            log.check()
            assert expected <= set(cut_files(found).values()), (operation, survival)


def test_an_offset_that_moved_into_a_later_batch_is_refused_and_nothing_is_cut() -> None:
    disk, bases = killed(5)
    data = bytearray(disk.read_file(log_path(bases[0])))
    size = parse_header(data).size_in_bytes
    data[size + 7] += 1
    rewrite(disk, log_path(bases[0]), bytes(data))
    before = disk.read_file(log_path(bases[0]))
    with pytest.raises(DataDirectoryError) as failure:
        LogMachine(disk, CONFIG).start()
    assert failure.value.fields == {"path": log_path(bases[0]), "end_offset": 7, "base_offset": 6}
    assert disk.read_file(log_path(bases[0])) == before
