"""Objects that are sent part by part: checksum of the whole, lost answers, other bytes in the store."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Mapping

import crc32c
import pytest

from stratalog.base.errors import StoreCorruptError, StoreUnavailableError
from stratalog.objectstore.protocol import ObjectStore
from tests.support.tiered.scripted_s3 import DATE, Answer, Request, ScriptedS3, error_answer, scripted_s3

PARTS = (b"x" * 1000, b"y")
WHOLE = b"".join(PARTS)
XML = {"Date": DATE, "Content-Type": "application/xml"}
MISSING = Answer(404, b"", {"Date": DATE})


def text_of(data: bytes) -> str:
    return base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode()


def begun(headers: Mapping[str, str]) -> Answer:
    body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    return Answer(200, body, {**XML, **headers})


ANNOUNCED = begun({"x-amz-checksum-algorithm": "CRC32C", "x-amz-checksum-type": "FULL_OBJECT"})


def completed(checksum: str = "") -> Answer:
    inside = f"<ChecksumCRC32C>{checksum}</ChecksumCRC32C>" if checksum else ""
    body = f"<CompleteMultipartUploadResult><ETag>e</ETag>{inside}</CompleteMultipartUploadResult>"
    return Answer(200, body.encode(), XML)


@pytest.fixture(scope="module")
def running() -> Generator[ScriptedS3]:
    with scripted_s3([Answer()]) as server:
        yield server


@pytest.fixture
def server(running: ScriptedS3) -> ScriptedS3:
    running.requests.clear()
    return running


def complete(server: ScriptedS3, *answers: Answer, begin: Answer = ANNOUNCED) -> list[Request]:
    """Send an object whose completion gets these answers; returns the requests behind the parts."""
    server.script[:] = [begin, Answer(), Answer(), *answers]
    store = server.open_store(max_attempts=1)
    upload = store.open_upload("key")
    for number, part in enumerate(PARTS, start=1):
        upload.put_part(number, [part])
    try:
        upload.complete(crc32c.crc32c(WHOLE))
    finally:
        store.close()
    return server.requests[3:]


def header(request: Request, name: str) -> str | None:
    return {key.lower(): value for key, value in request.headers.items()}.get(name)


def test_the_checksum_of_the_whole_object_goes_to_servers_that_announce_it(server: ScriptedS3) -> None:
    [request] = complete(server, completed())
    assert header(server.requests[0], "x-amz-checksum-type") == "FULL_OBJECT"
    assert header(request, "x-amz-checksum-crc32c") == text_of(WHOLE)
    assert header(request, "x-amz-checksum-type") == "FULL_OBJECT"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-amz-checksum-type": "COMPOSITE"},
        # Of another algorithm, which a server may choose where the client sends none or another one.
        {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "FULL_OBJECT"},
    ],
)
def test_a_server_that_does_not_announce_it_gets_none(server: ScriptedS3, headers: dict[str, str]) -> None:
    [request] = complete(server, completed(), begin=begun(headers))
    assert header(request, "x-amz-checksum-crc32c") is None
    assert header(request, "x-amz-checksum-type") is None


@pytest.mark.parametrize("checksum", [text_of(WHOLE), f"{text_of(b'parts')}-2"])
def test_a_checksum_in_the_answer_is_that_of_the_whole_or_of_the_parts(
    server: ScriptedS3, checksum: str
) -> None:
    complete(server, completed(checksum))


@pytest.mark.parametrize("begin", [ANNOUNCED, begun({})])
def test_another_checksum_in_the_answer_refuses_the_object(server: ScriptedS3, begin: Answer) -> None:
    with pytest.raises(StoreCorruptError) as refused:
        complete(server, completed(text_of(b"other")), begin=begin)
    assert refused.value.fields["found_crc"] == text_of(b"other")
    assert refused.value.fields["sent_crc"] == text_of(WHOLE)


def test_a_server_that_refuses_the_checksum_refuses_the_object(server: ScriptedS3) -> None:
    with pytest.raises(StoreCorruptError):
        complete(server, error_answer(400, "BadDigest"))


def test_an_upload_that_an_earlier_request_completed_is_complete(server: ScriptedS3) -> None:
    found = Answer(200, b"", {"Date": DATE, "x-amz-checksum-crc32c": text_of(WHOLE)})
    requests = complete(server, error_answer(404, "NoSuchUpload"), found)
    assert [request.method for request in requests] == ["POST", "HEAD"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (MISSING, StoreUnavailableError),
        (
            Answer(200, b"", {"Date": DATE, "x-amz-checksum-crc32c": text_of(b"other")}),
            StoreCorruptError,
        ),
        (Answer(503, b"", {"Date": DATE}), StoreUnavailableError),
    ],
)
def test_an_upload_that_is_gone_and_left_no_such_object_has_failed(
    server: ScriptedS3, answer: Answer, error: type[Exception]
) -> None:
    with pytest.raises(error):
        complete(server, error_answer(404, "NoSuchUpload"), answer)


PUTS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("key", WHOLE),
    "put_parts": lambda store: store.put_parts("key", PARTS),
}


@pytest.mark.parametrize("name", PUTS)
def test_one_request_is_compared_too(server: ScriptedS3, name: str) -> None:
    store, put = server.open_store(), PUTS[name]
    headers = {"Date": DATE, "ETag": "e"}
    server.script[:] = [Answer(200, b"", headers | {"x-amz-checksum-crc32c": text_of(WHOLE)})]
    put(store)
    server.script[:] = [Answer(200, b"", headers | {"x-amz-checksum-crc32c": text_of(b"other")})]
    with pytest.raises(StoreCorruptError):
        put(store)
    store.close()
