"""One table decides how an error looks on the wire."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from urllib.parse import quote

import grpc
import pytest

from stratalog.base.errors import (
    ERROR_DOMAIN,
    CorruptRecordError,
    DataDirectoryError,
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from stratalog.server.rpc import status
from tests.support.places import REPOSITORY
from tests.support.service.error_details import error_info, retry_info

METADATA_BYTES = 8 << 10
"""The transport drops a call with more metadata."""


def tree(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    if base.__module__ == "stratalog.base.errors":
        yield base
        for subclass in base.__subclasses__():
            yield from tree(subclass)


CLASSES = sorted(tree(LogStoreError), key=lambda error_class: error_class.__name__)
every_class = pytest.mark.parametrize("error_class", CLASSES, ids=lambda one: one.__name__)


@cache
def raised_fields() -> set[tuple[str, str]]:
    """Class and field, for each field of each error that the code of the server makes."""
    names = {error_class.__name__ for error_class in CLASSES}
    found = set[tuple[str, str]]()
    for root in ("storage", "tiering", "service"):
        for path in (REPOSITORY / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    found |= {(node.func.id, one.arg) for one in node.keywords if one.arg is not None}
    return found


def test_the_table_has_every_class_of_the_tree_and_no_other() -> None:
    assert set(status.STATUS_BY_ERROR) == set(CLASSES)


def test_only_retriable_classes_have_a_delay() -> None:
    assert set(status.RETRY_DELAY_S) == {one for one in CLASSES if one.retriable}


def test_what_may_be_tried_again_is_known_by_its_status() -> None:
    retriable = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    for error_class, code in status.STATUS_BY_ERROR.items():
        assert (code in retriable) == error_class.retriable, error_class.__name__


@every_class
def test_each_class_has_its_code_its_reason_and_a_delay_if_it_is_retriable(
    error_class: type[LogStoreError],
) -> None:
    sent = status.status_of_error(error_class("failed; do something", offset=3))
    assert sent.code == status.STATUS_BY_ERROR[error_class].value[0]
    assert sent.message == "failed; do something"
    info = error_info(sent)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        error_class.code,
        ERROR_DOMAIN,
        {"offset": "3"},
    )
    retry = retry_info(sent)
    assert (retry is not None) == error_class.retriable
    if retry is not None:
        assert 0 < retry.retry_delay.ToTimedelta().total_seconds() < 2


def test_bad_input_and_stored_damage_have_different_codes() -> None:
    assert status.status_code_of(InvalidRecordError("bad")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status.status_code_of(CorruptRecordError("bad")) is grpc.StatusCode.DATA_LOSS
    assert not issubclass(CorruptRecordError, InvalidRequestError)


def test_a_class_that_is_not_in_the_table_has_its_parents_code_and_delay() -> None:
    class NearerError(StoreUnavailableError):
        pass

    assert status.status_code_of(NearerError("away")) is grpc.StatusCode.UNAVAILABLE
    assert retry_info(status.status_of_error(NearerError("away"))) is not None
    assert status.status_code_of(StoreCorruptError("broken")) is grpc.StatusCode.DATA_LOSS


def test_a_defect_shows_its_id_and_nothing_else() -> None:
    sent = status.status_of_defect("4f2a")
    info = error_info(sent)
    assert sent.code == grpc.StatusCode.INTERNAL.value[0]
    assert (info.reason, dict(info.metadata)) == (status.INTERNAL_CODE, {"error_id": "4f2a"})
    assert "4f2a" in sent.message
    assert retry_info(sent) is None


@pytest.mark.parametrize("letter", ["m", "ä", "…", "😀", "\udcff"])
def test_a_status_never_outgrows_the_metadata_of_a_call(letter: str) -> None:
    fields = {f"field_{number:03d}": letter * 9999 for number in range(99)}
    sent = status.status_of_error(StoreUnavailableError(letter * 9999, **fields))
    assert len(sent.SerializeToString()) + len(quote(sent.message)) < METADATA_BYTES - 200
    assert len(error_info(sent).metadata) == status.MAX_FIELD_COUNT


@pytest.mark.parametrize("error_class", [DataDirectoryError, CorruptRecordError, UnsupportedOperationError])
def test_paths_and_reasons_of_the_server_stay_inside(error_class: type[LogStoreError]) -> None:
    inner: dict[str, object] = dict.fromkeys(status.INNER_FIELDS, "/data/t-0/0.log")
    error = error_class("the file is damaged; restore it", position=3, **inner)
    assert set(status.inner_fields(error)) == status.INNER_FIELDS
    sent = status.status_of_error(error)
    assert dict(error_info(sent).metadata) == {"position": "3"}
    assert b"/data" not in sent.SerializeToString()


def test_a_request_that_names_a_path_gets_it_back() -> None:
    error = InvalidRequestError("there is no such log directory; name another", path="/data")
    assert not status.inner_fields(error)
    assert dict(error_info(status.status_of_error(error)).metadata) == {"path": "/data"}


def test_every_field_that_may_have_a_path_is_an_inner_one() -> None:
    # `altered` has directories that the request named; the name of a profile is no path.
    allowed = {"directory_id", "altered", "profile"}
    requests = {one.__name__ for one in tree(InvalidRequestError)} - {UnsupportedOperationError.__name__}
    named = {
        field
        for error_class, field in raised_fields()
        if error_class not in requests and re.search("path|dir|file|url|reason|error|store$", field)
    }
    assert named - allowed <= status.INNER_FIELDS


def test_reasons_and_fields_have_the_form_of_the_wire() -> None:
    for error_class in CLASSES:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+[A-Z0-9]", error_class.code)
        assert len(error_class.code) <= 63
    codes = [error_class.code for error_class in CLASSES]
    assert len(set(codes)) == len(codes)
    fields = {field for _, field in raised_fields()}
    assert len(fields) > 50
    for field in fields:
        assert re.fullmatch(r"[a-z][a-zA-Z0-9_-]+", field), field
        assert len(field) <= 64


def test_the_fields_of_an_error_are_the_metadata() -> None:
    sent = status.status_of_error(OffsetOutOfRangeError("gone", offset=3, log_start_offset=5))
    assert dict(error_info(sent).metadata) == {"offset": "3", "log_start_offset": "5"}
