"""A registry gives the schemas of a subject, and credentials go nowhere else."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.lake.values.schema_registry import SchemaRegistry

RECORD = '{"type": "record", "name": "P", "fields": []}'
VERSIONS: dict[str, Any] = {
    "/subjects/a%2Fb-value/versions": [1, 3],
    "/subjects/a%2Fb-value/versions/1": {"id": 7, "version": 1, "schema": RECORD},
    "/subjects/a%2Fb-value/versions/3": {"id": 12, "version": 3, "schemaType": "AVRO", "schema": RECORD},
    "/subjects/proto/versions": [1],
    "/subjects/proto/versions/1": {"id": 8, "schemaType": "PROTOBUF", "schema": "syntax"},
    "/subjects/refers/versions": [1],
    "/subjects/refers/versions/1": {"id": 9, "schema": RECORD, "references": [{"name": "other"}]},
    "/subjects/odd/versions": {"error": 5},
    "/subjects/odd2/versions": [1],
    "/subjects/odd2/versions/1": {"schema": RECORD},
}


class Site:
    """The requests that a server got. Thread-safe: a list is."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str | None]] = []
        """Path and credentials."""


@contextmanager
def registry() -> Generator[Site]:
    """A registry that needs the credentials user:secret; what begins with /moved is somewhere else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            site.requests.append((self.path, given))
            path, _, query = self.path.partition("?")
            found = VERSIONS.get(path)
            status = 200 if found is not None and query == "deleted=true" else 404
            if given != "Basic dXNlcjpzZWNyZXQ=":
                status = 401
            if path.startswith("/moved"):
                status = 302
            self.send_response(status)
            if status == 302:
                self.send_header("Location", path.removeprefix("/moved"))
            body = json.dumps(found).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_versions_of_a_subject() -> None:
    with registry() as site:
        found = SchemaRegistry.of(f"{site.url}/", "user:secret").avro_schemas("a/b-value")
    assert found == {7: RECORD.encode(), 12: RECORD.encode()}


def test_credentials_for_this_machine_go_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with registry() as proxy, registry() as site:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert SchemaRegistry.of(site.url, "user:secret").avro_schemas("a/b-value")
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("subject", "base", "user_info"),
    [
        ("none", "", "user:secret"),
        ("odd", "", "user:secret"),
        ("odd2", "", "user:secret"),
        ("a/b-value", "", "user:wrong"),
        ("a/b-value", "", ""),
        ("a/b-value", "/moved", "user:secret"),
    ],
)
def test_what_a_registry_does_not_give(subject: str, base: str, user_info: str) -> None:
    with registry() as site:
        with pytest.raises(InvalidConfigError) as caught:
            SchemaRegistry.of(f"{site.url}{base}", user_info).avro_schemas(subject)
        assert len(site.requests) == 1 + (subject == "odd2")
    assert "secret" not in str(caught.value)
    assert "dXNlcjpzZWNyZXQ" not in str(caught.value)


@pytest.mark.parametrize(("subject", "number"), [("proto", 8), ("refers", 9)])
def test_schemas_that_need_files(subject: str, number: int) -> None:
    with registry() as site, pytest.raises(UnsupportedOperationError) as caught:
        SchemaRegistry.of(site.url, "user:secret").avro_schemas(subject)
    assert caught.value.fields["schema_id"] == number


def test_a_registry_that_does_not_answer() -> None:
    with registry() as site:
        pass
    with pytest.raises(InvalidConfigError):
        SchemaRegistry.of(site.url, "").avro_schemas("any")


@pytest.mark.parametrize(
    ("url", "user_info"),
    [
        ("file:///etc/passwd", ""),
        ("registry:8081", ""),
        ("https://user:secret@registry", ""),
        ("https://registry?secret=1", ""),
        ("http://user:secret@[registry/", ""),
        ("http://registry", "user:secret"),
        ("https://registry", "secret"),
    ],
)
def test_an_address_that_is_refused(url: str, user_info: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        SchemaRegistry.of(url, user_info)
    assert "secret" not in str(caught.value)


def test_https_takes_credentials() -> None:
    assert SchemaRegistry.of("https://registry:8081/", "user:secret").url == "https://registry:8081"
