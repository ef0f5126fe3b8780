"""Proof that a head went back to an older state: the notes of log directories, and the births of objects."""

from __future__ import annotations

import logging
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.ownership.seen_heads import (
    SEEN_HEADS_FILE,
    SeenHead,
    SeenHeads,
    format_seen_heads,
    parse_seen_heads,
    require_newest_heads,
)
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death

HEAD, CATALOG = "shards/0000/head", "catalog/head"
PATH = f"/a/{SEEN_HEADS_FILE}"
DIRS = ("/a", "/b")
SEEN = {
    3: SeenHead(118, UUID(int=7), 4, UUID(int=8)),
    0: SeenHead(1 << 40, UUID(int=1 << 127), 2_000, UUID(int=9)),
}


def test_heads_are_written_and_read_by_shard() -> None:
    data = format_seen_heads(SEEN)
    assert parse_seen_heads(data) == SEEN
    assert data.splitlines()[2] == f"3 118 {UUID(int=7)} 4 {UUID(int=8)}".encode()
    assert parse_seen_heads(format_seen_heads({})) == {}


def test_no_flipped_bit_is_taken_for_a_newer_head() -> None:
    data = format_seen_heads(SEEN)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert is_garbage(bytes(damaged)), bit


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"no checksum\n", format_seen_heads(SEEN)[:-1]])
def test_garbage_is_refused(garbage: bytes) -> None:
    assert is_garbage(garbage)


def is_garbage(data: bytes) -> bool:
    with suppress(ValueError):
        parse_seen_heads(data)
        return False
    return True


class World:
    """A store with one shard, and the log directories of a server."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        for path in DIRS:
            self.disk.make_directories(path)
        self.clock = ManualClock()
        self.bucket = MemoryObjectStore(self.clock)
        self.ids = SequentialIds(1)
        self.identity = StoreIdentity.open_or_create(self.bucket, self.ids)
        self.catalog = Catalog.open(self.actor())

    def actor(self) -> StoreActor:
        return StoreActor(
            store=self.bucket,
            clock=self.clock,
            random_source=Random(0),
            ids=self.ids,
            identity=self.identity,
            writer=Writer("owner", "new"),
        )

    def opened(self) -> MetadataLog:
        """The shard, as a start or another process reads it."""
        return MetadataLog.open(self.actor(), 0, lambda _: ())

    def claimed(self, *, is_folded: bool = True) -> MetadataLog:
        """The shard with one more claim."""
        metadata = self.opened()
        metadata.claim("owner", self.ids.uuid())
        if is_folded:
            metadata.fold()
        return metadata

    def note(self, metadata: MetadataLog, *directories: str) -> None:
        for directory in directories or ("/a",):
            SeenHeads(self.disk, [metadata]).note(directory)

    def put_object(self, birth: int) -> str:
        """An upload that never committed."""
        key = f"shards/0000/data/{format_object_name(birth, self.ids.uuid())}"
        self.bucket.put(key, b"object")
        return key

    def head(self) -> bytes:
        return self.bucket.get(HEAD).data

    def rebuild(self, key: str = HEAD) -> None:
        """Move the head away, and rebuild it."""
        self.bucket.delete_many([key])
        rebuild = HeadRebuild(self.actor())
        rebuild.write(rebuild.plan())

    def require(self, metadata: MetadataLog | None = None, catalog: Catalog | None = None) -> None:
        """Check the head as a start does, which changes nothing."""
        metadata = metadata or self.opened()
        before, files = self._contents(), self.disk.contents()
        try:
            require_newest_heads(self.disk, DIRS, catalog or Catalog.open(self.actor()), [metadata])
        finally:
            assert (self._contents(), self.disk.contents()) == (before, files)

    def refusal(self, key: str = HEAD) -> dict[str, object]:
        """The fields of the refusal."""
        with pytest.raises(StoreCorruptError) as refused:
            self.require()
        assert (refused.value.fields["key"], refused.value.fields["store"]) == (key, self.bucket.url)
        return dict(refused.value.fields)

    def _contents(self) -> dict[str, bytes]:
        return {found.key: self.bucket.get(found.key).data for found in self.bucket.list("")}


def commit(metadata: MetadataLog, count: int = 1) -> None:
    """Make so many commits. They leave one pin, because the work of a commit grows with the pins."""
    pin = metadata.pin(f"job {metadata.state().seq}", 1)
    for number in range(1, count):
        metadata.renew_pin(pin, 1 + number)


def test_a_head_that_goes_on_is_accepted() -> None:
    world = World()
    world.require()
    metadata = world.claimed()
    world.note(metadata)
    world.require()
    commit(metadata, 3)
    world.require()
    world.claimed()
    commit(world.opened(), 2)
    world.require()
    for _ in range(3):
        commit(metadata := world.opened())
        metadata.fold()
        world.require()


def test_a_head_without_a_claim_that_landed_is_refused() -> None:
    world = World()
    world.claimed()
    older = world.head()
    world.note(world.claimed(is_folded=False))
    world.bucket.put(HEAD, older)
    assert world.refusal() == {
        "key": HEAD,
        "store": world.bucket.url,
        "shard": 0,
        "seq": 2,
        "epoch": 1,
        "known_by": PATH,
        "seen_seq": 3,
        "seen_epoch": 2,
    }


def test_a_head_without_a_commit_under_the_same_claim_is_refused() -> None:
    world = World()
    metadata = world.claimed()
    older = world.head()
    commit(metadata)
    world.note(metadata)
    world.bucket.put(HEAD, older)
    fields = world.refusal()
    assert (fields["epoch"], fields["seen_epoch"]) == (1, 1)
    assert (fields["seq"], fields["seen_seq"]) == (2, 3)


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_head_that_went_back_and_on_is_refused(*, is_claimed: bool) -> None:
    """By the claim of another server, or by the commits of a compactor."""
    world = World()
    metadata = world.claimed()
    older = world.head()
    commit(metadata)
    if is_claimed:
        metadata = world.claimed()
    world.note(metadata)
    world.bucket.put(HEAD, older)
    if is_claimed:
        world.claimed()
    commit(metadata := world.opened(), 4)
    if is_claimed:
        metadata.fold()
    fields = world.refusal()
    assert metadata.state().seq == fields["seq"]
    assert metadata.state().seq > metadata_seq_of(fields)


def metadata_seq_of(fields: dict[str, object]) -> int:
    seq = fields["seen_seq"]
    assert isinstance(seq, int)
    return seq


def test_any_directory_is_a_proof_and_one_that_is_new_or_damaged_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    metadata = world.claimed()
    older = world.head()
    world.note(metadata, "/a")
    commit(metadata)
    world.note(metadata, "/b")
    world.bucket.put(HEAD, older)
    assert world.refusal()["known_by"] == f"/b/{SEEN_HEADS_FILE}"
    world.disk.open_append(f"/b/{SEEN_HEADS_FILE}").append([b"x"])
    with caplog.at_level(logging.WARNING):
        world.require()
    assert [record.getMessage().count(f"path=`/b/{SEEN_HEADS_FILE}`") for record in caplog.records] == [1]


def test_an_upload_that_never_committed_proves_the_commit_that_it_was_born_behind_and_no_later_one() -> None:
    world = World()
    metadata = world.claimed()
    commit(metadata)
    older = world.head()
    commit(metadata)
    born = [world.put_object(seq) for seq in (0, metadata.state().seq - 1)]
    world.require()
    newest = world.put_object(metadata.state().seq)
    world.bucket.put("shards/0000/data/zzz", b"of no object")
    world.require()
    world.bucket.put(HEAD, older)
    fields = world.refusal()
    assert (fields["known_by"], fields["seq"], fields["seen_seq"]) == (newest, 3, 4)
    world.bucket.delete_many([newest])
    assert len(born) == 2
    world.require()


def test_a_writer_that_commits_beside_the_start_is_no_proof() -> None:
    world = World()
    metadata, starting = world.claimed(), world.opened()
    commit(metadata, 3)
    world.put_object(metadata.state().seq)
    world.require(starting)
    assert starting.state().seq == metadata.state().seq


@pytest.mark.parametrize("is_folded", [True, False])
@pytest.mark.parametrize("is_snapshot", [True, False])
def test_a_rebuilt_head_is_accepted_whatever_was_seen(*, is_folded: bool, is_snapshot: bool) -> None:
    """Its checkpoint and history may have neither the claim nor the commits that were seen; after a restore
    of the whole bucket from a snapshot, it may even end before them."""
    world = World()
    metadata = world.claimed()
    older = {found.key: world.bucket.get(found.key).data for found in world.bucket.list("")}
    metadata = world.claimed(is_folded=is_folded)
    commit(metadata, 1_200 if is_snapshot else 3)
    world.put_object(metadata.state().seq)
    world.note(metadata)
    if is_snapshot:
        world.bucket.delete_many([found.key for found in world.bucket.list("")])
        for key, data in older.items():
            world.bucket.put(key, data)
    else:
        world.bucket.put(HEAD, older[HEAD])
    before = world.refusal()
    world.rebuild()
    world.require()
    rebuilt = world.opened().state()
    assert (rebuilt.seq < metadata_seq_of(before)) == is_snapshot
    # The next claim is noted, and then the rebuild excuses nothing any more.
    rebuilt_head = world.head()
    world.note(world.claimed())
    world.require()
    world.bucket.put(HEAD, rebuilt_head)
    world.refusal()


def test_a_shard_tells_of_an_older_head_of_the_catalog() -> None:
    world = World()
    metadata = world.claimed()
    topic = world.catalog.create("t", 1, {})
    older, read = world.bucket.get(CATALOG).data, Catalog.open(world.actor())
    world.catalog.alter(topic.topic_id, config={"retention.ms": "1"})
    tip = TopicIdPartition(topic.topic_id, 0)
    metadata.advance_log_start({tip: 5}, epoch=1, catalog_seq=world.catalog.seq)
    world.require()
    # The change came between the read of the catalog and that of the shard.
    world.require(catalog=read)
    world.bucket.put(CATALOG, older)
    fields = world.refusal(CATALOG)
    assert (fields["known_by"], fields["seq"], fields["seen_seq"]) == (HEAD, 1, 2)
    world.rebuild(CATALOG)
    world.require()


def test_notes_of_shards_that_others_own_now_stay() -> None:
    world = World()
    world.disk.open_append(PATH).append([format_seen_heads({3: SEEN[3]})])
    world.note(world.claimed())
    assert set(parse_seen_heads(world.disk.read_file(PATH))) == {0, 3}
    assert parse_seen_heads(world.disk.read_file(PATH))[3] == SEEN[3]


def test_nothing_is_written_without_news() -> None:
    world = World()
    disk = FaultyFileSystem()
    disk.make_directories("/a")
    metadata = world.claimed()
    seen = SeenHeads(disk, [metadata])
    seen.note("/a")
    before = disk.operation_count
    seen.note("/a")
    assert disk.operation_count == before
    commit(metadata)
    seen.note("/a")
    assert disk.operation_count > before


def test_a_directory_that_cannot_note_is_named(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem()
    disk.make_directories("/a")
    disk.fail_where(lambda line: line.startswith("rename /a"))
    with caplog.at_level(logging.WARNING):
        SeenHeads(disk, [World().claimed()]).try_note("/a")
    assert ["path=`/a`" in record.getMessage() for record in caplog.records] == [True]


class Noted:
    """A directory with notes, which gets newer ones."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.disk.make_directories("/a")
        self.disk.sync_directory("/")
        self.metadata = World().claimed()
        self.seen = SeenHeads(self.disk, [self.metadata])
        self.seen.note("/a")
        self.first_seq = self.metadata.state().seq
        commit(self.metadata)

    def note(self) -> None:
        self.seen.note("/a")


def test_a_crash_leaves_the_older_notes_or_the_newer_ones() -> None:
    def verify(death: Death[Noted]) -> None:
        first_seq = death.subject.first_seq
        for disk in death.disks():
            assert parse_seen_heads(disk.read_file(PATH))[0].seq in (first_seq, first_seq + 1)
            SeenHeads(disk, [death.subject.metadata]).note("/a")
            assert parse_seen_heads(disk.read_file(PATH))[0].seq == first_seq + 1

    CrashSweep(Noted, Noted.note).at_deaths(verify)
