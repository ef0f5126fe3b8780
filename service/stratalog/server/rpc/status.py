"""The table from the engine's errors to gRPC status codes, and the wire form of an error.

The wire form is a ``google.rpc.Status``: the status code, the message for people, and for programs an
``ErrorInfo`` with the code of the class (the reason) and the fields (the metadata). A ``RetryInfo`` means
that the same request may succeed later; no other error has one. A failed call carries the status as trailing
metadata ``grpc-status-details-bin``. Answers that hold several results (Fetch, ListOffsets) carry it inside,
so that one failing partition does not hide the others.

An error about one partition names it: the fields `topic` and `partition` come from the place that answers,
because the layers below do not know both.

Paths and reasons of the server's disk stay inside, unless the caller's own request has them.

Messages and fields are bounded: metadata beyond 8 KiB would make the transport drop the call.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    ERROR_DOMAIN,
    AuthenticationFailedError,
    AuthorizationFailedError,
    CoordinatorFencedError,
    CorruptRecordError,
    DataDirectoryError,
    DataDirectoryInUseError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    FencingTokenMismatchError,
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTxnStateError,
    LimitExceededError,
    LogStoreError,
    LogTruncatedError,
    LowDiskSpaceError,
    NotOwnerError,
    ObjectArchivedError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    OverloadedError,
    PlanChangedError,
    PrecedingAppendFailedError,
    PreconditionFailedError,
    ProducerFencedError,
    RecordsLostError,
    RecordTooLargeError,
    StartingError,
    StoppingError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
    UnexpectedOffsetError,
    UnknownLeaderEpochError,
    UnknownOperationError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.types import TopicPartition

INTERNAL_CODE = "INTERNAL"
"""The reason of a failure that no class of the tree describes: a defect, logged with its traceback."""

# The message may count four times: the transport sends it once more, with three bytes for each that is not
# ASCII.
MAX_MESSAGE_BYTES = 768
MAX_FIELD_BYTES = 550
MAX_FIELD_COUNT = 8
MAX_REASON_BYTES = 1_000

INNER_FIELDS = frozenset(
    {
        "path",
        "directory",
        "other_path",
        "real_path",
        "data_dir",
        "log_dirs",
        "looked_in",
        "store",
        "wanted_store",
        "reason",
    }
)
"""Fields with paths of the server, and with reasons, which quote paths and the operating system."""

STATUS_BY_ERROR: dict[type[LogStoreError], grpc.StatusCode] = {
    LogStoreError: grpc.StatusCode.UNKNOWN,
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    UnsupportedOperationError: grpc.StatusCode.UNIMPLEMENTED,
    InvalidTimestampError: grpc.StatusCode.INVALID_ARGUMENT,
    RecordTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidRecordError: grpc.StatusCode.INVALID_ARGUMENT,
    AuthenticationFailedError: grpc.StatusCode.UNAUTHENTICATED,
    AuthorizationFailedError: grpc.StatusCode.PERMISSION_DENIED,
    CorruptRecordError: grpc.StatusCode.DATA_LOSS,
    UnknownTopicOrPartitionError: grpc.StatusCode.NOT_FOUND,
    UnknownOperationError: grpc.StatusCode.NOT_FOUND,
    TopicAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    OffsetOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    NotOwnerError: grpc.StatusCode.FAILED_PRECONDITION,
    InconsistentTopicIdError: grpc.StatusCode.FAILED_PRECONDITION,
    FencedLeaderEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownLeaderEpochError: grpc.StatusCode.UNAVAILABLE,
    LogTruncatedError: grpc.StatusCode.OUT_OF_RANGE,
    ProducerFencedError: grpc.StatusCode.FAILED_PRECONDITION,
    CoordinatorFencedError: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfOrderSequenceError: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownProducerIdError: grpc.StatusCode.FAILED_PRECONDITION,
    # ABORTED as a lost race: the caller reads, decides again, and sends another request.
    UnexpectedOffsetError: grpc.StatusCode.ABORTED,
    PlanChangedError: grpc.StatusCode.ABORTED,
    FencingTokenMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidTxnStateError: grpc.StatusCode.FAILED_PRECONDITION,
    PrecedingAppendFailedError: grpc.StatusCode.ABORTED,
    RecordsLostError: grpc.StatusCode.DATA_LOSS,
    LimitExceededError: grpc.StatusCode.FAILED_PRECONDITION,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LowDiskSpaceError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StartingError: grpc.StatusCode.UNAVAILABLE,
    StoppingError: grpc.StatusCode.UNAVAILABLE,
    DataDirectoryError: grpc.StatusCode.FAILED_PRECONDITION,
    DataDirectoryInUseError: grpc.StatusCode.FAILED_PRECONDITION,
    StoreError: grpc.StatusCode.INTERNAL,
    StoreUnavailableError: grpc.StatusCode.UNAVAILABLE,
    # Not PERMISSION_DENIED: the store refuses the server, and the caller cannot mend that with other
    # credentials.
    StoreAccessDeniedError: grpc.StatusCode.FAILED_PRECONDITION,
    DeletionRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    StoreNotUsableError: grpc.StatusCode.FAILED_PRECONDITION,
    ObjectNotFoundError: grpc.StatusCode.INTERNAL,
    # Nothing is lost, and no retry helps before an operator has restored the object.
    ObjectArchivedError: grpc.StatusCode.FAILED_PRECONDITION,
    PreconditionFailedError: grpc.StatusCode.ABORTED,
    StoreCorruptError: grpc.StatusCode.DATA_LOSS,
}

KNOWN_ERRORS = (
    *((status.name, error.code) for error, status in STATUS_BY_ERROR.items()),
    (grpc.StatusCode.INTERNAL.name, INTERNAL_CODE),
)
"""The status code and the reason of each error that may be answered."""

RETRY_DELAY_S: dict[type[LogStoreError], float] = {
    # Memory comes free with the next answer.
    OverloadedError: 0.05,
    # The server measures its disks once a second.
    LowDiskSpaceError: 1.0,
    StartingError: 0.5,
    # This server notices its successor with its next look at the head.
    UnknownLeaderEpochError: 0.5,
    # Another server, or this one once it has started again.
    StoppingError: 0.5,
    StoreUnavailableError: 0.5,
}
"""The shortest pause before a retry, for each retriable class; a single error may ask for a longer one."""


def status_code_of(error: LogStoreError) -> grpc.StatusCode:
    """The status code of the nearest class in the table."""
    return STATUS_BY_ERROR[_nearest(error, STATUS_BY_ERROR)]


def inner_fields(error: LogStoreError) -> dict[str, object]:
    """The fields of `error` that stay inside. A request that names a path gets it back in its refusal."""
    is_about_request = isinstance(error, InvalidRequestError)
    # This version's limits also concern files of the server.
    if is_about_request and not isinstance(error, UnsupportedOperationError):
        return {}
    return {name: value for name, value in error.fields.items() if name in INNER_FIELDS}


def status_of_error(error: LogStoreError, partition: TopicPartition | None = None) -> Status:
    """The wire form of `error`, which is about `partition`, or about none or several. Fields that the error
    has stay."""
    inner = inner_fields(error)
    fields = error.fields if partition is None else partition.error_fields | error.fields
    shown = [(name, value) for name, value in fields.items() if name not in inner]
    metadata = {name: _bounded(str(value), MAX_FIELD_BYTES) for name, value in shown[:MAX_FIELD_COUNT]}
    status = _status(status_code_of(error), error.message, error.code, metadata)
    if error.retriable:
        delay = Duration()
        delay_s = max(error.retry_delay_s, RETRY_DELAY_S[_nearest(error, RETRY_DELAY_S)])
        delay.FromMilliseconds(round(delay_s * 1000))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status


def short_status(status: Status) -> Status:
    """The code and the reason of a status that was made here, without its message and fields."""
    info = ErrorInfo()
    status.details[0].Unpack(info)
    short = Status(code=status.code)
    short.details.add().Pack(ErrorInfo(reason=info.reason, domain=info.domain))
    return short


def status_of_defect(error_id: str) -> Status:
    """The wire form of an error outside the tree: its id, which is also in the server's log."""
    message = f"internal error; see the server's log for {error_id}"
    return _status(grpc.StatusCode.INTERNAL, message, INTERNAL_CODE, {"error_id": error_id})


def _nearest(error: LogStoreError, table: Mapping[type[LogStoreError], object]) -> type[LogStoreError]:
    """The nearest class of `error` in the table."""
    return next(
        ancestor
        for ancestor in type(error).__mro__
        if issubclass(ancestor, LogStoreError) and ancestor in table
    )


def _status(code: grpc.StatusCode, message: str, reason: str, metadata: Mapping[str, str]) -> Status:
    number: int = code.value[0]
    status = Status(code=number, message=_bounded(message, MAX_MESSAGE_BYTES))
    status.details.add().Pack(ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata))
    return status


def bounded_reason(text: str) -> str:
    """A text for people in an answer, cut to `MAX_REASON_BYTES`."""
    return _bounded(text, MAX_REASON_BYTES)


def _bounded(text: str, max_bytes: int) -> str:
    """The text as Unicode that the wire takes, cut to `max_bytes` of UTF-8."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= max_bytes:
        return data.decode()
    ellipsis = "…"
    return data[: max_bytes - len(ellipsis.encode())].decode(errors="ignore") + ellipsis
