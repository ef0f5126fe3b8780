"""Every file system keeps the contract, and the one that crashes forgets exactly what was not synced."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from stratalog.testing.filesystem_contract import FileSystemContract
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.crash_sweep import CrashSweep, Death

NOTHING = Survival(Kept.NONE, Kept.NONE)


class TestPosixFileSystem(FileSystemContract):
    @pytest.fixture
    def filesystem(self) -> FileSystem:
        return PosixFileSystem()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestMemoryFileSystem(FileSystemContract):
    @pytest.fixture
    def filesystem(self) -> FileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def root(self, filesystem: FileSystem) -> str:
        filesystem.make_directories("/r")
        return "/r"


class TestFaultyFileSystem(FileSystemContract):
    @pytest.fixture
    def filesystem(self) -> FileSystem:
        return FaultyFileSystem()

    @pytest.fixture
    def root(self, filesystem: FileSystem) -> str:
        filesystem.make_directories("/r")
        return "/r"


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot tell")
class TestPosixReadsOfCachedBytes:
    """The system decides; nothing waits for the disk where it would have to."""

    @pytest.fixture
    def flags(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The flags of each read that was asked for, if it had some."""
        found: list[int] = []

        def noting(descriptor: int, buffers: list[bytearray], position: int, flags: int) -> int:
            found.append(flags)
            if self.refusal is not None:
                raise OSError(self.refusal, os.strerror(self.refusal))
            [buffer] = buffers
            buffer[: self.read_bytes] = b"x" * self.read_bytes
            return self.read_bytes

        monkeypatch.setattr(os, "preadv", noting)
        return found

    refusal: int | None = None
    read_bytes = 4

    def test_it_never_waits(self, tmp_path: Path, flags: list[int]) -> None:
        file = PosixFileSystem().open_append(f"{tmp_path}/a")
        assert file.read_cached(0, 4) == b"xxxx"
        assert flags == [os.RWF_NOWAIT]
        self.read_bytes = 3
        assert file.read_cached(0, 4) is None, "the rest is not in memory"

    def test_what_is_not_in_memory_is_asked_for_again(self, tmp_path: Path, flags: list[int]) -> None:
        file = PosixFileSystem().open_append(f"{tmp_path}/a")
        self.refusal = errno.EAGAIN
        assert file.read_cached(0, 4) is None
        self.refusal = None
        assert file.read_cached(0, 4) == b"xxxx"

    def test_a_file_system_that_cannot_tell_is_asked_once(self, tmp_path: Path, flags: list[int]) -> None:
        file = PosixFileSystem().open_append(f"{tmp_path}/a")
        self.refusal = errno.EOPNOTSUPP
        assert file.read_cached(0, 4) is None
        assert file.read_cached(0, 4) is None
        assert len(flags) == 1

    def test_a_disk_that_fails_is_an_error(self, tmp_path: Path, flags: list[int]) -> None:
        file = PosixFileSystem().open_append(f"{tmp_path}/a")
        self.refusal = errno.EIO
        with pytest.RaisesExc(OSError, check=lambda error: error.errno == errno.EIO):
            file.read_cached(0, 4)

    def test_a_file_whose_reads_are_noted_may_wait(
        self, tmp_path: Path, flags: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system lets only the owner of a file leave its times alone."""
        whole_open = os.open

        def of_another(path: str, wanted: int, mode: int) -> int:
            if wanted & os.O_NOATIME:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            return whole_open(path, wanted, mode)

        monkeypatch.setattr(os, "open", of_another)
        file = PosixFileSystem().open_append(f"{tmp_path}/a")
        file.append([b"abcd"])
        assert file.read_at(0, 4) == b"abcd"
        assert file.read_cached(0, 4) is None
        assert flags == []


def test_posix_goes_on_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_writev, whole_write = os.writev, os.write

    def short_writev(descriptor: int, parts: list[memoryview]) -> int:
        return whole_writev(descriptor, [parts[0][:7001]])

    def short_write(descriptor: int, data: bytes) -> int:
        return whole_write(descriptor, data[:7])

    monkeypatch.setattr(os, "writev", short_writev)
    monkeypatch.setattr(os, "write", short_write)
    file = PosixFileSystem().open_append(str(tmp_path / "a"))
    small = [bytes([index]) * 30 for index in range(4)]
    large = [bytes([index]) * 50_000 for index in range(4)]
    assert file.append(small) == 120
    assert file.append(large) == 200_000
    assert file.append([large[0]]) == 50_000
    monkeypatch.undo()
    assert file.read_at(0, 300_000) == b"".join([*small, *large, large[0]])
    file.close()


WriteOf = Callable[[int, memoryview], int]


def append_past_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[WriteOf], WriteOf], parts: list[bytes]
) -> list[int]:
    """Append in one go to a file that passes the cache, where `os.write` does what `write` makes of it.
    Returns the sizes of the writes that it was asked for."""
    sizes: list[int] = []
    changed = write(os.write)

    def noting_write(descriptor: int, data: memoryview) -> int:
        sizes.append(len(data))
        return changed(descriptor, data)

    file = PosixFileSystem().open_append(str(path))
    file.bypass_cache()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", noting_write)
            assert file.append(parts) == sum(map(len, parts))
    finally:
        file.close()
    return sizes


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
class TestPastTheCache:
    def test_whole_blocks_are_written_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parts = [b"a" * 5000, b"b" * 100_000]
        sizes = append_past_the_cache(tmp_path / "a", monkeypatch, lambda write: write, parts)
        assert sizes == [102_400]
        assert (tmp_path / "a").read_bytes() == b"".join(parts)

    @pytest.mark.parametrize("most_bytes", [4096, 12_288])
    def test_short_writes_are_gone_on_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
    ) -> None:
        data = bytes(range(256)) * 128
        sizes = append_past_the_cache(
            tmp_path / "a",
            monkeypatch,
            lambda write: lambda descriptor, blocks: write(descriptor, blocks[:most_bytes]),
            [data],
        )
        assert sizes == [*range(len(data), 0, -most_bytes)]
        assert (tmp_path / "a").read_bytes() == data

    def test_a_file_that_goes_on_through_the_cache_shares_its_memory_with_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole_write, whole_writev = os.write, os.writev
        first, second, third = (bytes([number]) * 65_536 for number in range(3))

        def refuse(descriptor: int, data: memoryview) -> int:
            raise OSError(errno.EINVAL, "not here")

        def append_second(descriptor: int, parts: list[memoryview]) -> int:
            monkeypatch.undo()
            append_past_the_cache(tmp_path / "second", monkeypatch, lambda write: write, [second])
            return whole_writev(descriptor, parts)

        append_past_the_cache(tmp_path / "third", monkeypatch, lambda write: write, [third])
        monkeypatch.setattr(os, "write", refuse)
        monkeypatch.setattr(os, "writev", append_second)
        file = PosixFileSystem().open_append(str(tmp_path / "first"))
        file.bypass_cache()
        file.append([first])
        file.close()
        assert os.write is whole_write
        contents = [(tmp_path / name).read_bytes() for name in ("first", "second", "third")]
        assert contents == [first, second, third]

    @pytest.mark.parametrize("flag", [0, None], ids=["writes any number of bytes", "has no flag"])
    def test_it_needs_no_system_that_can(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int | None
    ) -> None:
        monkeypatch.setattr("stratalog.base.direct_appends._O_DIRECT", flag)
        data = bytes(range(256)) * 512
        append_past_the_cache(
            tmp_path / "a",
            monkeypatch,
            lambda write: lambda descriptor, blocks: write(descriptor, blocks[:7001]),
            [data],
        )
        assert (tmp_path / "a").read_bytes() == data

    @pytest.mark.parametrize("refused", [0, 2])
    def test_a_refusal_leads_through_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
    ) -> None:
        count = itertools.count()

        def refusing(write: WriteOf) -> WriteOf:
            def refuse_one(descriptor: int, blocks: memoryview) -> int:
                if next(count) == refused:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                return write(descriptor, blocks[:4096])

            return refuse_one

        data = bytes(range(256)) * 128 + b"end"
        sizes = append_past_the_cache(tmp_path / "a", monkeypatch, refusing, [data])
        assert sizes == [32_768, 28_672, 24_576][: refused + 1]
        assert (tmp_path / "a").read_bytes() == data

    def test_a_full_disk_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_: WriteOf) -> WriteOf:
            def refuse(_descriptor: int, _blocks: memoryview) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return refuse

        with pytest.raises(OSError) as raised:  # noqa: PT011 - the number says which
            append_past_the_cache(tmp_path / "a", monkeypatch, full, [bytes(8192)])
        assert raised.value.errno == errno.ENOSPC


def test_unsynced_bytes_are_forgotten_or_torn() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    disk.sync_directory("/")
    file = disk.open_append("/d/a")
    file.append([b"safe"])
    file.sync()
    disk.sync_directory("/d")
    file.append([b"loose!"])

    def left(kept: Kept) -> bytes:
        return disk.after_crash(Survival(kept, Kept.NONE)).read_file("/d/a")

    assert left(Kept.NONE) == b"safe"
    assert left(Kept.HALF) == b"safeloo"
    assert left(Kept.ALL) == b"safeloose!"
    assert left(Kept.ZEROS) == b"safe" + bytes(6)
    assert left(Kept.NOISE)[:4] == b"safe"
    assert len(left(Kept.NOISE)) == 10
    assert left(Kept.NOISE) not in (b"safeloose!", b"safe" + bytes(6))


def test_each_file_and_each_directory_may_have_a_fate_of_its_own() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    disk.make_directories("/e")
    disk.sync_directory("/")
    for name in ("/d/a", "/d/b", "/e/a", "/e/b"):
        disk.open_append(name).append([b"loose!"])

    def left(seed: int) -> dict[str, bytes | None]:
        return disk.after_crash(Survival(Kept.EACH, Kept.EACH, seed)).contents()

    found = [left(seed) for seed in range(300)]
    assert found == [left(seed) for seed in range(300)]
    pairs = {(one["/d/a"], one["/d/b"]) for one in found if "/d/b" in one}
    # Noise is the same for the same size.
    assert len(pairs) == 5 * 5
    names = {(one.keys() & {"/d/a", "/d/b"} == set(), "/d/b" in one, "/e/a" in one) for one in found}
    assert len(names) == 3 * 2
    assert all("/d/a" in one for one in found if "/d/b" in one)


def test_an_unsynced_truncation_may_be_undone_or_mixed_with_what_followed() -> None:
    disk = MemoryFileSystem()
    file = disk.open_append("/a")
    file.append([b"abcdef"])
    file.sync()
    disk.sync_directory("/")
    file.truncate(2)
    file.append([b"XY"])
    assert disk.after_crash(NOTHING).read_file("/a") == b"abcdef"
    assert disk.after_crash(Survival(Kept.HALF, Kept.NONE)).read_file("/a") == b"abX"
    assert disk.after_crash(Survival(Kept.ALL, Kept.NONE)).read_file("/a") == b"abXY"


def test_unsynced_names_are_forgotten_in_order() -> None:
    disk = MemoryFileSystem()
    replace_file(disk, "/old", b"1")
    disk.rename("/old", "/new")
    disk.open_append("/second").close()
    assert disk.after_crash(NOTHING).list_directory("/") == ["old"]
    assert disk.after_crash(Survival(Kept.NONE, Kept.HALF)).list_directory("/") == ["new"]
    assert disk.after_crash(Survival(Kept.NONE, Kept.ALL)).list_directory("/") == ["new", "second"]
    disk.sync_directory("/")
    assert disk.after_crash(NOTHING).list_directory("/") == ["new", "second"]


def test_a_synced_file_in_an_unsynced_directory_is_gone() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    replace_file(disk, "/d/a", b"1")
    assert disk.after_crash(NOTHING).list_directory("/") == []
    disk.sync_directory("/")
    assert disk.after_crash(NOTHING).read_file("/d/a") == b"1"


def test_the_space_that_files_use_is_that_of_their_contents() -> None:
    disk = MemoryFileSystem()
    assert disk.used_bytes() == 0
    for path, size in (("/a", 3), ("/d/b", 5), ("/d/e/c", 0), ("/d/e/f", 7)):
        disk.make_directories(path.rpartition("/")[0] or "/")
        replace_file(disk, path, bytes(size))
    assert disk.used_bytes() == 15 == sum(len(data or b"") for data in disk.contents().values())
    disk.unlink("/d/b")
    assert disk.used_bytes() == 10


def test_a_lock_ends_with_the_machine() -> None:
    disk = MemoryFileSystem()
    assert disk.try_lock("/.lock") is not None
    assert disk.after_crash(NOTHING).try_lock("/.lock") is not None


class Replaced:
    """A file that gets other contents."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        replace_file(self.disk, "/f", b"first")

    def replace(self) -> None:
        replace_file(self.disk, "/f", b"second")


def test_replacing_a_file_is_atomic_at_every_operation() -> None:
    def verify(death: Death[Replaced]) -> None:
        for survival in ALL_SURVIVALS:
            found = death.subject.disk.reopened(survival)
            assert found.read_file("/f") in (b"first", b"second")
            # The next attempt is not disturbed by what the crash left behind.
            replace_file(found, "/f", b"third")
            assert found.reopened(NOTHING).read_file("/f") == b"third"

    CrashSweep(Replaced, Replaced.replace).at_deaths(verify)


def test_a_crash_is_final_and_an_error_is_not() -> None:
    disk = FaultyFileSystem()
    disk.fail_at(2, part=0.5)
    file = disk.open_append("/a")
    with pytest.RaisesExc(OSError, check=lambda error: error.errno == errno.EIO):
        file.append([b"abcd"])
    assert file.read_at(0, 10) == b"ab"
    disk.crash_at(disk.operation_count + 1)
    with pytest.raises(SimulatedCrash):
        file.append([b"ef"])
    with pytest.raises(SimulatedCrash):
        disk.exists("/a")
    assert disk.trace == ["open_append /a", "append /a", "read_at /a", "append /a"]


def test_posix_copies_by_hand_where_the_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: int, target: int, count: int) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def nothing(source: int, target: int, count: int) -> int:
        return 0

    (tmp_path / "a").write_bytes(b"abc" * 1_000_000)
    for number, answer in enumerate((refused, nothing, None)):
        monkeypatch.setattr("stratalog.base.posix_filesystem._copy_file_range", answer)
        PosixFileSystem().copy_file(f"{tmp_path}/a", f"{tmp_path}/b{number}")
        assert (tmp_path / f"b{number}").read_bytes() == b"abc" * 1_000_000


def test_a_lock_of_another_kind_is_seen(tmp_path: Path) -> None:
    """Java locks files in the other way that Linux has. Only other processes meet such a lock."""
    (tmp_path / ".lock").touch()
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{tmp_path}/.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert PosixFileSystem().try_lock_shared(f"{tmp_path}/.lock") is None
        holder.communicate(b"")
    lock = PosixFileSystem().try_lock_shared(f"{tmp_path}/.lock")
    assert lock is not None
    lock.release()


def test_what_cannot_be_removed_of_a_tree_keeps_nothing_else_from_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem, unlink = PosixFileSystem(), os.unlink
    filesystem.make_directories(f"{tmp_path}/d/e")
    for path in ("d/a", "d/b", "d/c", "d/e/a", "d/e/b"):
        replace_file(filesystem, f"{tmp_path}/{path}", b"abc")

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == "b":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            filesystem.remove_tree(f"{tmp_path}/d")
    assert filesystem.list_directory(f"{tmp_path}/d") == ["b", "e"]
    assert filesystem.list_directory(f"{tmp_path}/d/e") == ["b"]
    filesystem.remove_tree(f"{tmp_path}/d")
    assert not filesystem.exists(f"{tmp_path}/d")
