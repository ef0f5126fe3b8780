"""Requests of the S3 store, how often it sends them, and its reaction to answers that go wrong."""

from __future__ import annotations

import base64
import errno
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import crc32c
import pytest
from botocore.loaders import JSONFileLoader

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import UnfinishedUpload
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_settings import is_protected
from stratalog.testing.manual_clock import ManualClock
from tests.support.tiered.scripted_s3 import DATE, DATE_MS, Answer, ScriptedS3, error_answer, scripted_s3

XML = {"Content-Type": "application/xml"}
RANGE_HEADERS = {"Date": DATE, "ETag": '"etag"', "Content-Range": "bytes 10-29/100"}


Call = Callable[[S3ObjectStore], object]
GET: Call = lambda store: store.get("key")  # noqa: E731
GET_RANGE: Call = lambda store: store.get_range("key", 10, 20)  # noqa: E731
LIST: Call = lambda store: list(store.list(""))  # noqa: E731


class ImpatientClock(ManualClock):
    """Time passes with each look at the clock."""

    def __init__(self, step_ms: int) -> None:
        super().__init__()
        self._step_ms = step_ms

    def monotonic_s(self) -> float:
        self.advance(self._step_ms)
        return super().monotonic_s()


@pytest.fixture(scope="module")
def running() -> Generator[tuple[ScriptedS3, S3ObjectStore]]:
    """One server and one store for all tests that need no settings of their own: opening one is slow."""
    with scripted_s3([Answer()]) as server:
        yield server, server.open_store()


@pytest.fixture
def server(running: tuple[ScriptedS3, S3ObjectStore]) -> ScriptedS3:
    server, _ = running
    server.script[:] = [Answer()]
    server.requests.clear()
    return server


@pytest.fixture
def store(running: tuple[ScriptedS3, S3ObjectStore]) -> S3ObjectStore:
    return running[1]


class TestRequests:
    @pytest.mark.parametrize("size", [0, 10, 3 << 20])
    def test_a_write_carries_its_checksum_and_waits_for_no_invitation(
        self, server: ScriptedS3, store: S3ObjectStore, size: int
    ) -> None:
        data = bytes(number % 255 for number in range(size))
        assert store.put("dir/key", data) == '"etag"'
        [request] = server.requests
        assert (request.method, request.path) == ("PUT", "/bucket/root/dir/key")
        assert request.body == data
        checksum = base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode()
        assert request.headers["x-amz-checksum-crc32c"] == checksum
        assert "Expect" not in request.headers
        assert request.headers["Content-Length"] == str(size)
        assert "Transfer-Encoding" not in request.headers
        assert request.headers["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD", "loopback"
        assert "AKIDEXAMPLE" in request.headers["Authorization"]

    def test_preconditions_go_out_as_they_are(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        store.put("key", b"", if_match='"e"')
        store.put("key", b"", if_absent=True)
        store.get_if_changed("key", '"e"')
        names = ("If-Match", "If-None-Match")
        sent = [[request.headers.get(name) for name in names] for request in server.requests]
        assert sent == [['"e"', None], [None, "*"], [None, '"e"']]

    def test_a_range_is_one_request(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        server.script[:] = [Answer(206, b"x" * 20, RANGE_HEADERS)]
        assert store.get_range("key", 10, 20) == b"x" * 20
        assert [request.headers["Range"] for request in server.requests] == ["bytes=10-29"]

    def test_the_date_is_the_servers(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        server.script[:] = [Answer(body=b"data")]
        assert store.get("key").date_ms == DATE_MS


class TestRetries:
    """How often a request is sent when the server fails, is throttled, or breaks the connection."""

    def test_a_conditional_write_is_sent_once(self, server: ScriptedS3) -> None:
        failures = (
            error_answer(500, "InternalError"),
            error_answer(503, "SlowDown"),
            error_answer(400, "RequestTimeout"),
            Answer(drops=True),
            Answer(hangs=True),
        )
        store = server.open_store(read_timeout_s=0.2)
        store.put("key", b"data")
        for failure in failures:
            for if_match in ('"e"', None):
                server.script[:] = [failure, Answer()]
                server.requests.clear()
                with pytest.raises(StoreUnavailableError) as raised:
                    store.put("key", b"data", if_match=if_match, if_absent=if_match is None)
                assert raised.value.retriable
                assert len(server.requests) == 1, failure

    def test_a_plain_write_is_sent_again(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        server.script[:] = [error_answer(500, "InternalError"), Answer()]
        store.put("key", b"data" * 1_000_000)
        assert [request.body == b"data" * 1_000_000 for request in server.requests] == [True] * 2

    def test_a_read_is_sent_again(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        for failure in (error_answer(500, "InternalError"), Answer(drops=True)):
            server.script[:] = [failure, Answer(body=b"data")]
            assert store.get("key").data == b"data"

    def test_patience_ends(self, server: ScriptedS3) -> None:
        server.script[:] = [error_answer(503, "SlowDown")]
        with pytest.raises(StoreUnavailableError):
            server.open_store(max_attempts=2).get("key")
        assert len(server.requests) == 2


class TestConditionalReads:
    def test_a_server_that_ignores_the_condition_gives_no_other_version(
        self, server: ScriptedS3, store: S3ObjectStore
    ) -> None:
        headers = {**RANGE_HEADERS, "ETag": '"one"'}
        server.script[:] = [Answer(206, b"x" * 20, headers)] * 3
        etag = store.open_range("key", 10, 20).etag()
        assert etag == '"one"'
        assert store.open_range("key", 10, 20, if_match=etag).read(20) == b"x" * 20
        assert server.requests[-1].headers["If-Match"] == etag
        with pytest.raises(PreconditionFailedError):
            store.open_range("key", 10, 20, if_match='"other"')


class TestCutOff:
    """A body that ends early never passes for a whole one."""

    @pytest.mark.parametrize("cut_bytes", [0, 1, 19])
    def test_a_stream(self, server: ScriptedS3, store: S3ObjectStore, cut_bytes: int) -> None:
        server.script[:] = [Answer(206, b"x" * 20, RANGE_HEADERS, cut_bytes)]
        stream = store.open_range("key", 10, 20)
        assert stream.read(cut_bytes) == b"x" * cut_bytes
        with pytest.raises(StoreUnavailableError):
            stream.read(20)
        stream.close()
        assert len(server.requests) == 1, "it is not taken up again"

    @pytest.mark.parametrize(
        ("answer", "call"),
        [(Answer(206, b"x" * 20, RANGE_HEADERS, 7), GET_RANGE), (Answer(200, b"x" * 20, cut_bytes=7), GET)],
    )
    def test_a_range_and_a_whole_object(
        self,
        server: ScriptedS3,
        store: S3ObjectStore,
        answer: Answer,
        call: Call,
    ) -> None:
        server.script[:] = [answer]
        with pytest.raises(StoreUnavailableError):
            call(store)


SLOW_CALLS: dict[str, tuple[int, Answer, Call]] = {
    "put": (4_000, Answer(), lambda store: store.put("key", bytes(8 << 20))),
    "put_parts": (4_000, Answer(), lambda store: store.put_parts("key", [bytes(8 << 20)])),
    "get": (31_000, Answer(body=b"data"), lambda store: store.get("key")),
    "get_range": (
        31_000,
        Answer(206, bytes(20), RANGE_HEADERS),
        lambda store: store.get_range("key", 10, 20),
    ),
}


class TestDeadlines:
    def test_silence_ends(self) -> None:
        with scripted_s3([Answer(hangs=True)]) as server:
            store = server.open_store(read_timeout_s=0.2, max_attempts=1)
            for call in (
                lambda: store.get("key"),
                lambda: store.put("key", b""),
                lambda: list(store.list("")),
            ):
                with pytest.raises(StoreUnavailableError):
                    call()

    def test_no_attempt_begins_when_the_time_is_over(self) -> None:
        clock = ImpatientClock(25_000)
        with scripted_s3([error_answer(503, "SlowDown")]) as server:
            store = server.open_store(clock=clock, call_timeout_s=60, max_attempts=9)
            with pytest.raises(StoreUnavailableError) as late:
                store.get("key")
            assert len(server.requests) == 2
            assert late.value.fields == {
                "key": "key",
                "store": "s3://bucket/root",
                "endpoint": server.endpoint_url,
                "reason": "CallTimeoutError",
            }
            with pytest.raises(StoreUnavailableError) as late:
                list(store.list(""))
            assert "key" not in late.value.fields
            assert late.value.fields["endpoint"] == server.endpoint_url

    @pytest.mark.parametrize("name", SLOW_CALLS)
    def test_a_slow_call_is_given_up_when_its_time_is_over(self, name: str) -> None:
        step_ms, answer, call = SLOW_CALLS[name]
        with scripted_s3([answer]) as server:
            store = server.open_store(clock=ImpatientClock(step_ms), max_attempts=1)
            with pytest.raises(StoreUnavailableError) as late:
                call(store)
            assert late.value.fields["key"] == "key"
            assert late.value.fields["endpoint"] == server.endpoint_url

    def test_a_wrong_endpoint_is_said_at_once_and_one_that_was_right_gets_all_patience(self) -> None:
        attempts: list[str] = []
        with scripted_s3([Answer(body=b"data")]) as server:
            settings = server.settings(max_attempts=2)
            store, stranger = (
                S3ObjectStore(SystemClock(), settings, lambda method, _: attempts.append(method))
                for _ in range(2)
            )
            store.get("key")
        for opened, count in ((stranger, 1), (stranger, 1), (store, 2)):
            attempts.clear()
            with pytest.raises(StoreUnavailableError) as raised:
                opened.get("key")
            assert len(attempts) == count
            assert raised.value.fields["endpoint"] == server.endpoint_url


class TestLargeObjects:
    def test_a_source_that_cannot_be_read_is_no_failure_of_the_store(
        self, server: ScriptedS3, store: S3ObjectStore
    ) -> None:
        def parts() -> Iterator[bytes]:
            yield bytes(6 << 20)
            raise OSError(errno.EIO, "the disk of the spool")

        begun = b"<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>"
        server.script[:] = [Answer(body=begun), Answer()]
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the number tells which one
            store.put_parts("key", parts(), part_bytes=5 << 20)
        assert raised.value.errno == errno.EIO
        assert [request.method for request in server.requests] == ["POST", "PUT", "DELETE"]


class TestAnswers:
    def test_the_table_of_errors_is_in_use(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        server.script[:] = [error_answer(404, "NoSuchKey")]
        with pytest.raises(ObjectNotFoundError) as raised:
            store.get("key")
        assert raised.value.fields == {
            "key": "key",
            "store": "s3://bucket/root",
            "status": 404,
            "store_code": "NoSuchKey",
            "request_id": "r1",
        }
        with pytest.raises(PreconditionFailedError):
            store.put("key", b"", if_match='"e"')

    def test_the_servers_prose_and_our_secrets_stay_out(
        self, server: ScriptedS3, store: S3ObjectStore
    ) -> None:
        prose = "your secret wJalrXUtnFEMI is wrong\n" * 1000
        server.script[:] = [error_answer(403, "SignatureDoesNotMatch<b>" + "x" * 500, prose)]
        with pytest.raises(StoreError) as raised:
            store.get("key")
        shown = f"{raised.value} {raised.value.__cause__} {raised.value.fields}"
        assert "wJalrXUtnFEMI" not in shown
        assert "AKIDEXAMPLE" not in shown
        assert "\n" not in shown
        assert len(shown) < 1000

    def test_something_that_is_no_s3_ends_in_a_store_error(self, server: ScriptedS3) -> None:
        calls: tuple[Call, ...] = (
            LIST,
            lambda store: store.put("key", b""),
            lambda store: store.put_parts("key", [bytes(6 << 20)], part_bytes=5 << 20),
            GET,
            lambda store: store.open_range("key", 0, 1),
        )
        bodies = {200: b"<html>hello</html>", 400: b"{}", 404: b"", 500: b"\xff\xfe"}
        store = server.open_store(max_attempts=1)
        for status, body in bodies.items():
            server.script[:] = [Answer(status, body, {"Content-Type": "text/html"})]
            for call in calls:
                with pytest.raises(StoreError):
                    call(store)

    @pytest.mark.parametrize(
        ("answer", "call", "error"),
        [
            (Answer(body=b"data", headers={"ETag": "e"}), GET, StoreNotUsableError),
            (Answer(body=b"data", headers={"ETag": "e", "Date": "yesterday"}), GET, StoreNotUsableError),
            (Answer(200, b"x" * 100), GET_RANGE, StoreNotUsableError),
            *(
                (Answer(206, b"x" * 20, {"Date": DATE, "Content-Range": sent}), GET_RANGE, StoreCorruptError)
                for sent in ("bytes 10-19/20", "bytes 0-19/100", "bytes 10-29")
            ),
            *(
                (
                    Answer(200, b"<ListBucketResult>%b</ListBucketResult>" % inner, XML),
                    LIST,
                    StoreNotUsableError,
                )
                for inner in (b"", b"<IsTruncated>true</IsTruncated>")
            ),
        ],
    )
    def test_an_answer_that_is_not_what_was_asked_for(
        self,
        server: ScriptedS3,
        store: S3ObjectStore,
        answer: Answer,
        call: Call,
        error: type[StoreError],
    ) -> None:
        """No date, a wrong date, no range, another range, half a listing."""
        server.script[:] = [answer]
        with pytest.raises(error):
            call(store)

    def test_a_deletion_that_is_refused_in_part_raises(
        self, server: ScriptedS3, store: S3ObjectStore
    ) -> None:
        body = (
            b"<DeleteResult><Error><Key>root/a</Key><Code>NoSuchKey</Code></Error>"
            b"<Error><Key>root/b</Key><Code>AccessDenied</Code></Error></DeleteResult>"
        )
        server.script[:] = [Answer(200, body, XML)]
        with pytest.raises(StoreAccessDeniedError) as raised:
            store.delete_many(["a", "b"])
        assert raised.value.fields["key"] == "b"


class TestUnfinishedUploads:
    """Uploads that were begun and never ended."""

    def test_all_pages_are_listed(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        first = (
            b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
            b"<NextKeyMarker>root/data/a</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>"
            b"<Upload><Key>root/data/a</Key><UploadId>1</UploadId>"
            b"<Initiated>2026-11-21T08:49:37.000Z</Initiated></Upload>"
            b"<Upload><Key>root/data/not a key of ours</Key><UploadId>x</UploadId>"
            b"<Initiated>2026-11-21T08:49:37.000Z</Initiated></Upload></ListMultipartUploadsResult>"
        )
        second = (
            b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
            b"<Upload><Key>root/data/b</Key><UploadId>2</UploadId>"
            b"<Initiated>2026-11-21T08:49:38.000Z</Initiated></Upload></ListMultipartUploadsResult>"
        )
        server.script[:] = [Answer(200, first, XML), Answer(200, second, XML)]
        del server.requests[:]
        assert list(store.list_uploads("data/")) == [
            UnfinishedUpload("data/a", "1", DATE_MS),
            UnfinishedUpload("data/b", "2", DATE_MS + 1000),
        ]
        assert "prefix=root%2Fdata%2F" in server.requests[0].path
        assert "key-marker=root%2Fdata%2Fa" in server.requests[1].path

    def test_minio_is_asked_for_those_of_the_bucket(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        body = b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>" + b"".join(
            b"<Upload><Key>%s</Key><UploadId>1</UploadId>"
            b"<Initiated>2026-11-21T08:49:37.000Z</Initiated></Upload>" % key
            for key in (b"data/a", b"other/data/a", b"root/data/a", b"root/other/a")
        )
        server.script[:] = [
            Answer(200, b"<ListMultipartUploadsResult/>", {**XML, "Server": "MinIO"}),
            Answer(200, body + b"</ListMultipartUploadsResult>", {**XML, "Server": "MinIO"}),
        ]
        del server.requests[:]
        assert list(store.list_uploads("data/")) == [UnfinishedUpload("data/a", "1", DATE_MS)]
        assert ["prefix=root" in request.path for request in server.requests] == [True, False]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (error_answer(403, "AccessDenied"), StoreAccessDeniedError),
            (error_answer(501, "NotImplemented"), StoreNotUsableError),
            (error_answer(405, "MethodNotAllowed"), StoreNotUsableError),
            (error_answer(500, "InternalError"), StoreUnavailableError),
        ],
    )
    def test_a_server_that_does_not_list_them_says_so(
        self, server: ScriptedS3, store: S3ObjectStore, answer: Answer, error: type[StoreError]
    ) -> None:
        server.script[:] = [answer]
        with pytest.raises(error):
            list(store.list_uploads("data/"))

    def test_an_upload_that_is_over_needs_no_abort(self, server: ScriptedS3, store: S3ObjectStore) -> None:
        upload = UnfinishedUpload("data/a", "1", DATE_MS)
        server.script[:] = [error_answer(404, "NoSuchUpload")]
        store.abort_upload(upload)
        server.script[:] = [error_answer(403, "AccessDenied")]
        with pytest.raises(StoreAccessDeniedError):
            store.abort_upload(upload)


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "REGION",
        "DEFAULT_REGION",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/credentials")


@pytest.mark.usefixtures("nothing_configured")
class TestConfiguration:
    """Everything comes from where every boto3 user expects it."""

    def test_no_credentials(self) -> None:
        with pytest.raises(StoreAccessDeniedError):
            open_store("s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1")

    @pytest.mark.parametrize("is_in_url", [True, False])
    def test_no_such_profile(self, is_in_url: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Keys in the environment do not help: a profile that is named is used."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        if not is_in_url:
            monkeypatch.setenv("AWS_PROFILE", "missing")
        with pytest.raises(StoreAccessDeniedError) as refused:
            open_store("s3://bucket?profile=missing" if is_in_url else "s3://bucket")
        assert refused.value.fields["profile"] == "missing"
        assert refused.value.fields["looked_in"] == f"{tmp_path}/credentials, {tmp_path}/config"

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
        for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            with scripted_s3([Answer(body=b"data")]) as server:
                monkeypatch.setenv(variable, server.endpoint_url)
                assert open_store("s3://bucket/root").get("key").data == b"data"
            [request] = server.requests
            assert request.path == "/bucket/root/key"
            assert "AKIDENVIRONMENT" in request.headers["Authorization"]
            assert "eu-north-1" in request.headers["Authorization"]

    def test_a_profile(self, tmp_path: Path) -> None:
        with scripted_s3([Answer(body=b"data")]) as server:
            Path(tmp_path, "config").write_text(
                "[profile stratalog]\nregion = eu-south-2\naws_access_key_id = AKIDPROFILE\n"
                f"aws_secret_access_key = secret\nendpoint_url = {server.endpoint_url}\n"
            )
            assert open_store("s3://bucket?profile=stratalog").get("key").data == b"data"
        [request] = server.requests
        assert "AKIDPROFILE" in request.headers["Authorization"]
        assert "eu-south-2" in request.headers["Authorization"]

    def test_no_region_is_needed_with_an_endpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with scripted_s3([Answer(body=b"data")]) as server:
            store = open_store(f"s3://bucket?endpoint={server.endpoint_url}")
            assert store.get("key").data == b"data"
            assert store.url == "s3://bucket"

    def test_the_descriptions_of_services_are_read_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """In each set of folders: tasks of Spark open a store each. That of the environment comes first."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        read: list[str] = []
        load = JSONFileLoader.load_file

        def noted(loader: JSONFileLoader, path: str) -> object:
            read.append(path)
            return load(loader, path)

        monkeypatch.setattr(JSONFileLoader, "load_file", noted)
        url = "s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1"
        (tmp_path / "models").mkdir()
        monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path / "models"))
        open_store(url).close()
        assert read[0].startswith(f"{tmp_path}/models")
        read.clear()
        for _ in range(3):
            open_store(url).close()
        assert read == []

    def test_an_endpoint_beyond_this_machine_gets_a_signed_body(self) -> None:
        assert is_protected("https://example.org")
        assert is_protected("http://localhost:9000")
        assert is_protected("http://127.0.0.1:9000")
        assert is_protected("http://[::1]:9000")
        assert not is_protected("http://minio:9000")
        assert not is_protected("http://192.168.0.7:9000")


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_gateway_that_redirects_everything_refuses_the_server(status: int) -> None:
    """To HTTPS, for example: its answers name no region."""
    redirect = Answer(status, headers={"Location": "https://store.example/", "Date": DATE})
    with scripted_s3([redirect]) as server:
        store = server.open_store()
        for ask in (
            lambda: store.get("key"),
            lambda: store.put("key", b"data", if_absent=True),
            lambda: list(store.list("")),
            lambda: store.delete_many(["key"]),
        ):
            with pytest.raises(StoreNotUsableError) as refused:
                ask()
            assert refused.value.fields["status"] == status
            assert "store_code" in refused.value.fields
        store.close()
        assert len(server.requests) <= 8
