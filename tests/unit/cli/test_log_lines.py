"""Log lines as JSON have the same values as those of text, and libraries log no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from stratalog.cli.log_lines import LOG_FORMAT_HELP, LOG_FORMATS, fields_of, log_to_stderr
from stratalog.server.configuration import settings_table
from stratalog.server.configuration.settings_table import SETTINGS

pytest.importorskip("pythonjsonlogger")


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch, level: str, log_format: str) -> Generator[io.StringIO]:
    """Standard error, with the logging of a server."""
    root, libraries = logging.getLogger(), [logging.getLogger(name) for name in ("botocore", "urllib3")]
    former = (root.level, root.handlers[:], [one.level for one in libraries])
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    root.handlers.clear()
    try:
        log_to_stderr(level, log_format)
        yield stderr
    finally:
        root.setLevel(former[0])
        root.handlers[:] = former[1]
        for one, one_level in zip(libraries, former[2], strict=True):
            one.setLevel(one_level)


def test_a_line_is_an_object_with_its_values_as_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch, "info", "json") as stderr:
        logger = logging.getLogger("stratalog.a")
        logger.warning("%s is slow\nfor one, path=`%s` free_bytes=`%d`", "t-0", "/é", 3)
        logger.debug("not this one")
        try:
            raise ValueError("a defect")
        except ValueError:
            logger.exception("failed unexpectedly")
    slow, defect = (json.loads(line) for line in stderr.getvalue().splitlines())
    assert slow.pop("time").endswith("+00:00")
    assert slow == {
        "level": "WARNING",
        "logger": "stratalog.a",
        "message": "t-0 is slow\nfor one, path=`/é` free_bytes=`3`",
        "fields": {"path": "/é", "free_bytes": 3},
    }
    assert defect["fields"] == {}
    assert "ValueError: a defect" in defect["error"]


def test_text_is_one_line_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch, "warning", "text") as stderr:
        logging.getLogger("stratalog.a").warning("n=`%d`", 3)
        logging.getLogger("stratalog.a").info("not this one")
    [line] = stderr.getvalue().splitlines()
    assert line.endswith(" WARNING stratalog.a: n=`3`")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_libraries_log_no_requests(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    with logged(monkeypatch, "debug", log_format) as stderr:
        logging.getLogger("botocore.endpoint").debug("headers={'X-Amz-Security-Token': 'secret'}")
        logging.getLogger("urllib3.connectionpool").info("secret")
        logging.getLogger("stratalog.a").debug("this one")
    assert "secret" not in stderr.getvalue()
    assert "this one" in stderr.getvalue()


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_headers_of_strangers_fill_no_log(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    with logged(monkeypatch, "info", log_format) as stderr:
        grpc_logger = logging.getLogger("grpc._cython.cygrpc")
        try:
            b"\xe9".decode()
        except UnicodeDecodeError:
            grpc_logger.exception("Invalid encoding on %s", b"\xe9")
        grpc_logger.error("Unexpected error in a handler")
    [line] = stderr.getvalue().splitlines()
    assert "Unexpected error in a handler" in line


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("path=`a b` n=`-3`", {"path": "a b", "n": -3}),
        ("version=`1.5` id=`007x` empty=``", {"version": "1.5", "id": "007x", "empty": ""}),
        ("log.dirs=`/a` run `stratalog` now", {}),
        (f"long=`{10**30}`", {"long": str(10**30)}),
    ],
)
def test_fields_are_the_values_that_a_message_names(message: str, fields: dict[str, object]) -> None:
    assert fields_of(message) == fields


def test_commands_and_servers_have_the_same_formats() -> None:
    setting = SETTINGS["log-format"]
    assert (settings_table.LOG_FORMATS, setting.help) == (LOG_FORMATS, LOG_FORMAT_HELP)
