"""The contract of `FileSystem`, as tests.

Subclass `FileSystemContract`, give it the two fixtures, and let pytest find it::

class TestMine(FileSystemContract):
    @pytest.fixture
    def filesystem(self) -> FileSystem:
        return MyFileSystem()

    @pytest.fixture
    def root(self, filesystem: FileSystem) -> str:
        filesystem.make_directories("/here")
        return "/here"
"""

from __future__ import annotations

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import Buffer, FileSystem


class FileSystemContract:
    """Stateless: all state is in the fixtures."""

    def test_append_lands_at_the_end_and_reads_are_positional(
        self, filesystem: FileSystem, root: str
    ) -> None:
        file = filesystem.open_append(f"{root}/a")
        assert file.path == f"{root}/a"
        assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
        assert file.append([]) == 0
        assert file.read_at(3, 3) == b"two"
        assert file.append([b"four"]) == 4
        assert file.read_at(0, 100) == b"onetwothreefour"
        assert file.read_at(15, 1) == b""
        assert file.size() == 15
        file.close()

    def test_a_buffer_is_filled_as_far_as_the_file_goes(self, filesystem: FileSystem, root: str) -> None:
        file = filesystem.open_append(f"{root}/a")
        file.append([b"abcdef"])
        buffer = bytearray(b"......")
        assert (file.read_into(4, buffer), bytes(buffer)) == (2, b"ef....")
        assert (file.read_into(6, buffer), bytes(buffer)) == (0, b"ef....")
        assert (file.read_into(1, memoryview(buffer)[2:5]), bytes(buffer)) == (3, b"efbcd.")
        assert file.read_into(0, bytearray()) == 0
        file.close()

    def test_cached_bytes_come_whole_or_not_at_all(self, filesystem: FileSystem, root: str) -> None:
        file = filesystem.open_append(f"{root}/a")
        file.append([b"abcdef"])
        assert file.read_cached(1, 3) in (b"bcd", None)
        assert file.read_cached(0, 6) in (b"abcdef", None)
        assert file.read_cached(4, 3) is None
        assert file.read_cached(7, 1) is None
        file.close()

    def test_an_append_may_have_very_many_parts(self, filesystem: FileSystem, root: str) -> None:
        parts = [bytes([index % 251]) * 97 for index in range(5000)]
        file = filesystem.open_append(f"{root}/a")
        assert file.append(parts) == 97 * 5000
        assert file.read_at(0, 97 * 5000) == b"".join(parts)
        file.close()

    def test_a_file_is_opened_again_with_what_it_holds(self, filesystem: FileSystem, root: str) -> None:
        first = filesystem.open_append(f"{root}/a")
        first.append([b"abc"])
        first.close()
        again = filesystem.open_append(f"{root}/a")
        again.append([b"def"])
        again.sync()
        again.close()
        reader = filesystem.open_read(f"{root}/a")
        assert reader.read_at(0, 10) == b"abcdef"
        assert filesystem.read_file(f"{root}/a") == b"abcdef"
        with pytest.raises(OSError, match=r".*"):
            reader.append([b"x"])
        reader.close()

    def test_truncate_cuts_and_extends(self, filesystem: FileSystem, root: str) -> None:
        file = filesystem.open_append(f"{root}/a")
        file.append([b"abcdef"])
        file.truncate(2)
        file.append([b"X"])
        assert file.read_at(0, 10) == b"abX"
        file.truncate(5)
        assert file.read_at(0, 10) == b"abX\0\0"
        file.close()

    def test_reserved_space_is_not_seen(self, filesystem: FileSystem, root: str) -> None:
        file = filesystem.open_append(f"{root}/a")
        file.append([b"abc"])
        is_reserved = file.reserve(1 << 20)
        assert file.reserve(1 << 19) == is_reserved
        assert (file.size(), file.read_at(0, 10)) == (3, b"abc")
        file.append([b"def"])
        file.sync()
        assert filesystem.file_size(f"{root}/a") == 6
        assert filesystem.read_file(f"{root}/a") == b"abcdef"
        # Giving back what is left changes nothing either; nor does less than there is already take anything.
        file.truncate(6)
        assert file.reserve(2) == is_reserved
        assert file.read_at(0, 10) == b"abcdef"
        file.close()
        reader = filesystem.open_read(f"{root}/a")
        if is_reserved:
            with pytest.raises(OSError, match=r".*"):
                reader.reserve(1 << 20)
        reader.close()

    @pytest.mark.parametrize(
        "appends",
        [
            [[b"abc"]],
            [[b"x" * 8192]],
            [[b"a" * 5000, b"", bytearray(b"b" * 3192)], [memoryview(b"c" * 4096)]],
            [[b"a" * 4096], [b"bc"], [b"d" * 8192], [b"e"]],
            [[b"a" * 100_000, b"b" * 100_001, b"c"]],
        ],
        ids=["small", "blocks", "blocks of parts", "ends inside of a block", "large"],
    )
    def test_past_the_cache_files_have_the_same_contents(
        self, filesystem: FileSystem, root: str, appends: list[list[Buffer]]
    ) -> None:
        file = filesystem.open_append(f"{root}/a")
        file.bypass_cache()
        whole = b""
        for parts in appends:
            assert file.append(parts) == sum(map(len, parts))
            whole += b"".join(parts)
            assert file.read_at(1, len(whole)) == whole[1:]
        file.bypass_cache()
        file.append([b"end"])
        file.sync()
        file.close()
        assert filesystem.read_file(f"{root}/a") == whole + b"end"

    def test_missing_files_are_errors(self, filesystem: FileSystem, root: str) -> None:
        for operation in (
            filesystem.open_read,
            filesystem.read_file,
            filesystem.file_size,
            filesystem.modified_ms,
            filesystem.link_count,
            filesystem.unlink,
            filesystem.list_directory,
            filesystem.sync_directory,
        ):
            with pytest.raises(FileNotFoundError):
                operation(f"{root}/missing")
        with pytest.raises(FileNotFoundError):
            filesystem.rename(f"{root}/missing", f"{root}/b")
        with pytest.raises(FileNotFoundError):
            filesystem.open_append(f"{root}/missing/file")
        assert not filesystem.exists(f"{root}/missing")
        assert not filesystem.is_directory(f"{root}/missing")

    def test_names_are_listed_in_order(self, filesystem: FileSystem, root: str) -> None:
        for name in ("b", "a", "c"):
            filesystem.open_append(f"{root}/{name}").close()
        filesystem.make_directories(f"{root}/d/e")
        filesystem.make_directories(f"{root}/d/e")
        assert filesystem.list_directory(root) == ["a", "b", "c", "d"]
        assert filesystem.list_directory(f"{root}/d") == ["e"]
        assert filesystem.is_directory(f"{root}/d/e")
        assert filesystem.exists(f"{root}/a")
        assert not filesystem.is_directory(f"{root}/a")

    def test_rename_replaces_files_and_moves_directories(self, filesystem: FileSystem, root: str) -> None:
        replace_file(filesystem, f"{root}/a", b"new")
        replace_file(filesystem, f"{root}/b", b"old")
        filesystem.rename(f"{root}/a", f"{root}/b")
        assert filesystem.list_directory(root) == ["b"]
        assert filesystem.read_file(f"{root}/b") == b"new"
        filesystem.make_directories(f"{root}/d")
        filesystem.rename(f"{root}/b", f"{root}/d/b")
        filesystem.rename(f"{root}/d", f"{root}/e")
        assert filesystem.list_directory(root) == ["e"]
        assert filesystem.read_file(f"{root}/e/b") == b"new"

    def test_an_open_file_outlives_its_name(self, filesystem: FileSystem, root: str) -> None:
        replace_file(filesystem, f"{root}/a", b"abc")
        reader = filesystem.open_read(f"{root}/a")
        filesystem.unlink(f"{root}/a")
        assert filesystem.list_directory(root) == []
        assert reader.read_at(0, 3) == b"abc"
        reader.close()

    def test_trees_are_removed_whole(self, filesystem: FileSystem, root: str) -> None:
        filesystem.make_directories(f"{root}/d/e")
        replace_file(filesystem, f"{root}/d/e/a", b"abc")
        filesystem.remove_tree(f"{root}/d")
        filesystem.remove_tree(f"{root}/d")
        assert filesystem.list_directory(root) == []

    def test_sizes_and_syncs(self, filesystem: FileSystem, root: str) -> None:
        replace_file(filesystem, f"{root}/a", b"abc")
        filesystem.sync_directory(root)
        assert filesystem.file_size(f"{root}/a") == 3
        assert filesystem.modified_ms(f"{root}/a") >= 0
        filesystem.set_modified_ms(f"{root}/a", 1_700_000_000_123)
        assert filesystem.modified_ms(f"{root}/a") == 1_700_000_000_123
        with pytest.raises(FileNotFoundError):
            filesystem.set_modified_ms(f"{root}/missing", 1)
        assert filesystem.free_bytes(root) > 0

    def test_a_lock_has_one_holder(self, filesystem: FileSystem, root: str) -> None:
        lock = filesystem.try_lock(f"{root}/.lock")
        assert lock is not None
        assert filesystem.try_lock(f"{root}/.lock") is None
        lock.release()
        again = filesystem.try_lock(f"{root}/.lock")
        assert again is not None
        again.release()

    def test_a_shared_lock_waits_for_a_sole_holder_and_makes_no_file(
        self, filesystem: FileSystem, root: str
    ) -> None:
        with pytest.raises(FileNotFoundError):
            filesystem.try_lock_shared(f"{root}/.lock")
        assert filesystem.list_directory(root) == []
        lock = filesystem.try_lock(f"{root}/.lock")
        assert lock is not None
        assert filesystem.try_lock_shared(f"{root}/.lock") is None
        lock.release()
        shared, another = (filesystem.try_lock_shared(f"{root}/.lock") for _ in range(2))
        assert shared is not None
        assert another is not None
        shared.release()
        another.release()

    def test_a_link_is_the_same_file_under_another_name(self, filesystem: FileSystem, root: str) -> None:
        replace_file(filesystem, f"{root}/a", b"abc")
        filesystem.make_directories(f"{root}/d")
        filesystem.link(f"{root}/a", f"{root}/d/b")
        with pytest.raises(FileExistsError):
            filesystem.link(f"{root}/a", f"{root}/d/b")
        with pytest.raises(FileNotFoundError):
            filesystem.link(f"{root}/missing", f"{root}/d/c")
        assert filesystem.link_count(f"{root}/a") == filesystem.link_count(f"{root}/d/b") == 2
        filesystem.unlink(f"{root}/a")
        assert filesystem.read_file(f"{root}/d/b") == b"abc"
        assert filesystem.link_count(f"{root}/d/b") == 1
        # A file that takes a name leaves the other names of what had it alone.
        filesystem.link(f"{root}/d/b", f"{root}/c")
        replace_file(filesystem, f"{root}/c", b"new")
        assert filesystem.read_file(f"{root}/d/b") == b"abc"
        assert filesystem.link_count(f"{root}/d/b") == filesystem.link_count(f"{root}/c") == 1

    @pytest.mark.parametrize("size_bytes", [0, 3, 3_000_001])
    def test_a_copy_is_another_file(self, filesystem: FileSystem, root: str, size_bytes: int) -> None:
        data = (bytes(range(251)) * 12_000)[:size_bytes]
        replace_file(filesystem, f"{root}/a", data)
        filesystem.copy_file(f"{root}/a", f"{root}/b")
        with pytest.raises(FileExistsError):
            filesystem.copy_file(f"{root}/a", f"{root}/b")
        with pytest.raises(FileNotFoundError):
            filesystem.copy_file(f"{root}/missing", f"{root}/c")
        file = filesystem.open_append(f"{root}/b")
        file.append([b"more"])
        file.close()
        assert filesystem.read_file(f"{root}/b") == data + b"more"
        assert filesystem.read_file(f"{root}/a") == data

    def test_a_file_is_replaced_whole(self, filesystem: FileSystem, root: str) -> None:
        # What an earlier write left behind when it was cut off must not show through.
        leftover = filesystem.open_append(f"{root}/a.tmp")
        leftover.append([b"a long text that is left over"])
        leftover.close()
        replace_file(filesystem, f"{root}/a", b"first")
        replace_file(filesystem, f"{root}/a", b"2nd")
        assert filesystem.read_file(f"{root}/a") == b"2nd"
        assert filesystem.list_directory(root) == ["a"]
