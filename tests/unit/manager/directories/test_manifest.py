"""The manifest of a log directory: its text, its replacement, and a start that cannot use it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import REBUILD
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    AsideEntry,
    Manifest,
    ManifestFile,
    PartitionEntry,
    PartitionState,
    parse_manifest,
    read_manifest,
)
from stratalog.manager.directories.meta_properties import META_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.edited_manifest import format_manifest
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine

UNTIERED = LogConfig(remote_storage_enable=False, retention_ms=-1)
SECOND, THIRD = TopicPartition("orders", 1), TopicPartition("a.b_c-d", 2**31 - 1)
PATH = f"{DATA_DIR}/{MANIFEST_FILE}"
EXAMPLE = Manifest(
    "66OiJamjSDoWdGb695vWvA",
    {"hT0dKZTUQYWRW1R1pmXqAA": "/disk b/logs"},
    {
        PARTITION: PartitionEntry(
            UUID(int=7), log_start_offset=105823, move_number=2, import_epoch=12, horizon_ms=1_700
        ),
        THIRD: PartitionEntry(UUID(int=8), PartitionState.INCOMING, 0, 1, "hT0dKZTUQYWRW1R1pmXqAA"),
    },
    {f"orders-1.{9:032x}-stray": AsideEntry(SECOND, UUID(int=9), 0, 17, 5)},
    cordoned=False,
)
TEXT = f"""manifest 1
directory 66OiJamjSDoWdGb695vWvA
cordoned no
sibling hT0dKZTUQYWRW1R1pmXqAA /disk%20b/logs
partition orders-0 AAAAAAAAAAAAAAAAAAAABw live 105823 2 - 12 1700
partition a.b_c-d-2147483647 AAAAAAAAAAAAAAAAAAAACA incoming 0 1 hT0dKZTUQYWRW1R1pmXqAA - -
aside orders-1.{9:032x}-stray orders-1 AAAAAAAAAAAAAAAAAAAACQ 0 17 5
"""

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
topic_partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))
offsets = st.integers(0, 2**63 - 1)
manifests = st.builds(
    Manifest,
    names,
    st.dictionaries(names, names),
    st.dictionaries(
        topic_partitions,
        st.builds(
            PartitionEntry,
            st.uuids(),
            state=st.sampled_from(PartitionState),
            log_start_offset=offsets,
            move_number=offsets,
            moving_to=names.filter(lambda name: name != "-"),
            import_epoch=st.none() | offsets,
            horizon_ms=st.none() | offsets,
        ),
    ),
    st.dictionaries(
        names, st.builds(AsideEntry, topic_partitions, st.uuids(), offsets, offsets, st.none() | offsets)
    ),
    st.none() | st.booleans(),
)


def sealed(text: str) -> bytes:
    return f"{crc32c(text.encode()):08x}\n{text}".encode()


def test_its_text_is_as_documented() -> None:
    assert format_manifest(EXAMPLE) == sealed(TEXT)
    assert parse_manifest(sealed(TEXT)) == EXAMPLE


@given(manifests)
def test_it_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert parse_manifest(format_manifest(manifest)) == manifest


def test_a_path_that_is_no_utf_8_is_kept() -> None:
    path = b"/\xff".decode(errors="surrogateescape")
    manifest = Manifest("a", {"b": path})
    assert parse_manifest(format_manifest(manifest)) == manifest


def test_every_flip_of_a_bit_and_every_cut_is_noticed() -> None:
    whole = format_manifest(EXAMPLE)
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            parse_manifest(bytes(flipped))
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            parse_manifest(whole[:size])


@given(st.binary())
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        parse_manifest(data)


@pytest.mark.parametrize(
    ("found", "other"),
    [
        ("manifest 1", "manifest 2"),
        ("directory ", "directories "),
        ("directory 66OiJamjSDoWdGb695vWvA\n", ""),
        ("sibling hT", "sibling  hT"),
        (" live ", " dead "),
        ("orders-0 ", "orders "),
        ("AAAABw", "AAAAB!"),
        ("105823", "-1"),
        ("105823", "0105823"),
        ("105823", "9" * 20),
        (" 0 17 5\n", " 0 17\n"),
    ],
)
def test_a_text_of_another_form_is_refused(found: str, other: str) -> None:
    assert found in TEXT
    with pytest.raises(CorruptRecordError):
        parse_manifest(sealed(TEXT.replace(found, other, 1)))


def new_file(disk: FaultyFileSystem) -> ManifestFile:
    disk.make_directories(DATA_DIR)
    disk.sync_directory("/")
    file = ManifestFile(disk, DATA_DIR, Manifest("x", partitions={PARTITION: PartitionEntry(TOPIC_ID)}))
    file.create()
    return file


def test_entries_are_changed_one_by_one_and_nothing_is_written_for_nothing() -> None:
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.update(partitions={SECOND: PartitionEntry(TOPIC_ID)}, siblings={"y": "/y"})
    file.change(PARTITION, log_start_offset=4)
    file.change(THIRD, log_start_offset=4)
    file.update(partitions={SECOND: None}, aside={"z": AsideEntry(SECOND, TOPIC_ID, 0, 1)})
    expected = Manifest(
        "x",
        {"y": "/y"},
        {PARTITION: PartitionEntry(TOPIC_ID, log_start_offset=4)},
        {"z": AsideEntry(SECOND, TOPIC_ID, 0, 1)},
    )
    assert file.now == read_manifest(disk, DATA_DIR) == expected
    count = disk.operation_count
    file.change(PARTITION, log_start_offset=4)
    file.update(partitions={SECOND: None}, siblings={"y": "/y"})
    assert disk.operation_count == count
    # An entry that is forgotten goes with the next change.
    file.forget_aside("z")
    assert disk.operation_count == count
    file.update()
    assert file.now == read_manifest(disk, DATA_DIR)
    assert file.now.aside == {}


class ChangedFile:
    """A manifest, one entry of which is changed."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.file = new_file(self.disk)
        self.old = self.file.now

    def change(self) -> None:
        self.file.change(PARTITION, log_start_offset=9)


def test_a_crash_or_a_refusal_within_a_change_leaves_what_was_or_what_is_to_be() -> None:
    sweep = CrashSweep(ChangedFile, ChangedFile.change)
    old, new = sweep.whole.old, sweep.whole.file.now

    def verify(found: Death[ChangedFile] | Failure[ChangedFile]) -> None:
        disk = found.subject.disk
        for survival in ALL_SURVIVALS:
            assert read_manifest(disk.reopened(survival), DATA_DIR) in (old, new)
        if isinstance(found, Failure):
            # What was refused is not there, and does not come back with a later change.
            file = found.subject.file
            assert isinstance(found.error, OSError)
            assert file.now == old
            file.change(PARTITION, log_start_offset=0)
            assert read_manifest(disk, DATA_DIR) == old

    sweep.at_deaths(verify)
    sweep.at_failures(verify, expected=(OSError,))


def filled(manager: LogManager, partition: TopicPartition, start_offset: int) -> None:
    log = manager.open_log(partition, TOPIC_ID, UNTIERED)
    for _ in range(16):
        log.appender.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v")]), 1)
    log.flusher.flush()
    log.increment_log_start_offset(start_offset)


def killed_machine(*data_dirs: str) -> LogMachine:
    """Records of two logs were deleted, and the process was killed right after."""
    machine = LogMachine(config=UNTIERED, data_dirs=data_dirs or (DATA_DIR,), ids=SequentialIds())
    manager = machine.open()
    manager.directories.alter_cordons(data_dirs[1:])
    filled(manager, PARTITION, 4)
    filled(manager, SECOND, 12)
    manager.directories.alter_cordons(None)
    machine.kill()
    return machine


def starts(machine: LogMachine) -> list[int]:
    manager = machine.open()
    return [manager.open_log(one, TOPIC_ID, UNTIERED).offsets.log_start_offset for one in (PARTITION, SECOND)]


def damage(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    return data.replace(b" 4 ", b" 1 ")


def later(data: bytes) -> bytes:
    return sealed(data.partition(b"\n")[2].decode().replace("manifest 1", "manifest 2"))


def of_another_directory(data: bytes) -> bytes:
    return sealed(data.partition(b"\n")[2].decode().replace("directory ", "directory other"))


def emptied(_: bytes) -> bytes:
    return b""


Change = Callable[[bytes], bytes] | None
DAMAGES: list[Change] = [damage, flip, later, bytes.upper, emptied, None]


def put(disk: MemoryFileSystem, change: Change) -> None:
    if change is None:
        disk.unlink(PATH)
    else:
        replace_file(disk, PATH, change(disk.read_file(PATH)))


@pytest.mark.parametrize("change", DAMAGES)
def test_one_that_cannot_be_used_is_no_start_and_can_be_made_anew(change: Change) -> None:
    machine = killed_machine()
    disk = machine.memory
    OffsetCheckpoint(disk, f"{DATA_DIR}/{LOG_START_OFFSET_FILE}").write({PARTITION: 3})
    put(disk, change)
    before = disk.contents()
    for _ in range(2):
        with pytest.raises(DataDirectoryError) as failure:
            machine.open()
        assert failure.value.fields["path"] == PATH
        assert f"write `{REBUILD.decode()}`" in failure.value.message
        assert "epochs of imports are lost" in failure.value.message
        assert disk.contents() == before
    replace_file(disk, PATH, REBUILD + b"\n")
    # Kafka's checkpoint may be older, so that deleted records are back: the operator knows.
    assert starts(machine) == [3, 0]
    machine.stop()
    assert starts(machine) == [3, 0]


def test_one_of_another_directory_is_to_be_put_back() -> None:
    machine = killed_machine()
    [status] = machine.open().directories.statuses()
    machine.kill()
    own = machine.memory.read_file(PATH)
    put(machine.memory, of_another_directory)
    with pytest.raises(DataDirectoryError) as failure:
        machine.open()
    found_id = f"other{status.directory_id}"
    fields = {"path": PATH, "directory_id": status.directory_id, "found_id": found_id}
    assert failure.value.fields == fields
    assert REBUILD.decode() not in failure.value.message
    replace_file(machine.memory, PATH, own)
    assert starts(machine) == [4, 12]


@pytest.mark.parametrize("change", [*DAMAGES, of_another_directory])
def test_one_that_cannot_be_used_takes_its_own_directory_offline(change: Change) -> None:
    machine = killed_machine(DATA_DIR, "/other")
    disk = machine.memory
    put(disk, change)
    manager = machine.open()
    assert [one.state for one in manager.directories.statuses()] == [
        DirectoryState.OFFLINE,
        DirectoryState.LIVE,
    ]
    assert PATH in manager.directories.statuses()[0].reason
    with pytest.raises(DataDirectoryError):
        manager.open_log(PARTITION, TOPIC_ID, UNTIERED)
    new = TopicPartition("new", 0)
    assert (
        manager.open_log(new, TOPIC_ID, UNTIERED, is_first_opening=True).local_log.directory == "/other/new-0"
    )


def test_kafkas_checkpoint_decides_nothing() -> None:
    machine = killed_machine()
    for starts_there in ({}, {PARTITION: 1, SECOND: 16}):
        OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{LOG_START_OFFSET_FILE}").write(starts_there)
        assert starts(machine) == [4, 12]
        machine.kill()
    starts(machine)
    machine.stop()
    found = OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{LOG_START_OFFSET_FILE}").read()
    assert found == {PARTITION: 4, SECOND: 12}


def test_properties_that_are_lost_are_no_start() -> None:
    machine = killed_machine()
    [status] = machine.open().directories.statuses()
    machine.kill()
    machine.disk.unlink(f"{DATA_DIR}/{META_FILE}")
    with pytest.raises(DataDirectoryError) as failure:
        machine.open()
    assert failure.value.fields == {"path": DATA_DIR, "directory_id": status.directory_id}


def test_a_directory_of_the_name_that_is_not_listed_is_not_used_before_an_operator_says_so() -> None:
    machine = killed_machine()
    machine.disk.rename(PARTITION_DIR, "/elsewhere")
    manager = machine.open()
    manager.delete_log(PARTITION)
    machine.kill()
    machine.disk.rename("/elsewhere", PARTITION_DIR)
    manager = machine.open()
    for is_first_opening in (False, True):
        with pytest.raises(DataDirectoryError) as failure:
            manager.open_log(PARTITION, TOPIC_ID, UNTIERED, is_first_opening=is_first_opening)
        assert failure.value.fields == {"path": PARTITION_DIR}
    machine.kill()
    replace_file(machine.disk, PATH, REBUILD)
    log = machine.open().open_log(PARTITION, TOPIC_ID, UNTIERED)
    assert log.offsets.log_end_offset == 16
