"""The options of a store's URL, on the wire."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DeletionRefusedError, InvalidConfigError, StoreAccessDeniedError
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_errors import error_of_answer
from stratalog.objectstore.s3_settings import S3Settings
from tests.support.tiered.scripted_s3 import DATE, Answer, Request, ScriptedS3, scripted_s3

PART_BYTES = 5 << 20
DELETED = Answer(200, b"<DeleteResult/>", {"Date": DATE, "Content-Type": "application/xml"})
BEGUN = Answer(
    200,
    b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
    {"Date": DATE, "Content-Type": "application/xml"},
)
COMPLETED = Answer(
    200,
    b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>",
    {"Date": DATE, "Content-Type": "application/xml"},
)
XML = {"Date": DATE, "Content-Type": "application/xml"}
COPIED = Answer(200, b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>", XML)
PART_COPIED = Answer(200, b"<CopyPartResult><ETag>e</ETag></CopyPartResult>", XML)
ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab"


@pytest.fixture(scope="module")
def running() -> Generator[ScriptedS3]:
    with scripted_s3([Answer()]) as server:
        yield server


@pytest.fixture
def server(running: ScriptedS3) -> ScriptedS3:
    running.script[:] = [Answer()]
    running.requests.clear()
    return running


def store_of(server: ScriptedS3, **options: Any) -> S3ObjectStore:
    return S3ObjectStore(SystemClock(), replace(server.settings(), **options))


def header(request: Request, name: str) -> str | None:
    """The value of a header, whatever the case of its name."""
    found = [value for key, value in request.headers.items() if key.lower() == name]
    assert len(found) <= 1
    return found[0] if found else None


def md5_of(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def test_a_copy_has_the_class_encryption_and_checksum_of_its_target(server: ScriptedS3) -> None:
    store = store_of(
        server, encryption="aws:kms", encryption_key_id=ARN, storage_class="STANDARD_IA", copy_part_bytes=100
    )
    place = store_of(server, bucket_owner="111122223333").place_of("source")
    assert place is not None
    server.script[:] = [COPIED, BEGUN, PART_COPIED, PART_COPIED, COMPLETED]
    assert store.copy(place, "small", 100)
    assert store.copy(place, "large", 150)
    small, begun, first, second, _ = server.requests
    for request in (small, begun):
        assert header(request, "x-amz-server-side-encryption") == "aws:kms"
        assert header(request, "x-amz-server-side-encryption-aws-kms-key-id") == ARN
        assert header(request, "x-amz-storage-class") == "STANDARD_IA"
    assert header(small, "x-amz-checksum-algorithm") == "CRC32C"
    assert header(begun, "x-amz-checksum-algorithm") is None
    for request in (small, first, second):
        assert header(request, "x-amz-copy-source") == f"{place.bucket}/{place.name}"
        assert header(request, "x-amz-source-expected-bucket-owner") == "111122223333"
    assert header(first, "x-amz-copy-source-range") == "bytes=0-99"
    assert header(second, "x-amz-copy-source-range") == "bytes=100-149"


@pytest.mark.parametrize("status", [403, 501])
def test_a_server_that_refuses_to_copy_says_no(server: ScriptedS3, status: int) -> None:
    store = store_of(server)
    place = store.place_of("source")
    assert place is not None
    server.script[:] = [Answer(status)]
    assert not store.copy(place, "small", 100)
    assert not store_of(server, endpoint_url="http://127.0.0.1:1").copy(place, "small", 100)
    assert len(server.requests) == 1


def test_encryption_goes_into_every_write_and_into_no_read(server: ScriptedS3) -> None:
    store = store_of(server, encryption="aws:kms", encryption_key_id=ARN, uses_bucket_key=True)
    server.script[:] = [Answer(), Answer(), BEGUN, Answer(), Answer(), COMPLETED, Answer()]
    store.put("head", b"metadata", if_absent=True)
    store.put_parts("data", [b"small"])
    store.put_parts("large", [b"x" * PART_BYTES, b"y"], part_bytes=PART_BYTES)
    store.get("head")
    names = ("encryption", "encryption-aws-kms-key-id", "encryption-bucket-key-enabled")
    sent = [
        tuple(header(request, f"x-amz-server-side-{name}") for name in names) for request in server.requests
    ]
    wanted, none = ("aws:kms", ARN, "true"), (None, None, None)
    assert sent == [wanted, wanted, wanted, none, none, none, none]
    store.close()


def test_only_data_objects_get_the_storage_class(server: ScriptedS3) -> None:
    store = store_of(server, storage_class="STANDARD_IA")
    server.script[:] = [Answer(), Answer(), BEGUN, Answer(), Answer(), COMPLETED]
    store.put("shards/0000/head", b"metadata", if_absent=True)
    store.put_parts("data", [b"small"])
    store.put_parts("large", [b"x" * PART_BYTES, b"y"], part_bytes=PART_BYTES)
    sent = [header(request, "x-amz-storage-class") for request in server.requests]
    assert sent == [None, "STANDARD_IA", "STANDARD_IA", None, None, None]
    store.close()


def test_owner_and_payer_go_into_every_request(server: ScriptedS3) -> None:
    store = store_of(server, bucket_owner="111122223333", requester_pays=True)
    store.put("key", b"data")
    store.get("key")
    server.script[:] = [DELETED]
    store.delete_many(["key"])
    assert len(server.requests) == 3
    for request in server.requests:
        assert header(request, "x-amz-expected-bucket-owner") == "111122223333"
        assert header(request, "x-amz-request-payer") == "requester"
    store.close()


def test_md5_replaces_the_newer_checksums(server: ScriptedS3) -> None:
    store = store_of(server, checksum="md5")
    server.script[:] = [Answer(), BEGUN, Answer(), Answer(), COMPLETED, DELETED]
    store.put("key", b"data")
    store.put_parts("large", [b"x" * PART_BYTES, b"y"], part_bytes=PART_BYTES)
    store.delete_many(["key"])
    put, begin, *parts, complete, deletion = server.requests
    for request in (put, *parts, deletion):
        assert header(request, "content-md5") == md5_of(request.body)
    for request in (put, begin, *parts, complete, deletion):
        assert not [name for name in request.headers if "checksum" in name.lower()]
    assert b"Checksum" not in complete.body
    store.close()


def test_without_checksums_a_write_has_none(server: ScriptedS3) -> None:
    store = store_of(server, checksum="none")
    store.put("key", b"data")
    [request] = server.requests
    assert not [name for name in request.headers if "checksum" in name.lower() or "md5" in name.lower()]
    store.close()


def test_a_refused_deletion_names_its_keys_after_the_others_went(server: ScriptedS3) -> None:
    refused = b"".join(
        b"<Error><Key>root/k%d</Key><Code>%s</Code><Message>no</Message></Error>" % (number, code)
        for number, code in ((3, b"AccessDenied"), (5, b"InvalidRequest"), (6, b"NoSuchKey"))
    )
    answer = Answer(200, b"<DeleteResult>" + refused + b"</DeleteResult>", DELETED.headers)
    server.script[:] = [answer, DELETED]
    store = store_of(server)
    with pytest.raises(DeletionRefusedError) as error:
        store.delete_many([f"k{number}" for number in range(1500)])
    assert len(server.requests) == 2, "the second thousand is deleted, too"
    assert error.value.keys == {"k3", "k5"}
    assert (error.value.fields["key"], error.value.fields["refused_count"]) == ("k3", 2)
    store.close()


def versions_page(names: list[tuple[str, str]], next_version: str = "") -> Answer:
    """A page of versions: names with ids; with `next_version` it is not the last one."""
    rest = "<IsTruncated>false</IsTruncated>"
    if next_version:
        rest = (
            f"<IsTruncated>true</IsTruncated><NextKeyMarker>{names[-1][0]}</NextKeyMarker>"
            f"<NextVersionIdMarker>{next_version}</NextVersionIdMarker>"
        )
    listed = "".join(
        f"<Version><Key>{name}</Key><VersionId>{version}</VersionId></Version>" for name, version in names
    )
    marker = "<DeleteMarker><Key>root/key</Key><VersionId>marker</VersionId></DeleteMarker>"
    body = f"<ListVersionsResult>{rest}{listed}{marker if next_version else ''}</ListVersionsResult>"
    return Answer(200, body.encode(), DELETED.headers)


def test_all_pages_of_an_objects_versions_are_deleted_and_no_longer_name(server: ScriptedS3) -> None:
    store = store_of(server, deletes_versions=True)
    server.script[:] = [
        versions_page([("root/key", "v1"), ("root/key", "v2")], "v2"),
        versions_page([("root/key", "v3"), ("root/keys", "other")], "other"),
        DELETED,
    ]
    store.delete_many(["key"])
    first, second, deletion = server.requests
    assert "version-id-marker" not in first.path
    assert "version-id-marker=v2" in second.path
    assert re.findall(rb"<VersionId>(.*?)</VersionId>", deletion.body) == [
        b"v1",
        b"v2",
        b"marker",
        b"v3",
        b"marker",
    ]
    assert b"keys" not in deletion.body
    store.close()


def test_a_key_that_kms_refuses_is_no_unusable_store() -> None:
    error = error_of_answer(400, "KMS.DisabledException", key="key", store="s3://bucket")
    assert type(error) is StoreAccessDeniedError
    assert "KMS" in error.message


def test_every_option_can_be_in_the_url() -> None:
    settings = S3Settings.from_url(
        f"s3://bucket?sse=aws:kms&sse-key={ARN}&sse-bucket-key=true&storage-class=GLACIER_IR&checksum=md5"
        "&bucket-owner=111122223333&request-payer=requester&versions=delete"
    )
    assert settings == S3Settings(
        bucket="bucket",
        encryption="aws:kms",
        encryption_key_id=ARN,
        uses_bucket_key=True,
        storage_class="GLACIER_IR",
        checksum="md5",
        bucket_owner="111122223333",
        requester_pays=True,
        deletes_versions=True,
    )


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("sse=rot13", "sse"),
        ("sse-key=alias/mine", "sse"),
        ("sse=AES256&sse-key=alias/mine", "sse"),
        ("sse=AES256&sse-bucket-key=true", "sse"),
        ("sse=aws:kms&sse-key=a b", "sse-key"),
        ("storage-class=GLACIER", "storage-class"),
        ("storage-class=DEEP_ARCHIVE", "storage-class"),
        ("storage-class=standard", "storage-class"),
        ("checksum=crc64", "checksum"),
        ("bucket-owner=me", "bucket-owner"),
        ("request-payer=owner", "request-payer"),
        ("versions=forget", "versions"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(query: str, name: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        S3Settings.from_url(f"s3://bucket?{query}")
    assert refused.value.fields["name"] == name
    assert refused.value.fields["allowed"]


def test_a_directory_bucket_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        S3Settings.from_url("s3://logs--use1-az4--x-s3/prefix")
    assert "directory bucket" in refused.value.message
