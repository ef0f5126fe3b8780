"""One table decides how an error looks on the wire."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import grpc
import pytest

from stratalog.base.errors import (
    LogStoreError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreUnavailableError,
)
from stratalog.server.rpc import status


def tree(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    if base.__module__ == "stratalog.base.errors":
        yield base
        for subclass in base.__subclasses__():
            yield from tree(subclass)


def test_the_table_has_every_class_of_the_tree_and_no_other() -> None:
    assert set(status.STATUS_BY_ERROR) == set(tree(LogStoreError))


def test_what_may_be_tried_again_is_known_by_its_status() -> None:
    retriable = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    for error_class, code in status.STATUS_BY_ERROR.items():
        assert (code in retriable) == error_class.retriable, error_class.__name__


def test_a_class_that_is_not_in_the_table_has_its_parents_code() -> None:
    class NearerError(StoreUnavailableError):
        pass

    assert status.status_of(NearerError("away")) is grpc.StatusCode.UNAVAILABLE
    assert status.status_of(StoreCorruptError("broken")) is grpc.StatusCode.DATA_LOSS


def test_what_is_outside_the_tree_is_internal_and_bounded() -> None:
    error = KeyError("x" * 5000)
    assert status.status_of(error) is grpc.StatusCode.INTERNAL
    info = status.error_info(error)
    assert info.code == status.INTERNAL_CODE
    assert "KeyError" in info.message
    assert len(info.message) == len(status.details_of(error)) == status.MAX_MESSAGE_CHARS


def test_an_info_never_outgrows_the_metadata_of_a_call() -> None:
    error = LogStoreError("m" * 9999, **{f"field_{number}": "v" * 9999 for number in range(99)})
    assert len(status.error_info(error).SerializeToString()) < 6000


def test_an_info_carries_code_message_and_fields() -> None:
    info = status.error_info(OffsetOutOfRangeError("gone", offset=3, log_start_offset=5))
    assert (info.code, info.message, info.retriable) == ("OFFSET_OUT_OF_RANGE", "gone", False)
    assert dict(info.fields) == {"offset": "3", "log_start_offset": "5"}


def test_only_defects_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        status.log_if_unexpected(OffsetOutOfRangeError("gone"), "Fetch")
        assert not caplog.records
        status.log_if_unexpected(ValueError("boom"), "Fetch")
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.levelno == logging.ERROR
