"""The contract of object stores, as a suite of tests to subclass.

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        def store(self) -> Iterator[ObjectStore]: ...  # empty, and for this test alone

Wrappers pass it too. `ConditionalWriteRaces` is apart, because moto checks and writes in two steps: a race
there proves nothing but that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from uuid import UUID

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreUnavailableError,
)
from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.protocol import ObjectPlace, ObjectStore, UnfinishedUpload
from stratalog.testing.sequential_ids import SequentialIds

PART_BYTES = 5 << 20
"""The smallest part that S3 takes."""

# In byte order: `-` and `.` sort before the slash, digits and `=` behind it, so directories and files
# interleave.
KEYS_IN_ORDER = (
    "a-b",
    "a.b/c",
    "a/b",
    "a/c-d",
    "a/c.d/e",
    "a/c/d",
    "a/c/e",
    "a0",
    "a=",
    "b/0001-x",
    "b/0002-x",
    "b/001",
)

NO_KEYS = (
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/../b",
    ".a",
    "a/.b",
    "-a",
    "a b",
    "a\\b",
    "ä",
    "a?b",
    "a%2fb",
    "x" * 1000,
)


class WriteContract:
    """Writing whole objects, with and without a precondition."""

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5])
    def test_get_returns_what_was_put(self, store: ObjectStore, data: bytes) -> None:
        etag = store.put("dir/key", data)
        found = store.get("dir/key")
        assert found.data == data
        assert found.etag == etag
        assert etag

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_kind_of_buffer_can_be_put(
        self, store: ObjectStore, kind: Callable[[bytes], bytes]
    ) -> None:
        store.put("key", kind(b"content"))
        assert store.get("key").data == b"content"

    def test_a_put_replaces_and_changes_the_etag(self, store: ObjectStore) -> None:
        first = store.put("key", b"first")
        second = store.put("key", b"second")
        assert first != second
        assert store.get("key").data == b"second"

    def test_if_absent_creates_once(self, store: ObjectStore) -> None:
        store.put("key", b"first", if_absent=True)
        with pytest.raises(PreconditionFailedError):
            store.put("key", b"second", if_absent=True)
        assert store.get("key").data == b"first"

    def test_if_match_replaces_what_it_names(self, store: ObjectStore) -> None:
        first = store.put("key", b"first", if_absent=True)
        second = store.put("key", b"second", if_match=first)
        assert store.get("key").data == b"second"
        with pytest.raises(PreconditionFailedError):
            store.put("key", b"third", if_match=first)
        assert store.get("key").data == b"second"
        assert store.put("key", b"third", if_match=second) == store.get("key").etag

    def test_if_match_is_refused_where_nothing_is(self, store: ObjectStore) -> None:
        etag = store.put("key", b"first")
        with pytest.raises(PreconditionFailedError):
            store.put("missing", b"second", if_match=etag)
        store.delete_many(["key"])
        with pytest.raises(PreconditionFailedError):
            store.put("key", b"second", if_match=etag)
        for key in ("key", "missing"):
            with pytest.raises(ObjectNotFoundError):
                store.get(key)

    def test_if_absent_creates_again_what_was_deleted(self, store: ObjectStore) -> None:
        store.put("key", b"first", if_absent=True)
        store.delete_many(["key"])
        store.put("key", b"second", if_absent=True)
        assert store.get("key").data == b"second"

    def test_it_passes_the_probe_and_keeps_nothing_of_it(self, store: ObjectStore) -> None:
        require_conditional_writes(store, SequentialIds(1), "scratch/")
        assert list(store.list("")) == []

    @pytest.mark.parametrize(
        "parts",
        [
            [],
            [b"one"],
            [b"", b"one", b"", bytearray(b"two"), memoryview(b"three")],
            [b"x" * PART_BYTES],
            [b"x" * (PART_BYTES - 1), b"yz", b"w" * PART_BYTES],
            [bytes([number]) * (1 << 20) for number in range(11)],
        ],
        ids=["none", "one", "small", "exactly a part", "across parts", "many"],
    )
    def test_parts_are_put_one_behind_the_other(self, store: ObjectStore, parts: list[bytes]) -> None:
        whole = b"".join(parts)
        store.put_parts("key", parts, part_bytes=PART_BYTES)
        assert store.get("key").data == whole
        assert [(info.key, info.size) for info in store.list("")] == [("key", len(whole))]

    @pytest.mark.parametrize("key", NO_KEYS)
    def test_names_outside_the_alphabet_are_refused(self, store: ObjectStore, key: str) -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.put(key, b""),
            lambda: store.put_parts(key, [b""]),
            lambda: store.get(key),
            lambda: store.get_if_changed(key, "etag"),
            lambda: store.get_range(key, 0, 1),
            lambda: store.open_range(key, 0, 1),
            lambda: store.delete_many(["key", key]),
        )
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()

    def test_a_copy_has_the_bytes_of_its_source(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 41
        store.put("source/key", data)
        place = store.place_of("source/key")
        if place is None:
            assert not store.copy(ObjectPlace("server", "bucket", "source/key"), "copy", len(data))
            assert [info.key for info in store.list("")] == ["source/key"]
            return
        store.put("copy", b"replaced")
        assert store.copy(place, "copy", len(data))
        store.delete_many(["source/key"])
        assert store.get("copy").data == data
        assert store.place_of("copy") != place

    def test_a_copy_of_what_is_missing_writes_nothing(self, store: ObjectStore) -> None:
        place = store.place_of("source")
        if place is not None:
            with pytest.raises(ObjectNotFoundError):
                store.copy(place, "copy", 10)
        assert list(store.list("")) == []

    def test_an_object_of_another_server_is_not_copied(self, store: ObjectStore) -> None:
        assert not store.copy(ObjectPlace("https://elsewhere.example", "bucket", "source"), "copy", 10)
        assert list(store.list("")) == []


class ReadContract:
    """Reading whole objects, ranges and streams."""

    def test_what_is_missing_is_not_found(self, store: ObjectStore) -> None:
        store.put("key", b"content")
        calls: tuple[Callable[[str], object], ...] = (
            store.get,
            lambda key: store.get_if_changed(key, "etag"),
            lambda key: store.get_range(key, 0, 1),
            lambda key: store.open_range(key, 0, 1),
        )
        for key in ("missing", "key-longer", "ke", "dir/missing"):
            for call in calls:
                with pytest.raises(ObjectNotFoundError):
                    call(key)

    def test_an_unchanged_object_is_not_sent_again(self, store: ObjectStore) -> None:
        first = store.put("key", b"first")
        assert store.get_if_changed("key", first) is None
        second = store.put("key", b"second")
        changed = store.get_if_changed("key", first)
        assert changed is not None
        assert (changed.data, changed.etag) == (b"second", second)

    def test_dates_are_the_stores_own_and_do_not_go_back(self, store: ObjectStore) -> None:
        store.put("key", b"content")
        dates = [store.get("key").date_ms for _ in range(3)]
        assert all(earlier <= later for earlier, later in pairwise(dates))
        [info] = store.list("key")
        # Seconds are all that HTTP dates have.
        assert abs(info.modified_ms - dates[0]) <= 60_000

    @pytest.mark.parametrize(("position", "size"), [(0, 1), (0, 100), (37, 21), (99, 1)])
    def test_a_range_is_exactly_what_was_asked_for(
        self, store: ObjectStore, position: int, size: int
    ) -> None:
        content = bytes(range(100))
        store.put("key", content)
        assert store.get_range("key", position, size) == content[position : position + size]
        stream = store.open_range("key", position, size)
        assert stream.read(1000) == content[position : position + size]
        assert stream.read(1000) == b""
        stream.close()

    @pytest.mark.parametrize(("position", "size"), [(0, 101), (99, 2), (100, 1), (1000, 1000)])
    def test_a_range_that_the_object_does_not_have_is_corruption(
        self, store: ObjectStore, position: int, size: int
    ) -> None:
        store.put("key", bytes(100))
        with pytest.raises(StoreCorruptError):
            store.get_range("key", position, size)
        with pytest.raises(StoreCorruptError):
            store.open_range("key", position, size)

    def test_an_empty_object_has_no_ranges(self, store: ObjectStore) -> None:
        store.put("key", b"")
        with pytest.raises(StoreCorruptError):
            store.get_range("key", 0, 1)

    def test_a_stream_gives_as_much_as_is_asked_for(self, store: ObjectStore) -> None:
        content = bytes(number % 251 for number in range(3 << 20))
        store.put("key", content)
        stream = store.open_range("key", 7, (3 << 20) - 11)
        position = 7
        for size in (0, 1, 10, 65_536, 1_000_003, 0, 1 << 20):
            assert stream.read(size) == content[position : position + size]
            position += size
        assert stream.read(1 << 30) == content[position:-4]
        assert stream.read(1) == b""
        stream.close()
        stream.close()

    def test_a_stream_of_another_version_is_refused(self, store: ObjectStore) -> None:
        store.put("key", b"1" * 100)
        stream = store.open_range("key", 10, 20)
        etag = stream.etag()
        assert etag == store.get("key").etag
        stream.close()
        stream = store.open_range("key", 20, 80, if_match=etag)
        assert (stream.etag(), stream.read(100)) == (etag, b"1" * 80)
        stream.close()
        store.put("key", b"2" * 100)
        with pytest.raises(PreconditionFailedError):
            store.open_range("key", 20, 80, if_match=etag)
        with pytest.raises(ObjectNotFoundError):
            store.open_range("absent", 0, 1, if_match=etag)

    def test_streams_are_independent(self, store: ObjectStore) -> None:
        store.put("a", b"a" * (2 << 20))
        store.put("b", b"b" * (2 << 20))
        streams = [store.open_range(key, 0, 2 << 20) for key in ("a", "b", "a")]
        for _ in range(4):
            assert [set(stream.read(1 << 19)) for stream in streams] == [{97}, {98}, {97}]
        for stream in streams:
            stream.close()

    def test_a_stream_that_is_closed_early_disturbs_no_other(self, store: ObjectStore) -> None:
        store.put("key", b"x" * (8 << 20))
        for _ in range(5):
            stream = store.open_range("key", 0, 8 << 20)
            assert stream.read(3) == b"xxx"
            stream.close()
            assert store.get_range("key", 0, 2) == b"xx"

    def test_a_stream_shows_one_version(self, store: ObjectStore) -> None:
        store.put("key", b"1" * (4 << 20))
        stream = store.open_range("key", 0, 4 << 20)
        assert stream.read(1) == b"1"
        store.put("key", b"2" * (4 << 20))
        try:
            assert set(stream.read(4 << 20)) == {ord("1")}
        except LogStoreError:
            pass  # To break off is allowed, to mix is not.
        stream.close()


class ListContract:
    """Listing and deleting."""

    absent_count = 1001
    """With them a deletion takes more keys than one request of S3 does."""

    @pytest.fixture
    def filled(self, store: ObjectStore) -> ObjectStore:
        """Not in the order of the keys, so that no store can get away with remembering."""
        for key in sorted(KEYS_IN_ORDER, key=lambda key: key[::-1]):
            store.put(key, key.encode())
        return store

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert list(store.list("")) == []
        assert list(store.list("a/b")) == []

    def test_everything_is_listed_in_byte_order(self, filled: ObjectStore) -> None:
        assert [(info.key, info.size) for info in filled.list("")] == [
            (key, len(key)) for key in KEYS_IN_ORDER
        ]
        assert not any(info.is_archived for info in filled.list("")), "nothing has archived them"

    @pytest.mark.parametrize(
        "prefix", ["", "a", "a/", "a/c", "a/c/", "a.", "a.b/", "b/000", "b/0001-x", "c", "a/c-d"]
    )
    def test_prefixes_and_starts_select(self, filled: ObjectStore, prefix: str) -> None:
        selected = [key for key in KEYS_IN_ORDER if key.startswith(prefix)]
        assert [info.key for info in filled.list(prefix)] == selected
        for start_after in (*KEYS_IN_ORDER, prefix, "a", "a/", "a/c", "a.b", "b/0001", "zzz"):
            found = [info.key for info in filled.list(prefix, start_after=start_after)]
            assert found == [key for key in selected if key > start_after], f"start_after={start_after}"

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", ".", "a/.", "a b"])
    def test_prefixes_that_no_key_has_are_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidRequestError):
            list(store.list(prefix))

    def test_deleted_objects_are_gone(self, filled: ObjectStore) -> None:
        gone = KEYS_IN_ORDER[::2]
        filled.delete_many([*gone, "missing", "dir/missing"])
        assert tuple(info.key for info in filled.list("")) == KEYS_IN_ORDER[1::2]
        with pytest.raises(ObjectNotFoundError):
            filled.get(gone[0])
        filled.delete_many(gone)
        filled.delete_many([])

    def test_more_can_be_deleted_than_one_request_takes(self, filled: ObjectStore) -> None:
        filled.delete_many(
            [f"missing/{number:05}" for number in range(self.absent_count)] + list(KEYS_IN_ORDER)
        )
        assert list(filled.list("")) == []


class UnfinishedUploadContract:
    """Multipart uploads, also those that end early. `begin_upload` is for stores that know such uploads."""

    def proves_whole_objects(self) -> bool:
        """False for a server that does not compare the checksum of a whole object in parts."""
        return True

    def begin_upload(self, store: ObjectStore, key: str) -> bool:
        """Begin a multipart upload and leave it; False for a store that has none."""
        del store, key
        return False

    def test_a_finished_upload_is_not_listed(self, store: ObjectStore) -> None:
        store.put_parts("data/key", [b"x" * PART_BYTES, b"y"], part_bytes=PART_BYTES)
        assert list(store.list_uploads("")) == []

    def test_an_upload_appears_when_it_is_complete(self, store: ObjectStore) -> None:
        """Each request may be repeated."""
        upload, parts = store.open_upload("data/key"), ([b"x" * (PART_BYTES - 1), b"y"], [b"z", b"", b"zz"])
        for number, part in enumerate(parts, start=1):
            upload.put_part(number, part)
            upload.put_part(number, part)
        assert list(store.list("")) == []
        whole = b"".join(parts[0] + parts[1])
        for _ in range(2):
            upload.complete(content_crc([whole]))
        upload.abort()
        assert store.get("data/key").data == whole
        assert list(store.list_uploads("")) == []

    def test_other_bytes_than_were_sent_do_not_appear(self, store: ObjectStore) -> None:
        upload = store.open_upload("data/key")
        upload.put_part(1, [b"x" * PART_BYTES])
        upload.put_part(2, [b"y"])
        if not self.proves_whole_objects():
            upload.abort()
            return
        with pytest.raises(StoreCorruptError) as refused:
            upload.complete(1)
        assert refused.value.fields["key"] == "data/key"
        with pytest.raises((StoreCorruptError, StoreUnavailableError)):
            upload.complete(1)
        assert list(store.list("")) == []
        upload.abort()

    def test_an_aborted_upload_leaves_nothing(self, store: ObjectStore) -> None:
        upload = store.open_upload("data/key")
        upload.put_part(1, [b"x"])
        upload.abort()
        assert list(store.list_uploads("")) == []
        with pytest.raises(StoreUnavailableError):
            upload.complete(content_crc([b"x"]))
        assert list(store.list("")) == []

    def test_an_upload_that_fails_leaves_nothing(self, store: ObjectStore) -> None:
        def parts() -> Iterator[bytes]:
            yield b"x" * PART_BYTES
            yield b"y" * PART_BYTES
            raise EOFError

        with pytest.raises(EOFError):
            store.put_parts("data/key", parts(), part_bytes=PART_BYTES)
        assert list(store.list_uploads("")) == []
        assert list(store.list("")) == []

    def test_unfinished_uploads_are_listed_and_aborted(self, store: ObjectStore) -> None:
        if not self.begin_upload(store, "data/key"):
            store.abort_upload(UnfinishedUpload("data/key", "unknown", 0))
            return
        [found] = store.list_uploads("data/")
        assert found.key == "data/key"
        # moto gives a day in the past, all others seconds at best.
        assert found.begun_ms <= store_now_ms(store) + 1000
        assert list(store.list_uploads("other/")) == []
        store.abort_upload(found)
        store.abort_upload(found)
        assert list(store.list_uploads("data/")) == []
        assert [info.key for info in store.list("data/")] == []

    def test_prefixes_of_uploads_that_no_key_has_are_refused(self, store: ObjectStore) -> None:
        with pytest.raises(InvalidRequestError):
            list(store.list_uploads("a//"))


def store_now_ms(store: ObjectStore) -> int:
    """The time of the store's clock."""
    store.put("now", b"")
    now_ms = store.get("now").date_ms
    store.delete_many(["now"])
    return now_ms


class ObjectStoreContract(WriteContract, ReadContract, ListContract, UnfinishedUploadContract):
    """All that a single user can see. Subclass it with a fixture `store`."""


class ConditionalWriteRaces:
    """Conditional writes by many at once. Subclass it with a fixture `store`."""

    writer_count = 16
    commits_per_writer = 3

    def test_one_of_many_creators_wins(self, store: ObjectStore) -> None:
        winners: list[int] = []

        def create(writer: int) -> None:
            try:
                store.put("key", b"%d" % writer, if_absent=True)
            except PreconditionFailedError:
                return
            winners.append(writer)

        run_at_once(create, self.writer_count)
        [winner] = winners
        assert store.get("key").data == b"%d" % winner

    def test_every_acknowledged_commit_is_in_the_history_once(self, store: ObjectStore) -> None:
        store.put("head", b"", if_absent=True)
        acknowledged: list[bytes] = []

        def commit(writer: int) -> None:
            ids = SequentialIds(writer)
            for _ in range(self.commits_per_writer):
                entry = _commit(store, ids.uuid())
                acknowledged.append(entry)

        run_at_once(commit, self.writer_count)
        history = store.get("head").data.split()
        assert len(history) == len(set(history)), "something was committed twice"
        assert sorted(history) == sorted(acknowledged), "a commit was lost or overwritten"


def _commit(store: ObjectStore, identifier: UUID) -> bytes:
    """Add to the head as an owner would: whatever the answer, the head says whether it landed."""
    entry = str(identifier).encode()
    while True:
        head = store.get("head")
        if entry in head.data:
            return entry
        try:
            store.put("head", head.data + b" " + entry, if_match=head.etag)
        except LogStoreError as error:
            if not (error.retriable or isinstance(error, PreconditionFailedError)):
                raise


def run_at_once(task: Callable[[int], None], thread_count: int) -> None:
    """Run `task(0)` to `task(thread_count - 1)` in threads released together; re-raises a failure."""
    barrier = threading.Barrier(thread_count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            task(number)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(thread_count)]  # noqa: TID251
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
