"""URLs become stores, or an error that says what to write instead and repeats no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.s3_settings import S3Settings, endpoint_shown
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds


def test_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space/")
    assert isinstance(store, LocalObjectStore)
    store.put("key", b"content")
    assert Path(tmp_path, "with space", "key").read_bytes() == b"content"
    assert open_store(f"file://localhost{tmp_path}/with%20space").get("key").data == b"content"


def test_a_directory_on_what_is_handed_in() -> None:
    clock, filesystem = ManualClock(now_ms=77), MemoryFileSystem()
    store = open_store("file:///store", filesystem=filesystem, clock=clock, ids=SequentialIds(1))
    store.put("key", b"content")
    assert filesystem.read_file("/store/key") == b"content"
    assert store.get("key").date_ms == 77


def test_memory_is_new_each_time() -> None:
    first = open_store("memory://")
    assert isinstance(first, MemoryObjectStore)
    first.put("key", b"")
    assert list(open_store("memory://").list("")) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/store",
        "store",
        "file://store",
        "file://host/store",
        "file:///",
        "file:///store?sync=no",
        "file:///store#part",
        "memory://name",
        "gs://bucket",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket/../prefix",
        "s3://bucket/pre fix",
        "s3://bucket/a//b",
        "s3://bucket#part",
        "s3://bucket?endpoint=minio:9000",
        "s3://bucket?endpoint=ftp://minio",
        "s3://bucket?endpoint=http://user:hunter2@minio:9000",
        "s3://bucket?endpoint=",
        "s3://bucket?region=a&region=b",
        "s3://bucket?addressing=sideways",
        "s3://bucket?secret_access_key=hunter2",
        "s3://AKID:hunter2@bucket/prefix",
        "s3:///AKID:hunter2@bucket/prefix",
        "s3://AKID:hunter2/hunter2@bucket/prefix",
        "s3://AKID:hunter2?hunter2@bucket/prefix",
        "s3://AKID:hunter2#hunter2@bucket/prefix",
        "s3a://AKID:hunter2@bucket/prefix",
        "s3a://AKID:hunter2?hunter2@bucket/prefix",
        "s3a://bucket/prefix?secret=hunter2",
        "AKID:hunter2@bucket/prefix",
        "memory://AKID:hunter2@name?sync=no",
    ],
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        open_store(url)
    assert refused.value.fields["allowed"]
    assert "hunter2" not in str(refused.value)


class TestS3Settings:
    def test_everything_can_be_in_the_url(self) -> None:
        settings = S3Settings.from_url(
            "s3://my.bucket/a/b/?endpoint=http%3A//127.0.0.1%3A9000&region=eu-west-1&addressing=virtual&profile=p"
        )
        assert settings == S3Settings(
            bucket="my.bucket",
            prefix="a/b",
            endpoint_url="http://127.0.0.1:9000",
            region="eu-west-1",
            addressing="virtual",
            profile="p",
        )
        assert settings.root == "a/b/"
        assert settings.url == "s3://my.bucket/a/b"

    def test_a_bucket_is_enough(self) -> None:
        for url in ("s3://bucket", "s3://bucket/"):
            settings = S3Settings.from_url(url)
            assert settings == S3Settings(bucket="bucket")
            assert settings.root == ""
            assert settings.url == "s3://bucket"

    def test_secrets_are_not_shown(self) -> None:
        settings = S3Settings(bucket="bucket", access_key_id="AKID", secret_access_key="hunter2")
        assert "hunter2" not in repr(settings)
        assert "AKID" not in repr(settings)

    def test_an_endpoint_is_shown_without_its_user(self) -> None:
        assert endpoint_shown("https://user:hunter2@host:1/path?x=y") == "https://host:1"
