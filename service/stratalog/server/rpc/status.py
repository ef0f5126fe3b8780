"""The table from the engine's errors to gRPC status codes, and the wire form of an error.

A failed call carries three things: the status code, for generic gRPC clients; the message, for people; and an
``ErrorInfo`` as trailing metadata ``stratalog-error-bin``, for programs. Answers that hold several results
(Fetch, ListOffsets) carry the ``ErrorInfo`` inside, so that one failing partition does not hide the others.

Messages and fields are bounded: metadata beyond 8 KiB would make the transport drop the call.
"""

from __future__ import annotations

import logging

import grpc
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    CoordinatorFencedError,
    CorruptRecordError,
    DataDirectoryError,
    DataDirectoryInUseError,
    FencedError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTxnStateError,
    LogStoreError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    OverloadedError,
    PrecedingAppendFailedError,
    PreconditionFailedError,
    ProducerFencedError,
    RecordTooLargeError,
    StoppingError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.v1 import log_pb2

logger = logging.getLogger(__name__)

ERROR_METADATA_KEY = "stratalog-error-bin"
"""Trailing metadata of a failed call: a serialized `stratalog.v1.ErrorInfo`."""

INTERNAL_CODE = "INTERNAL"
"""`ErrorInfo.code` of a failure that no class of the tree describes: a defect, logged with its traceback."""

MAX_MESSAGE_CHARS = 1024
MAX_FIELD_CHARS = 550
MAX_FIELD_COUNT = 8

STATUS_BY_ERROR: dict[type[LogStoreError], grpc.StatusCode] = {
    LogStoreError: grpc.StatusCode.UNKNOWN,
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    UnsupportedOperationError: grpc.StatusCode.UNIMPLEMENTED,
    InvalidTimestampError: grpc.StatusCode.INVALID_ARGUMENT,
    RecordTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    CorruptRecordError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownTopicOrPartitionError: grpc.StatusCode.NOT_FOUND,
    TopicAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    OffsetOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    ProducerFencedError: grpc.StatusCode.FAILED_PRECONDITION,
    CoordinatorFencedError: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfOrderSequenceError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidTxnStateError: grpc.StatusCode.FAILED_PRECONDITION,
    PrecedingAppendFailedError: grpc.StatusCode.ABORTED,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StoppingError: grpc.StatusCode.UNAVAILABLE,
    DataDirectoryError: grpc.StatusCode.FAILED_PRECONDITION,
    DataDirectoryInUseError: grpc.StatusCode.FAILED_PRECONDITION,
    StoreError: grpc.StatusCode.INTERNAL,
    StoreUnavailableError: grpc.StatusCode.UNAVAILABLE,
    # Not PERMISSION_DENIED: the store refuses the server, and the caller cannot mend that with other
    # credentials.
    StoreAccessDeniedError: grpc.StatusCode.FAILED_PRECONDITION,
    StoreNotUsableError: grpc.StatusCode.FAILED_PRECONDITION,
    ObjectNotFoundError: grpc.StatusCode.INTERNAL,
    PreconditionFailedError: grpc.StatusCode.ABORTED,
    StoreCorruptError: grpc.StatusCode.DATA_LOSS,
}


def status_of(error: BaseException) -> grpc.StatusCode:
    """The status code of the nearest class in the table; INTERNAL outside the tree."""
    for ancestor in type(error).__mro__:
        if issubclass(ancestor, LogStoreError) and ancestor in STATUS_BY_ERROR:
            return STATUS_BY_ERROR[ancestor]
    return grpc.StatusCode.INTERNAL


def error_info(error: BaseException) -> log_pb2.ErrorInfo:
    """The wire form of `error`. An error outside the tree keeps its class name and part of its text."""
    if not isinstance(error, LogStoreError):
        return log_pb2.ErrorInfo(code=INTERNAL_CODE, message=_bounded(_unexpected(error), MAX_MESSAGE_CHARS))
    fields = {
        name: _bounded(str(value), MAX_FIELD_CHARS)
        for name, value in list(error.fields.items())[:MAX_FIELD_COUNT]
    }
    message = _bounded(error.message, MAX_MESSAGE_CHARS)
    return log_pb2.ErrorInfo(code=error.code, message=message, retriable=error.retriable, fields=fields)


def rpc_status(error: BaseException) -> Status:
    """The form of `error` inside a message: its status code, its message, and its `ErrorInfo` as a detail."""
    code_number, _ = status_of(error).value
    status = Status(code=code_number, message=details_of(error))
    status.details.add().Pack(error_info(error))
    return status


def details_of(error: BaseException) -> str:
    """The bounded status message for people."""
    text = str(error) if isinstance(error, LogStoreError) else _unexpected(error)
    return _bounded(text, MAX_MESSAGE_CHARS)


def log_if_unexpected(error: BaseException, where: str) -> None:
    """Log a defect with its traceback; errors of the tree go to the caller only."""
    if not isinstance(error, LogStoreError):
        logger.error("%s failed unexpectedly", where, exc_info=error)


def _unexpected(error: BaseException) -> str:
    return f"internal error, see the server's log: {type(error).__name__}: {error}"


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
