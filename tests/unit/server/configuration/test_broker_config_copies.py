"""Which copy of the altered configuration counts, whatever is missing, old, damaged or in another order."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Mapping

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidRequestError
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.server.configuration.broker_config_copies import BrokerConfigCopies
from stratalog.server.configuration.broker_config_file import (
    BROKER_CONFIG_FILE,
    StoredConfig,
    format_broker_config,
    parse_broker_config,
)
from stratalog.server.configuration.config_entry import ConfigChange
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival

DIRS = ("/a", "/b", "/c")
KEEP = {"log.retention.ms": "-1"}
DROP = {"log.retention.ms": "5"}


class RefusingDisk(FaultyFileSystem):
    """The directories of `full` take no file, those of `broken` cannot be read either."""

    def __init__(self, disk: MemoryFileSystem | None = None) -> None:
        super().__init__(disk)
        self.full: set[str] = set()
        self.broken: set[str] = set()

    def open_append(self, path: str) -> AppendFile:
        for directory in self.full | self.broken:
            if path.startswith(directory):
                number = errno.ENOSPC if directory in self.full else errno.EIO
                raise OSError(number, os.strerror(number), path)
        return super().open_append(path)

    def read_file(self, path: str) -> bytes:
        if any(path.startswith(directory) for directory in self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().read_file(path)


def path_in(directory: str) -> str:
    return f"{directory}/{BROKER_CONFIG_FILE}"


def text_of(overrides: Mapping[str, str], generation: int, *, is_edited: bool = False) -> str:
    text = format_broker_config(StoredConfig(overrides, generation))
    if not is_edited:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("checksum="))


def put(disk: FileSystem, directory: str, text: str) -> None:
    disk.make_directories(directory)
    file = disk.open_append(path_in(directory))
    file.truncate(0)
    file.append([text.encode()])
    file.close()


def disk_with(texts: Mapping[str, str]) -> RefusingDisk:
    disk = RefusingDisk()
    for directory in DIRS:
        disk.make_directories(directory)
    for directory, text in texts.items():
        put(disk, directory, text)
    return disk


def started(disk: FileSystem, *directories: str) -> BrokerConfigCopies:
    copies = BrokerConfigCopies(disk, directories)
    copies.read()
    copies.settle(disk, lambda: directories)
    return copies


def stored_in(disk: FileSystem, directory: str) -> StoredConfig | None:
    if not disk.exists(path_in(directory)):
        return None
    return parse_broker_config(disk.read_file(path_in(directory)).decode())


def all_stored(disk: FileSystem, *directories: str) -> list[StoredConfig | None]:
    return [stored_in(disk, directory) for directory in directories]


def test_what_is_altered_is_in_all_directories_and_any_of_them_is_enough() -> None:
    disk = disk_with({})
    started(disk, *DIRS).write(KEEP)
    assert all_stored(disk, *DIRS) == [StoredConfig(KEEP, 1)] * 3
    for count in range(1, 4):
        for directories in itertools.permutations(DIRS, count):
            assert BrokerConfigCopies(disk, directories).read() == KEEP


def test_an_empty_directory_in_the_place_of_the_first_one_forgets_nothing() -> None:
    disk = disk_with({"/b": text_of(KEEP, 4)})
    copies = started(disk, "/a", "/b")
    assert all_stored(disk, "/a", "/b") == [StoredConfig(KEEP, 4)] * 2
    copies.write(DROP)
    assert all_stored(disk, "/a", "/b") == [StoredConfig(DROP, 5)] * 2


def test_a_single_directory_says_that_nothing_was_altered_so_that_it_is_known_when_it_comes_back() -> None:
    disk = disk_with({})
    started(disk, "/a")
    assert stored_in(disk, "/a") == StoredConfig({}, 0)


def test_several_say_that_nothing_was_altered_so_that_one_of_them_may_fail() -> None:
    disk = disk_with({})
    started(disk, "/a", "/b")
    assert all_stored(disk, "/a", "/b") == [StoredConfig({}, 0)] * 2
    disk.broken = {"/a"}
    assert BrokerConfigCopies(disk, ("/a", "/b")).read() == {}


def test_an_older_copy_is_replaced_and_what_it_said_is_told(caplog: pytest.LogCaptureFixture) -> None:
    disk = disk_with({"/a": text_of(DROP, 8), "/b": text_of(KEEP, 9)})
    with caplog.at_level(logging.WARNING):
        copies = BrokerConfigCopies(disk, ("/a", "/b"))
        assert copies.read() == KEEP
    assert copies.path == path_in("/b")
    [record] = caplog.records
    assert "generation 8, and is replaced by generation 9" in record.getMessage()
    assert "log.retention.ms=5" in record.getMessage()
    started(disk, "/a", "/b")
    assert all_stored(disk, "/a", "/b") == [StoredConfig(KEEP, 9)] * 2


def test_a_file_of_the_former_version_counts_and_gives_way_to_any_generation() -> None:
    # The checksum was written by the version that had no generations.
    former = "version=0\nchecksum=a5a0b1c9\nlog.cleaner.threads=2\nlog.retention.ms=-1\n"
    disk = disk_with({"/a": former})
    started(disk, "/a", "/b").write(DROP)
    assert all_stored(disk, "/a", "/b") == [StoredConfig(DROP, 1)] * 2
    put(disk, "/c", former)
    assert BrokerConfigCopies(disk, ("/c", "/a")).read() == DROP


DAMAGE = [
    text_of(DROP, 5).replace("=5\n", "=6\n"),
    text_of(DROP, 5).replace("checksum=", "checksum=0"),
    text_of(DROP, 5).replace("version=1", "version=7"),
    text_of(DROP, 5)[:-3],
]


@pytest.mark.parametrize("damaged", DAMAGE)
@pytest.mark.parametrize(("generation", "is_outvoted"), [(4, False), (5, True), (6, True)])
def test_a_damaged_copy_counts_for_nothing_where_a_whole_one_is_as_new(
    damaged: str, generation: int, is_outvoted: bool
) -> None:
    disk = disk_with({"/a": damaged, "/b": text_of(KEEP, generation)})
    # One that was damaged in its generation may be newer than it says.
    claimed = max(5, 6 if "generation=6" in damaged else 0)
    if is_outvoted and generation >= claimed:
        started(disk, "/a", "/b")
        assert all_stored(disk, "/a", "/b") == [StoredConfig(KEEP, generation)] * 2
        return
    with pytest.raises(DataDirectoryError, match="no other log directory is known to have") as failure:
        BrokerConfigCopies(disk, ("/a", "/b")).read()
    assert failure.value.fields["path"] == path_in("/a")
    assert failure.value.fields["other_path"] == path_in("/b")
    assert disk.read_file(path_in("/a")).decode() == damaged


@pytest.mark.parametrize("damaged", ["", "\0" * 64, "version=1\n"[:4]])
def test_a_damaged_copy_of_which_nobody_knows_the_age_stops_the_start(damaged: str) -> None:
    disk = disk_with({"/a": text_of(KEEP, 5), "/b": damaged})
    with pytest.raises(DataDirectoryError, match="or remove it"):
        BrokerConfigCopies(disk, ("/a", "/b")).read()
    disk.unlink(path_in("/b"))
    assert BrokerConfigCopies(disk, ("/a", "/b")).read() == KEEP


def test_a_generation_that_looks_lower_by_damage_is_not_believed() -> None:
    disk = disk_with({"/a": text_of(KEEP, 9).replace("generation=9", "generation=1"), "/b": text_of(DROP, 8)})
    with pytest.raises(DataDirectoryError, match="damaged"):
        BrokerConfigCopies(disk, ("/a", "/b")).read()


def test_a_directory_that_cannot_be_read_is_done_without_and_never_alone() -> None:
    disk = disk_with({"/a": text_of(KEEP, 5), "/b": text_of(KEEP, 5)})
    disk.broken = {"/a"}
    assert BrokerConfigCopies(disk, ("/a", "/b")).read() == KEEP
    for others in ((), ("/c",)):
        with pytest.raises(DataDirectoryError, match="cannot be read") as failure:
            BrokerConfigCopies(disk, ("/a", *others)).read()
        assert failure.value.fields["path"] == path_in("/a")


def test_two_that_were_altered_without_each_other_are_for_a_human() -> None:
    disk = disk_with({})
    started(disk, "/a", "/b")
    started(disk, "/a").write(KEEP)
    started(disk, "/b").write(DROP)
    for directories in (("/a", "/b"), ("/b", "/a")):
        with pytest.raises(DataDirectoryError, match="neither is newer") as failure:
            BrokerConfigCopies(disk, directories).read()
        assert failure.value.fields["path"] == path_in(directories[0])
        assert failure.value.fields["other_path"] == path_in(directories[1])
    disk.unlink(path_in("/b"))
    assert BrokerConfigCopies(disk, ("/b", "/a")).read() == KEEP


@pytest.mark.parametrize("generation", [5, 6])
def test_one_that_a_human_has_edited_counts_before_those_of_its_generation(generation: int) -> None:
    edited = text_of(KEEP, generation, is_edited=True)
    disk = disk_with({"/a": text_of(DROP, 5), "/b": edited, "/c": text_of(DROP, 5)})
    started(disk, *DIRS)
    # Above all others, so that a crash half-way leaves nothing to choose from.
    assert all_stored(disk, *DIRS) == [StoredConfig(KEEP, generation + 1)] * 3


def test_one_that_a_human_has_edited_and_that_is_older_stops_the_start() -> None:
    disk = disk_with({"/a": text_of(DROP, 5), "/b": text_of(KEEP, 4, is_edited=True)})
    with pytest.raises(DataDirectoryError, match="raise the line `generation=`") as failure:
        BrokerConfigCopies(disk, ("/a", "/b")).read()
    assert (failure.value.fields["path"], failure.value.fields["other_generation"]) == (path_in("/b"), 5)


def test_what_one_directory_could_not_take_is_told_once_and_written_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = disk_with({})
    copies = started(disk, "/a", "/b")
    disk.full = {"/a"}
    with caplog.at_level(logging.WARNING):
        copies.write(KEEP)
        copies.write_rest()
        copies.write_rest()
    assert all_stored(disk, "/a", "/b") == [StoredConfig({}, 0), StoredConfig(KEEP, 1)]
    assert [path_in("/a") in record.getMessage() for record in caplog.records] == [True]
    # Whichever it is, the newer one is found as long as it is there.
    assert BrokerConfigCopies(disk, ("/a", "/b")).read() == KEEP
    disk.full = set()
    copies.write_rest()
    assert all_stored(disk, "/a", "/b") == [StoredConfig(KEEP, 1)] * 2


def test_what_no_directory_takes_is_refused_and_what_it_left_does_not_come_back() -> None:
    disk = disk_with({})
    copies = started(disk, "/a", "/b")
    copies.write(KEEP)
    disk.full = {"/a", "/b"}
    with pytest.raises(DataDirectoryError, match="goes on by the former one") as failure:
        copies.write(DROP)
    assert "No space left" in str(failure.value.fields["reason"])
    disk.full = set()
    # As if the failed write had reached a disk.
    put(disk, "/a", text_of(DROP, 2))
    copies.write_rest()
    assert all_stored(disk, "/a", "/b") == [StoredConfig(KEEP, 3)] * 2


def test_who_altered_it_between_reading_and_locking_is_noticed() -> None:
    disk = disk_with({"/a": text_of(KEEP, 1)})
    for text in (text_of(DROP, 2), text_of(DROP, 1)):
        put(disk, "/a", text_of(KEEP, 1))
        copies = BrokerConfigCopies(disk, ("/a", "/b"))
        copies.read()
        put(disk, "/a", text)
        with pytest.raises(DataDirectoryError, match="start it again"):
            copies.settle(disk, lambda: ("/a", "/b"))


def altered_until(operation: int) -> FaultyFileSystem | None:
    """The disk after a crash at this operation of an alteration in two directories; None: it has fewer."""
    disk = FaultyFileSystem()
    for directory in ("/a", "/b"):
        disk.make_directories(directory)
    disk.sync_directory("/")
    copies = started(disk, "/a", "/b")
    copies.write(KEEP)
    disk.crash_at(disk.operation_count + operation)
    try:
        copies.write(DROP)
    except SimulatedCrash:
        return disk
    return None


@pytest.mark.parametrize("survival", [Survival(Kept.NONE, names) for names in (Kept.NONE, Kept.ALL)])
@pytest.mark.parametrize("directories", [("/a", "/b"), ("/b", "/a"), ("/a",), ("/b",)])
def test_a_crash_between_two_writes_leaves_one_of_both_and_all_agree_after_a_start(
    survival: Survival, directories: tuple[str, ...]
) -> None:
    found: list[Mapping[str, str]] = []
    operation = 1
    while (disk := altered_until(operation)) is not None:
        reopened = disk.reopened(survival)
        started(reopened, *directories)
        found.append(BrokerConfigCopies(reopened, directories).read())
        # The other one comes back, and an alteration that was answered is never undone by it.
        started(reopened, *directories).write({"log.roll.ms": "7"})
        started(reopened, *directories).write({"log.roll.ms": "8"})
        started(reopened, "/a", "/b")
        assert {str(one) for one in all_stored(reopened, "/a", "/b")} == {
            str(stored_in(reopened, directories[0]))
        }
        assert BrokerConfigCopies(reopened, ("/b", "/a")).read() == {"log.roll.ms": "8"}
        operation += 1
    assert operation > 10
    assert {str(one) for one in found} <= {str(KEEP), str(DROP)}


def runtime_of(disk: FileSystem) -> RuntimeConfig:
    runtime = RuntimeConfig.open(disk, ("/a", "/b"), {}, 1 << 25)
    runtime.settle(disk, lambda: ("/a", "/b"))
    return runtime


def cordon(_: object) -> tuple[ConfigChange, ...]:
    return (ConfigChange("cordoned.log.dirs", "/a"),)


def test_what_must_hold_even_unwritten_holds_is_said_to_be_forgotten_and_is_written_later() -> None:
    disk = disk_with({})
    runtime = runtime_of(disk)
    disk.full = {"/a", "/b"}
    with pytest.raises(DataDirectoryError, match="goes on by the former one"):
        runtime.alter_by(cordon)
    assert runtime.current.values["cordoned.log.dirs"] == ()
    with pytest.raises(DataDirectoryError, match="the change holds from now on") as failure:
        runtime.alter_by(cordon, even_unwritten=True)
    assert "No space left" in str(failure.value.fields["reason"])
    assert runtime.current.values["cordoned.log.dirs"] == ("/a",)
    # Who asks again is not told that all is well before it is.
    with pytest.raises(DataDirectoryError, match="the change holds from now on"):
        runtime.alter_by(cordon, even_unwritten=True)
    disk.full = {"/a"}
    runtime.alter_by(cordon, even_unwritten=True)
    assert runtime_of(disk).current.values["cordoned.log.dirs"] == ("/a",)


def test_what_held_unwritten_is_written_by_itself() -> None:
    disk = disk_with({})
    runtime = runtime_of(disk)
    disk.full = {"/a", "/b"}
    with pytest.raises(DataDirectoryError):
        runtime.alter_by(cordon, even_unwritten=True)
    disk.full = set()
    runtime.write_rest()
    assert runtime_of(disk).current.values["cordoned.log.dirs"] == ("/a",)


def test_what_is_refused_for_itself_is_refused_even_unwritten() -> None:
    disk = disk_with({})
    runtime = runtime_of(disk)

    def refuse(_: object) -> tuple[ConfigChange, ...]:
        raise InvalidRequestError("no such directory")

    with pytest.raises(InvalidRequestError):
        runtime.alter_by(refuse, even_unwritten=True)
