"""Errors that cross the wire are the same errors on the other side."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    OverloadedError,
    RecordTooLargeError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from stratalog.client.errors import ERROR_METADATA_KEY, ServerUnavailableError, error_of_call, error_of_info
from stratalog.server.rpc import status
from stratalog.v1 import log_pb2


def leaves(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    if base.__module__ == "stratalog.base.errors":
        yield base
        for subclass in base.__subclasses__():
            yield from leaves(subclass)


def failed_call(code: grpc.StatusCode, details: str = "", metadata: Metadata | None = None) -> AioRpcError:
    return AioRpcError(code, Metadata(), metadata or Metadata(), details=details)


@pytest.mark.parametrize("error_class", list(leaves(LogStoreError)), ids=lambda leaf: leaf.__name__)
def test_every_class_comes_back_as_itself(error_class: type[LogStoreError]) -> None:
    sent = error_class("something happened, do something", topic="t", offset=-5)
    received = error_of_info(status.error_info(sent))
    assert type(received) is error_class
    assert (received.message, received.fields) == (sent.message, {"topic": "t", "offset": -5})
    assert received.retriable == error_class.retriable


def test_both_sides_use_the_same_metadata_key() -> None:
    assert ERROR_METADATA_KEY == status.ERROR_METADATA_KEY


def test_the_info_of_a_failed_call_wins_over_its_status() -> None:
    info = status.error_info(OffsetOutOfRangeError("gone", offset=3, log_start_offset=5, log_end_offset=9))
    metadata = Metadata((ERROR_METADATA_KEY, info.SerializeToString()))
    error = error_of_call(failed_call(grpc.StatusCode.OUT_OF_RANGE, "gone", metadata), "here:1")
    assert isinstance(error, OffsetOutOfRangeError)
    assert error.fields["log_start_offset"] == 5


def test_an_unknown_code_keeps_what_the_server_said() -> None:
    error = error_of_info(log_pb2.ErrorInfo(code="NEWER", message="m", retriable=True, fields={"a": "1x"}))
    assert (error.code, error.retriable, error.fields) == ("NEWER", True, {"a": "1x"})
    assert not LogStoreError.retriable


def test_fields_that_are_named_like_parameters_do_no_harm() -> None:
    error = error_of_info(
        log_pb2.ErrorInfo(code="INVALID_REQUEST", message="m", fields={"self": "x", "message": "y", "a": "b"})
    )
    assert error.fields == {"a": "b"}


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", ServerUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", ServerUnavailableError),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Received message larger than max (9 vs. 5)",
            RecordTooLargeError,
        ),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", OverloadedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", LogStoreError),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", UnsupportedOperationError),
        (grpc.StatusCode.INVALID_ARGUMENT, "bad", InvalidRequestError),
        (grpc.StatusCode.INTERNAL, "boom", LogStoreError),
    ],
)
def test_a_failure_of_the_transport_differs_from_the_engines(
    code: grpc.StatusCode, details: str, expected: type[LogStoreError]
) -> None:
    error = error_of_call(failed_call(code, details), "here:1")
    assert type(error) is expected
    assert not isinstance(error, StoreUnavailableError)
