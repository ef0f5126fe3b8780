"""Turns failed calls back into the errors of the engine.

The server sends a ``google.rpc.Status``: its ``ErrorInfo`` has the code of a class of
``stratalog.base.errors`` and the fields. The client raises that class, so a program catches the same errors
whether it embeds the engine or calls a server. A call without an answer from the server's code raises
`ServerUnavailableError`, which only a client knows, or the error of the transport's status. Requests that
cannot be sent are refused here, with the server's error for them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    ERROR_DOMAIN,
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
    UnsupportedOperationError,
)

_INTEGER = re.compile(r"-?\d{1,19}")

TEXT_FIELDS = frozenset(
    {
        "topic",
        "other_topic",
        "existing_topic",
        "topics",
        "current_token",
        "fencing_token",
        "name",
        "value",
        "owner",
        "principal",
        "token_id",
        "certificate",
    }
)
"""Fields with names and tokens that callers choose. They stay text, also if that is a number: a topic may be
called 2024, and a token 042.
"""


_HANDSHAKE = "handshake failed"
"""The transport's words for a connection whose TLS has failed."""

_CUT_OFF_WORDS = ("error from Core", "RST_STREAM", "Stream removed", "No status received")
"""The transport's words for a call that a failing connection has cut off, or a proxy, as nginx does with a
stream that is silent for a minute.
"""


class ServerUnavailableError(LogStoreError):
    """The server did not answer: it is not running, went away, or took too long. Try again later; the outcome
    of a change in progress is unknown. Fields: server.
    """

    code = "SERVER_UNAVAILABLE"
    retriable = True


class BufferFullError(LogStoreError):
    """A producer has as many unacknowledged bytes as it may have. Nothing of the record was kept: wait for
    `ready()` and send it again. Fields: buffered_bytes, max_bytes.
    """

    code = "BUFFER_FULL"
    retriable = True


class RecordDecodingError(LogStoreError):
    """A decoder failed for a record; its error is the cause. Seek to `offset` + 1, or read with another
    decoder. Fields: topic, partition, offset, origin (the part of the record: `key` or `value`), reason.
    """

    code = "RECORD_DECODING_FAILED"

    def __init__(
        self,
        message: str = "the record cannot be decoded; go on behind it, or use another decoder",
        **fields: object,
    ) -> None:
        super().__init__(message, **fields)


class ClientClosedError(LogStoreError):
    """The client or the producer was closed before or during the call. Make another one."""

    code = "CLIENT_CLOSED"

    def __init__(self, message: str = "the client was closed; make another client", **fields: object) -> None:
        super().__init__(message, **fields)


def _classes(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    """The classes of ``stratalog.base.errors``, without subclasses of other modules."""
    if base.__module__ == LogStoreError.__module__:
        yield base
    for subclass in base.__subclasses__():
        yield from _classes(subclass)


_CLASS_BY_CODE = {error_class.code: error_class for error_class in _classes(LogStoreError)}


def error_of_status(status: Status) -> LogStoreError:
    """The error that a status of an answer describes: of the class with its code, or a LogStoreError for a
    code that only newer servers know. Retriable if the server says so, after `retry_delay_s` at the earliest.
    Fields that are whole numbers become ints, except for `TEXT_FIELDS`; others are text.
    """
    info = _info(status)
    code = LogStoreError.code if info is None else info.reason
    error = _CLASS_BY_CODE.get(code, LogStoreError)(status.message, **({} if info is None else _fields(info)))
    retry = RetryInfo()
    # An instance attribute: the class does not know the codes of newer servers.
    vars(error)["code"] = code
    error.retriable = any(detail.Unpack(retry) for detail in status.details)
    error.retry_delay_s = max(retry.retry_delay.ToMicroseconds() / 1e6, 0.0)
    return error


def error_of_call(error: grpc.RpcError, server: str) -> LogStoreError:
    """The error for a failed call. `server` is its address, for the message."""
    assert isinstance(error, grpc.aio.AioRpcError)
    rich = _status_of_call(error)
    if rich is not None:
        return error_of_status(rich)
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE and _HANDSHAKE in details:
        return ServerUnavailableError(
            "the server and the client do not accept each other's TLS; check the authority, the certificates,"
            " the server's name in its certificate, and whether the server has TLS",
            server=server,
            reason=details[-300:],
        )
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(server)
    # Its own cancellations are no errors to a client: a server cancels what is left at the end of its grace.
    if status is grpc.StatusCode.CANCELLED or any(words in details for words in _CUT_OFF_WORDS):
        return ServerUnavailableError("the call was cut off before its answer; try again", server=server)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerUnavailableError("the server did not answer in time; try again", server=server)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return RecordTooLargeError(
            "the request is larger than the server accepts; send less at once", details=details
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "RPC limit" in details:
        return OverloadedError("too many calls are open at the server; try again", server=server)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedOperationError(
            "the server does not know this call; use a newer server", server=server
        )
    if status is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequestError(details)
    return LogStoreError(f"the call failed with {status.name}: {details}", server=server)


@contextmanager
def refusing_misfits() -> Generator[None]:
    """A context for building messages. Raises InvalidRequestError for a number that is too large for its
    field, and for text that is not Unicode, such as a name from bytes that are not UTF-8.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the text is not Unicode; correct it", text=ascii(error.object)) from None
    except ValueError as error:
        raise InvalidRequestError(
            "a number is too large or too small to be sent; correct it", reason=error
        ) from None


def unreachable(server: str) -> ServerUnavailableError:
    """The error for an address where no server answers."""
    return ServerUnavailableError(
        "the server does not answer; check its address, that it runs, and whether it wants TLS", server=server
    )


def _status_of_call(error: grpc.aio.AioRpcError) -> Status | None:
    """The server's description of the failure; None for a failure of the transport, or of another program
    between client and server.
    """
    # Not above: most programs of one call see no failure.
    from grpc_status import rpc_status

    try:
        # It needs three methods, which this error has.
        status = cast(object, rpc_status.from_call(cast(grpc.Call, error)))  # pyright: ignore[reportUnknownMemberType]  # without types
    except (ValueError, DecodeError):
        return None
    return status if isinstance(status, Status) and _info(status) is not None else None


def _info(status: Status) -> ErrorInfo | None:
    """The details of our own servers; None without any."""
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            return info
    return None


def _fields(info: ErrorInfo) -> dict[str, object]:
    return {
        name: int(value) if name not in TEXT_FIELDS and _INTEGER.fullmatch(value) else value
        # A map has no order on the wire; sorting keeps messages equal.
        for name, value in sorted(info.metadata.items())
        if name not in ("self", "message")
    }
