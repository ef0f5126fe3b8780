"""GETs of ranges that repeat one of boto3's: they are signed, and boto3 sends again what fails."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
from botocore.credentials import Credentials, ReadOnlyCredentials

from stratalog.base.errors import (
    ObjectNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_range_gets import S3RangeGets
from tests.support.tiered.scripted_s3 import DATE, Answer, Request, ScriptedS3, error_answer, scripted_s3

RANGE_HEADERS = {"Date": DATE, "Content-Range": "bytes 10-29/100"}
GOOD = Answer(206, b"x" * 20, RANGE_HEADERS)
SECRET = "wJalrXUtnFEMI"


@pytest.fixture(scope="module")
def running() -> Generator[tuple[ScriptedS3, S3ObjectStore]]:
    with scripted_s3([GOOD]) as server:
        yield server, server.open_store(read_timeout_s=1)


@pytest.fixture
def server(running: tuple[ScriptedS3, S3ObjectStore]) -> ScriptedS3:
    """A server of which the store has read a range before."""
    server, store = running
    server.script[:] = [GOOD]
    store.get_range("key", 10, 20)
    server.requests.clear()
    return server


@pytest.fixture
def store(running: tuple[ScriptedS3, S3ObjectStore]) -> S3ObjectStore:
    return running[1]


def is_of_boto3(request: Request) -> bool:
    return "amz-sdk-invocation-id" in {name.lower() for name in request.headers}


def signature_of(request: Request) -> str:
    """The signature, version 4, that the request should have."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    scope, signed, _ = (part.split("=", 1)[1] for part in headers["authorization"].split(", "))
    date, region, service, _ = scope.split("/")[1:]
    names = signed.split(";")
    lines = [request.method, request.path, "", *(f"{name}:{headers[name]}" for name in names), "", signed]
    canonical = "\n".join([*lines, headers["x-amz-content-sha256"]])
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            headers["x-amz-date"],
            f"{date}/{region}/{service}/aws4_request",
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = b"AWS4" + SECRET.encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def test_a_repeated_get_is_signed_for_its_own_object_and_range(
    server: ScriptedS3, store: S3ObjectStore
) -> None:
    server.script[:] = [Answer(206, b"yz", {"Date": DATE, "Content-Range": "bytes 5-6/7"})]
    assert store.get_range("other/key-2", 5, 2) == b"yz"
    [request] = server.requests
    assert not is_of_boto3(request)
    assert urlsplit(request.path).path == "/bucket/root/other/key-2"
    assert request.headers["Range"] == "bytes=5-6"
    authorization = request.headers["Authorization"]
    assert "range" in authorization.split("SignedHeaders=")[1].split(",")[0].split(";")
    assert authorization.endswith(f"Signature={signature_of(request)}")


@pytest.mark.parametrize(
    "failure",
    [
        error_answer(503, "SlowDown"),
        error_answer(403, "RequestTimeTooSkewed"),
        Answer(drops=True),
        Answer(206, b"x" * 19, {"Date": DATE, "Content-Range": "bytes 10-28/100"}),
        Answer(206, b"x" * 20, {"Date": DATE, "Content-Range": "bytes 20-39/100"}),
        Answer(206, b"x" * 19, RANGE_HEADERS),
        Answer(206, b"x" * 20, {**RANGE_HEADERS, "Content-Encoding": "gzip"}),
        Answer(200, b"x" * 20),
    ],
)
def test_boto3_sends_again_what_fails_until_it_succeeds(
    server: ScriptedS3, store: S3ObjectStore, failure: Answer
) -> None:
    server.script[:] = [failure, error_answer(503, "SlowDown"), GOOD]
    for _ in range(2):
        assert store.get_range("key", 10, 20) == b"x" * 20
    assert [is_of_boto3(request) for request in server.requests] == [False, True, True, False]


def test_a_store_that_fails_sees_one_request_more(server: ScriptedS3, store: S3ObjectStore) -> None:
    server.script[:] = [error_answer(404, "NoSuchKey")]
    for _ in range(3):
        with pytest.raises(ObjectNotFoundError):
            store.get_range("key", 10, 20)
    assert [is_of_boto3(request) for request in server.requests] == [False, True, True, True]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(206, b"x" * 20, {"Date": DATE, "Content-Range": "bytes 10-19/20"}), StoreCorruptError),
        (Answer(200, b"x" * 100), StoreNotUsableError),
        (error_answer(404, "NoSuchKey"), ObjectNotFoundError),
        (Answer(206, b"x" * 20, RANGE_HEADERS, 7), StoreUnavailableError),
        (Answer(hangs=True), StoreUnavailableError),
    ],
)
def test_errors_are_those_of_boto3(answer: Answer, error: type[StoreError]) -> None:
    with scripted_s3([GOOD]) as server:
        store = server.open_store(read_timeout_s=0.2, max_attempts=1)
        store.get_range("key", 10, 20)
        server.script[:] = [answer]
        with pytest.raises(error):
            store.get_range("key", 10, 20)
        assert not is_of_boto3(server.requests[1])


class _Connections:
    """Connections to a store that answers every GET."""

    def __init__(self) -> None:
        self.requests: list[AWSPreparedRequest] = []
        self.body: Any = "body"

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        self.requests.append(request)
        headers: Any = {"Content-Range": "bytes 10-29/100", "Content-Length": "20"}
        return AWSResponse(request.url, 206, headers, self.body)


class _Client:
    """The part of a client of boto3 that is used."""

    def __init__(self) -> None:
        self.http_session = _Connections()

    @property
    def _endpoint(self) -> _Client:
        return self


class _Renewed(Credentials):
    """Credentials of which each look finds newer ones."""

    number = 0

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        self.number += 1
        return ReadOnlyCredentials("id", "secret", f"token{self.number}")


def pattern(authorization: str) -> AWSPreparedRequest:
    headers = {"Authorization": authorization, "X-Amz-Security-Token": "token0", "x-amz-request-payer": "r"}
    return AWSRequest("GET", "https://store/bucket/root/key", headers=headers).prepare()


GOOD_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=id/20261121/eu-1/s3/aws4_request, SignedHeaders=h, Signature=0"
)


def test_credentials_are_looked_up_for_each_request() -> None:
    client = _Client()
    gets = S3RangeGets(client, _Renewed("id", "secret"))
    checked: list[AWSPreparedRequest] = []
    gets.learn(pattern(GOOD_AUTHORIZATION), "root/key")
    for _ in range(2):
        assert gets.open("root/other", 10, 20, checked.append) == "body"
    sent = client.http_session.requests
    assert [request.headers["X-Amz-Security-Token"] for request in sent] == ["token1", "token2"]
    assert {request.url for request in sent} == {"https://store/bucket/root/other"}
    assert {request.headers["x-amz-request-payer"] for request in sent} == {"r"}
    assert all("/eu-1/s3/aws4_request" in request.headers["Authorization"] for request in sent)
    assert checked == sent


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        ("AWS4-ECDSA-P256-SHA256 Credential=id/20261121/s3/aws4_request, SignedHeaders=h", "root/key"),
        (GOOD_AUTHORIZATION.replace("/s3/", "/s3express/"), "root/key"),
        ("", "root/key"),
        (GOOD_AUTHORIZATION, "root/key%20"),
    ],
)
def test_a_request_that_cannot_be_repeated_is_no_pattern(authorization: str, name: str) -> None:
    client = _Client()
    gets = S3RangeGets(client, Credentials("id", "secret"))
    gets.learn(pattern(authorization), name)
    assert gets.open(name, 10, 20, lambda _: None) is None
    assert not client.http_session.requests


def test_a_response_that_is_not_wanted_gives_its_connection_back() -> None:
    client = _Client()
    gets = S3RangeGets(client, Credentials("id", "secret"))
    gets.learn(pattern(GOOD_AUTHORIZATION), "root/key")
    client.http_session.body = body = BytesIO()
    assert gets.open("root/key", 11, 20, lambda _: None) is None
    assert body.closed
