"""Bytes that a recovery cuts off: gone as a torn tail, kept where sound batches are in it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.recovery import cut_remains
from stratalog.record.header import parse_header
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.filled_log import CONFIG, FilledLog, path_of
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip, overwrite


def damage(disk: MemoryFileSystem, base_offset: int, ordinal: int) -> int:
    """Flip a bit in the last byte of that batch of a segment; where the batch begins."""
    size = parse_header(disk.read_file(path_of(base_offset))).size_in_bytes
    flip(disk, path_of(base_offset), (ordinal + 1) * size - 1)
    return ordinal * size


def cut_files(disk: MemoryFileSystem | FaultyFileSystem) -> dict[str, bytes]:
    names = [name for name in disk.list_directory(PARTITION_DIR) if name.endswith(".cut")]
    return {name: disk.read_file(f"{PARTITION_DIR}/{name}") for name in names}


def test_sound_batches_behind_the_damage_are_kept_with_later_segments() -> None:
    filled = FilledLog(20)
    disk, bases = filled.killed(), filled.bases
    position = damage(disk, bases[1], 1)
    whole = {base: disk.read_file(path_of(base)) for base in bases}
    log = LogMachine(disk, CONFIG).start()
    assert log.offsets.log_end_offset == bases[1] + 3
    expected = {f"{bases[1] + 3:020d}.cut": whole[bases[1]][position:]}
    expected |= {f"{base:020d}.cut": whole[base] for base in bases[2:]}
    assert cut_files(disk) == expected
    assert log.recovery_report.remains == tuple(f"{PARTITION_DIR}/{name}" for name in sorted(expected))


def test_a_batch_is_found_wherever_the_search_reads_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk_bytes in (64, 101, 128):
        monkeypatch.setattr(cut_remains, "_CHUNK_BYTES", chunk_bytes)
        filled = FilledLog(5)
        disk, bases = filled.killed(), filled.bases
        damage(disk, bases[0], 3)
        LogMachine(disk, CONFIG).start()
        assert cut_files(disk)


@pytest.mark.parametrize("tail", [b"", bytes(5000), b"\x02" * 700, bytes(range(256)) * 3])
def test_of_a_torn_tail_nothing_is_kept(tail: bytes) -> None:
    filled = FilledLog(5)
    disk, bases = filled.killed(), filled.bases
    data = disk.read_file(path_of(bases[0]))
    overwrite(disk, path_of(bases[0]), data[:-3] + tail)
    log = LogMachine(disk, CONFIG).start()
    assert log.offsets.log_end_offset == 12
    assert log.recovery_report.truncated_bytes > 0
    assert (cut_files(disk), log.recovery_report.remains) == ({}, ())


def test_a_copy_of_a_batch_below_the_end_of_the_log_is_not_kept() -> None:
    filled = FilledLog(5)
    disk, bases = filled.killed(), filled.bases
    data = disk.read_file(path_of(bases[0]))
    overwrite(disk, path_of(bases[0]), data[:-3] + data[: parse_header(data).size_in_bytes])
    log = LogMachine(disk, CONFIG).start()
    assert log.offsets.log_end_offset == 12
    assert (cut_files(disk), log.recovery_report.remains) == ({}, ())


def test_what_an_earlier_recovery_kept_is_not_overwritten() -> None:
    filled = FilledLog(4)
    disk, bases = filled.killed(), filled.bases
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


def test_other_bytes_of_the_same_size_are_no_copy() -> None:
    filled = FilledLog(4)
    disk, bases = filled.killed(), filled.bases
    position = damage(disk, bases[0], 1)
    other = bytes(len(disk.read_file(path_of(bases[0]))) - position)
    file = disk.open_append(f"{PARTITION_DIR}/{3:020d}.cut")
    file.append([other])
    file.close()
    LogMachine(disk, CONFIG).start()
    assert cut_files(disk).keys() == {f"{3:020d}.cut", f"{3:020d}-2.cut"}
    assert cut_files(disk)[f"{3:020d}.cut"] == other


class Damaged:
    """A log with a damaged batch in its second segment, about to be opened."""

    def __init__(self) -> None:
        filled = FilledLog(14)
        disk, self.bases = filled.killed(), filled.bases
        damage(disk, self.bases[1], 1)
        self.disk = FaultyFileSystem(disk.after_crash(EVERYTHING_KEPT))

    def start(self) -> None:
        LogMachine(self.disk, CONFIG).start()


def test_a_crash_at_any_operation_loses_nothing_of_what_is_cut() -> None:
    sweep = CrashSweep(Damaged, Damaged.start)
    expected = set(cut_files(sweep.whole.disk).values())
    assert len(expected) == len(sweep.whole.bases) - 1

    def verify(death: Death[Damaged]) -> None:
        for found in death.disks():
            log = LogMachine(found, CONFIG).start()
            assert log.offsets.log_end_offset == death.subject.bases[1] + 3
            log.check()
            # No second copy: starts that die one after the other do not fill the disk.
            assert sorted(cut_files(found).values()) == sorted(expected)

    sweep.at_deaths(verify)


def test_an_offset_that_moved_into_a_later_batch_is_refused_and_nothing_is_cut() -> None:
    filled = FilledLog(5)
    disk, bases = filled.killed(), filled.bases
    data = bytearray(disk.read_file(path_of(bases[0])))
    size = parse_header(data).size_in_bytes
    data[size + 7] += 1
    overwrite(disk, path_of(bases[0]), bytes(data))
    before = disk.read_file(path_of(bases[0]))
    with pytest.raises(DataDirectoryError) as failure:
        LogMachine(disk, CONFIG).start()
    fields = failure.value.fields
    assert (fields["path"], fields["end_offset"], fields["base_offset"]) == (path_of(bases[0]), 7, 6)
    assert disk.read_file(path_of(bases[0])) == before
