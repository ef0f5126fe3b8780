"""Buckets with versions, locks and archives, on moto: deleted data stays or goes as the url says,
and a locked object holds up no other."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DeletionRefusedError, ObjectArchivedError, StoreNotUsableError
from stratalog.objectstore import s3
from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_bucket_state import (
    OBJECTS_ARE_LOCKED,
    VERSIONING_IS_SUSPENDED,
    VERSIONS_ARE_DELETED,
    VERSIONS_ARE_KEPT,
)
from stratalog.testing.object_store_contract import ObjectStoreContract
from tests.support.service.service_bench import service_bench
from tests.support.tiered.s3_servers import S3Server

_NUMBERS = itertools.count(1)


class Bucket:
    """A bucket of its own on moto, and stores in it. Not thread-safe: one test uses it."""

    def __init__(self, server: S3Server, client: Any, *, locks: bool = False) -> None:
        self.server = replace(server, bucket=f"versioned-{next(_NUMBERS)}")
        self.client = client
        self.client.create_bucket(Bucket=self.server.bucket, ObjectLockEnabledForBucket=locks)
        self.set_versioning("Enabled")

    def set_versioning(self, status: str) -> None:
        self.client.put_bucket_versioning(
            Bucket=self.server.bucket, VersioningConfiguration={"Status": status}
        )

    def store(self, **options: Any) -> S3ObjectStore:
        return S3ObjectStore(SystemClock(), self.server.settings("root", **options))

    def lock(self, key: str) -> None:
        until = datetime.now(UTC) + timedelta(days=1)
        self.client.put_object_retention(
            Bucket=self.server.bucket,
            Key=f"root/{key}",
            Retention={"Mode": "COMPLIANCE", "RetainUntilDate": until},
        )

    def versions(self) -> list[str]:
        """The names of all versions and markers."""
        answer = self.client.list_object_versions(Bucket=self.server.bucket)
        found = [*answer.get("Versions", []), *answer.get("DeleteMarkers", [])]
        return sorted(str(one["Key"]).removeprefix("root/") for one in found)


@pytest.fixture(scope="module")
def client(moto_server: S3Server) -> Any:
    """One for all tests: it takes longer to make than most of them."""
    return moto_server.client()


@pytest.fixture
def bucket(moto_server: S3Server, client: Any) -> Bucket:
    return Bucket(moto_server, client)


@pytest.fixture
def locking(moto_server: S3Server, client: Any) -> Bucket:
    return Bucket(moto_server, client, locks=True)


class TestContractWithVersions(ObjectStoreContract):
    """A bucket with versioning keeps every promise of a store, deletion included."""

    deletes_versions = False

    @pytest.fixture
    def store(self, bucket: Bucket) -> Generator[ObjectStore]:
        self.bucket = bucket
        store = bucket.store(deletes_versions=self.deletes_versions)
        yield store
        store.close()

    def proves_whole_objects(self) -> bool:
        return self.bucket.server.name != "moto"

    def begin_upload(self, store: ObjectStore, key: str) -> bool:
        self.bucket.client.create_multipart_upload(Bucket=self.bucket.server.bucket, Key=f"root/{key}")
        return True


class TestContractWithoutOldVersions(TestContractWithVersions):
    deletes_versions = True
    absent_count = 20

    @pytest.fixture(autouse=True)
    def small_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each key has a listing of its versions, and moto takes milliseconds for one."""
        monkeypatch.setattr(s3, "_KEYS_PER_DELETE", 4)


def test_a_plain_deletion_keeps_the_versions(bucket: Bucket) -> None:
    store = bucket.store()
    store.put("a", b"1")
    store.put("a", b"2")
    store.delete_many(["a"])
    assert list(store.list("")) == []
    assert bucket.versions() == ["a", "a", "a"], "two versions and a marker"
    store.close()


def test_with_the_option_nothing_of_a_deleted_object_is_left(bucket: Bucket) -> None:
    keeping, store = bucket.store(), bucket.store(deletes_versions=True)
    for value in (b"1", b"2"):
        store.put("gone", value)
    store.put("gone-longer", b"another object")
    keeping.delete_many(["gone"])
    store.delete_many(["gone", "never-there"])
    assert bucket.versions() == ["gone-longer"]
    assert store.get("gone-longer").data == b"another object"
    keeping.close()
    store.close()


def test_a_locked_version_is_kept_and_named_and_the_others_go(locking: Bucket) -> None:
    store = locking.store(deletes_versions=True)
    for key in ("a", "locked", "z"):
        store.put(key, b"data")
    locking.lock("locked")
    with pytest.raises(DeletionRefusedError) as refused:
        store.delete_many(["a", "locked", "z"])
    assert refused.value.keys == {"locked"}
    assert [info.key for info in store.list("")] == ["locked"]
    assert store.get("locked").data == b"data"
    store.close()


def test_remarks_say_what_the_bucket_does_with_deleted_data(bucket: Bucket, locking: Bucket) -> None:
    plain = bucket.server
    wanted: list[tuple[S3ObjectStore, list[str]]] = [
        (bucket.store(), [VERSIONS_ARE_KEPT]),
        (bucket.store(deletes_versions=True), [VERSIONS_ARE_DELETED]),
        (locking.store(), [VERSIONS_ARE_KEPT, OBJECTS_ARE_LOCKED]),
        (replace(plain, bucket="stratalog-tests").open_store("root"), []),
        (replace(plain, bucket="there-is-no-such-bucket").open_store("root"), []),
    ]
    for store, remarks in wanted:
        assert list(store.remarks()) == remarks
        store.close()
    bucket.set_versioning("Suspended")
    store = bucket.store()
    assert list(store.remarks()) == [VERSIONING_IS_SUSPENDED]
    store.close()


async def test_the_status_and_the_log_say_it_once(
    tmp_path: Path, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path, store=bucket.store()) as bench:
        status = await bench.client.admin.tier_status()
        assert list(status.store_remarks) == [VERSIONS_ARE_KEPT]
        shown = await bench.command("tier", "status")
        assert VERSIONS_ARE_KEPT in shown.stdout
    assert sum(VERSIONS_ARE_KEPT in record.getMessage() for record in caplog.records) == 1


def test_a_default_retention_of_moto_wants_md5(locking: Bucket) -> None:
    """`docs/stores.md` says so. It looks for Content-MD5 or x-amz-sdk-checksum-algorithm, and not for the
    checksum itself."""
    locking.client.put_object_lock_configuration(
        Bucket=locking.server.bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )
    store = locking.store()
    with pytest.raises(StoreNotUsableError):
        store.put("head", b"metadata", if_absent=True)
    store.close()
    store = locking.store(checksum="md5")
    etag = store.put("head", b"metadata", if_absent=True)
    store.put("head", b"again", if_match=etag)
    store.put_parts("data", [b"x" * (5 << 20), b"y"], part_bytes=5 << 20)
    upload = store.open_upload("pipelined")
    upload.put_part(1, [b"z"])
    upload.complete(content_crc([b"z"]))
    assert (store.get("head").data, store.get("pipelined").data) == (b"again", b"z")
    store.close()


def test_the_archive_of_a_store_is_no_wrong_credential(bucket: Bucket) -> None:
    store = bucket.store()
    bucket.client.put_object(
        Bucket=bucket.server.bucket, Key="root/old", Body=b"archived", StorageClass="GLACIER"
    )
    for read in (lambda: store.get("old"), lambda: store.get_range("old", 0, 3)):
        with pytest.raises(ObjectArchivedError):
            read()
    for storage_class in ("STANDARD", "STANDARD_IA", "GLACIER_IR", "INTELLIGENT_TIERING", "DEEP_ARCHIVE"):
        bucket.client.put_object(
            Bucket=bucket.server.bucket, Key=f"root/{storage_class}", Body=b"1", StorageClass=storage_class
        )
    assert [info.key for info in store.list("") if info.is_archived] == ["DEEP_ARCHIVE", "old"]
    store.close()


def test_moto_stores_encryption_and_class_as_they_were_asked_for(bucket: Bucket) -> None:
    store = bucket.store(
        encryption="aws:kms",
        encryption_key_id="alias/mine",
        uses_bucket_key=True,
        storage_class="STANDARD_IA",
    )
    etag = store.put("head", b"1", if_absent=True)
    store.put("head", b"2", if_match=etag)
    store.put_parts("data", [b"records"])
    head, data = (
        bucket.client.head_object(Bucket=bucket.server.bucket, Key=f"root/{key}") for key in ("head", "data")
    )
    assert [one["ServerSideEncryption"] for one in (head, data)] == ["aws:kms"] * 2
    assert [one.get("StorageClass", "STANDARD") for one in (head, data)] == ["STANDARD", "STANDARD_IA"]
    assert store.get("data").data == b"records"
    store.close()
