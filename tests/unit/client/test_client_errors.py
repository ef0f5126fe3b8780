"""Errors that cross the wire are the same errors on the other side."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc.aio import AioRpcError, Metadata
from grpc_status import rpc_status

from stratalog.base.errors import (
    ERROR_DOMAIN,
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from stratalog.client.errors import ServerUnavailableError, error_of_call, error_of_status
from stratalog.server.rpc.status import status_of_defect, status_of_error


def leaves(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    if base.__module__ == "stratalog.base.errors":
        yield base
        for subclass in base.__subclasses__():
            yield from leaves(subclass)


def failed_call(code: grpc.StatusCode, details: str = "", metadata: Metadata | None = None) -> AioRpcError:
    return AioRpcError(code, Metadata(), metadata or Metadata(), details=details)


def rich_status(
    reason: str, *, domain: str = ERROR_DOMAIN, delay_ms: int | None = None, **metadata: str
) -> Status:
    """A status as a server sends it; retriable with a delay."""
    status = Status(code=grpc.StatusCode.OUT_OF_RANGE.value[0], message="m")
    status.details.add().Pack(ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    if delay_ms is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(delay_ms)
        status.details.add().Pack(retry)
    return status


def call_of(status: Status, details: str | None = None) -> AioRpcError:
    """A call that failed with the status."""
    rich = rpc_status.to_status(status)  # pyright: ignore[reportUnknownMemberType]  # its parameter has no type
    metadata = Metadata(*(rich.trailing_metadata or ()))
    return failed_call(rich.code, rich.details if details is None else details, metadata)


@pytest.mark.parametrize("error_class", list(leaves(LogStoreError)), ids=lambda leaf: leaf.__name__)
def test_every_class_comes_back_as_itself(error_class: type[LogStoreError]) -> None:
    sent = error_class("something happened, do something", topic="t", offset=-5)
    wire = status_of_error(sent)
    for received in (error_of_status(wire), error_of_call(call_of(wire), "here:1")):
        assert type(received) is error_class
        assert (received.message, received.fields) == (sent.message, {"topic": "t", "offset": -5})
        assert received.code == error_class.code
        assert received.retriable == error_class.retriable
        assert (received.retry_delay_s > 0) == error_class.retriable
    assert error_class.retry_delay_s == 0


def test_a_defect_of_the_server_comes_back_with_its_id() -> None:
    error = error_of_call(call_of(status_of_defect("4f2a")), "here:1")
    assert type(error) is LogStoreError
    assert (error.code, error.fields, error.retriable) == ("INTERNAL", {"error_id": "4f2a"}, False)


def test_an_unknown_reason_keeps_what_the_server_said() -> None:
    error = error_of_status(rich_status("NEWER", delay_ms=250, a="1x"))
    assert (error.code, error.message, error.fields) == ("NEWER", "m", {"a": "1x"})
    assert (error.retriable, error.retry_delay_s) == (True, 0.25)
    assert not error_of_status(rich_status("NEWER")).retriable
    assert not LogStoreError.retriable
    assert LogStoreError.code == "UNKNOWN"


def test_a_status_of_another_domain_is_a_failure_of_the_transport() -> None:
    foreign = rich_status("OFFSET_OUT_OF_RANGE", domain="proxy.example.com")
    assert type(error_of_call(call_of(foreign), "here:1")) is LogStoreError
    assert error_of_call(call_of(foreign), "here:1").fields == {"server": "here:1"}
    unavailable = Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="no upstream")
    assert type(error_of_call(call_of(unavailable), "here:1")) is ServerUnavailableError


@pytest.mark.parametrize("data", [b"\xff\xff", rich_status("NOT_OWNER").SerializeToString()])
def test_details_that_contradict_their_call_are_ignored(data: bytes) -> None:
    metadata = Metadata(("grpc-status-details-bin", data))
    error = error_of_call(failed_call(grpc.StatusCode.UNAVAILABLE, "m", metadata), "here:1")
    assert type(error) is ServerUnavailableError


def test_names_and_tokens_of_digits_stay_text() -> None:
    sent = LogStoreError("m", topic="2024", current_token="042", fencing_token="41", offset=7)
    assert error_of_status(status_of_error(sent)).fields == sent.fields


def test_fields_that_are_named_like_parameters_do_no_harm() -> None:
    status = rich_status("INVALID_REQUEST")
    info = ErrorInfo(
        reason="INVALID_REQUEST", domain=ERROR_DOMAIN, metadata={"self": "x", "message": "y", "a": "b"}
    )
    status.details[0].Pack(info)
    assert error_of_status(status).fields == {"a": "b"}


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
        (grpc.StatusCode.INTERNAL, "Internal error from Core", ServerUnavailableError),
        (grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8", ServerUnavailableError),
        # The end of a server's grace, before the connection ends.
        (grpc.StatusCode.CANCELLED, "CANCELLED", ServerUnavailableError),
    ],
)
def test_a_failure_of_the_transport_differs_from_the_engines(
    code: grpc.StatusCode, details: str, expected: type[LogStoreError]
) -> None:
    error = error_of_call(failed_call(code, details), "here:1")
    assert type(error) is expected
    assert not isinstance(error, StoreUnavailableError)
