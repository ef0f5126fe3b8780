"""The S3 store keeps the contract on every server that can be had, and says clearly what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreNotUsableError,
)
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.object_store_contract import (
    PART_BYTES,
    ConditionalWriteRaces,
    ObjectStoreContract,
    run_at_once,
)
from tests.support.tiered.restore_world import RestoreWorld
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.tiered_store import TieredStore


class TestContract(ObjectStoreContract):
    server: S3Server

    @pytest.fixture
    def store(self, s3_server: S3Server, s3_store: S3ObjectStore) -> ObjectStore:
        self.server = s3_server
        return s3_store

    def proves_whole_objects(self) -> bool:
        return self.server.name != "moto"

    def begin_upload(self, store: ObjectStore, key: str) -> bool:
        root = store.url.removeprefix("s3://")
        bucket, _, prefix = root.partition("/")
        self.server.client().create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{key}")
        return True


class TestRaces(ConditionalWriteRaces):
    commits_per_writer = 2

    @pytest.fixture
    def store(self, s3_server: S3Server, s3_store: S3ObjectStore) -> ObjectStore:
        if not s3_server.has_atomic_writes:
            pytest.skip(f"{s3_server.name} checks and writes in two steps")
        return s3_store


def test_listings_of_many_pages_are_whole_and_in_order(
    s3_server: S3Server, s3_store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page holds 1,000 names; a few more in a directory of their own must not come between.

    moto takes a hundredth of a second for an object, and has pages of any size."""
    page_count = 1000
    if s3_server.name == "moto":
        page_count = 100
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(page_count))
    count = page_count + 10
    keys = [f"data/{number:04}-{number * 7919 % 1000:03}" for number in range(count)]
    keys.append(f"data/{count - 1:04}/x")

    def put(worker: int) -> None:
        for key in keys[worker::8]:
            s3_store.put(key, b"")

    run_at_once(put, 8)
    assert [info.key for info in s3_store.list("data/")] == keys
    assert [info.key for info in s3_store.list("data/", start_after=keys[90])] == keys[91:]
    assert [info.key for info in s3_store.list("data/009")] == keys[90:100]
    s3_store.delete_many(keys)
    assert list(s3_store.list("")) == []


def test_requests_are_seen_on_the_wire(s3_server: S3Server, s3_prefix: str) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    store = s3_server.open_store(s3_prefix, on_request=lambda method, key: seen.update([(method, key)]))
    store.put("dir/key", b"x" * 100)
    store.get_range("dir/key", 10, 20)
    stream = store.open_range("dir/key", 0, 100)
    stream.read(3)
    stream.close()
    store.put_parts("large", [b"x" * PART_BYTES, b"y"], part_bytes=PART_BYTES)
    list(store.list("dir/"))
    store.delete_many(["dir/key", "large"])
    assert seen == {
        ("PUT", "dir/key"): 1,
        ("GET", "dir/key"): 2,
        ("POST", "large"): 2,  # begin and complete
        ("PUT", "large"): 2,
        ("GET", ""): 1,
        ("POST", ""): 1,
    }
    store.close()


def test_a_multipart_upload_that_fails_leaves_no_parts(s3_server: S3Server, s3_prefix: str) -> None:
    class BrokenError(Exception):
        pass

    def fail_at_second_part(method: str, _key: str) -> None:
        seen.append(method)
        if method == "PUT" and seen.count("PUT") == 2:
            raise BrokenError

    seen: list[str] = []
    store = s3_server.open_store(s3_prefix, on_request=fail_at_second_part)
    with pytest.raises(BrokenError):
        store.put_parts("key", [b"x" * (2 * PART_BYTES)], part_bytes=PART_BYTES)
    assert seen == ["POST", "PUT", "PUT", "DELETE"]
    assert list(store.list("")) == []
    uploads = s3_server.client().list_multipart_uploads(Bucket=s3_server.bucket, Prefix=s3_prefix)
    assert uploads.get("Uploads", []) == []
    store.close()


def test_a_missing_bucket_is_explained(s3_server: S3Server) -> None:
    if s3_server.name == "external":
        pytest.skip("hosted stores answer 403 for buckets of others")
    store = replace(s3_server, bucket="there-is-no-such-bucket").open_store("prefix")
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.get("key"),
        lambda: store.get_range("key", 0, 1),
        lambda: store.put("key", b""),
        lambda: store.put("key", b"", if_absent=True),
        lambda: list(store.list("")),
        lambda: store.put_parts("key", [b"x" * (PART_BYTES + 1)], part_bytes=PART_BYTES),
        lambda: store.delete_many(["key"]),
    )
    for call in calls:
        with pytest.raises(StoreNotUsableError):
            call()
    with pytest.raises((StoreNotUsableError, PreconditionFailedError)):  # SeaweedFS looks at the ETag first.
        store.put("key", b"", if_match='"etag"')
    store.close()


@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong-secret"}, {"access_key_id": "wrong-key"}])
def test_wrong_credentials_are_refused_and_not_repeated(s3_server: S3Server, wrong: dict[str, str]) -> None:
    if not s3_server.checks_credentials:
        pytest.skip(f"{s3_server.name} accepts all keys")
    store = S3ObjectStore(SystemClock(), s3_server.settings("prefix", **wrong))
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.get("key"),
        lambda: store.put("key", b""),
        lambda: store.put("key", b"", if_match='"etag"'),
        lambda: list(store.list("")),
        lambda: store.delete_many(["key"]),
    )
    for call in calls:
        with pytest.raises(StoreAccessDeniedError) as refused:
            call()
        shown = f"{refused.value} {refused.value!r} {refused.value.fields}"
        assert s3_server.secret_access_key not in shown
        assert not set(wrong.values()) & set(shown.replace("`", " ").split())
        assert len(shown) < 1000
    store.close()


def test_a_large_object_is_copied_in_parts_and_no_byte_comes_here(
    s3_server: S3Server, s3_prefix: str
) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    source = s3_server.open_store(f"{s3_prefix}/source")
    settings = s3_server.settings(f"{s3_prefix}/target", copy_part_bytes=PART_BYTES)
    target = S3ObjectStore(SystemClock(), settings, lambda method, key: seen.update([(method, key)]))
    data = bytes(range(256)) * (2 * PART_BYTES // 256) + b"rest"
    source.put_parts("key", [data])
    place = source.place_of("key")
    assert place is not None
    assert target.copy(place, "copy", len(data))
    assert seen == {("POST", "copy"): 2, ("PUT", "copy"): 3}
    assert target.get("copy").data == data
    with pytest.raises(ObjectNotFoundError):
        target.copy(place._replace(name=f"{place.name}-lost"), "copy-2", len(data))
    assert list(target.list("copy-2")) == []
    uploads = s3_server.client().list_multipart_uploads(
        Bucket=s3_server.bucket, Prefix=f"{s3_prefix}/target/copy-2"
    )
    assert uploads.get("Uploads", []) == []
    source.close()
    target.close()


def test_a_store_is_restored_within_its_server(s3_server: S3Server, s3_prefix: str) -> None:
    world = RestoreWorld(11)
    for name in ("upload", "upload", "compact", "fold", "upload"):
        world.step(name)
    source = s3_server.open_store(f"{s3_prefix}/source", clock=world.clock)
    for info in world.bucket.list(""):
        source.put(info.key, world.bucket.get(info.key).data)
    seen: Counter[str] = Counter()
    target = s3_server.open_store(
        f"{s3_prefix}/target", clock=world.clock, on_request=lambda method, _: seen.update([method])
    )
    identity = StoreIdentity.open(source)
    cut = StoreCutter(source, identity).cut(Until())
    restore = StoreRestore(source, identity, cut, world.clock.now_ms())
    actor = world.actor(target, restore.identity_for(target))
    count = restore.plan().object_count
    assert restore.write(actor, lambda _: None).server_count == count > 1
    assert restore.write(actor, lambda _: None).there_count == count
    tiered = TieredStore(MemoryFileSystem(), target, world.clock, world.ids)
    assert world.readable(tiered) == world.readable()
    source.close()
    target.close()
