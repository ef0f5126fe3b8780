"""Turns failed calls back into the errors of the engine.

The server sends an ``ErrorInfo``: the code of a class of ``stratalog.base.errors``, its message and its
fields. The client raises that class, so a program catches the same errors whether it embeds the engine or
calls a server. A call without an answer from the server's code raises `ServerUnavailableError`, which only a
client knows, or the error of the transport's status. Requests that cannot be sent are refused here, with the
server's error for them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import grpc
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.v1 import log_pb2

ERROR_METADATA_KEY = "stratalog-error-bin"
"""Trailing metadata of a failed call: a serialized `stratalog.v1.ErrorInfo`."""

_INTEGER = re.compile(r"-?\d{1,19}")


class ServerUnavailableError(LogStoreError):
    """The server did not answer: it is not running, went away, or took too long. Try again later; the outcome
    of a change in progress is unknown. Fields: server.
    """

    code = "SERVER_UNAVAILABLE"
    retriable = True


def _classes(base: type[LogStoreError]) -> Iterator[type[LogStoreError]]:
    """The classes of ``stratalog.base.errors``, without subclasses of other modules."""
    if base.__module__ == LogStoreError.__module__:
        yield base
    for subclass in base.__subclasses__():
        yield from _classes(subclass)


_CLASS_BY_CODE = {error_class.code: error_class for error_class in _classes(LogStoreError)}


class _ForeignError(LogStoreError):
    """An error of a newer server, of a kind that this client does not know. Retriable if the server
    says so.
    """

    def __init__(self, info: log_pb2.ErrorInfo) -> None:
        super().__init__(info.message, **_fields(info))
        # Instance attributes, because the kind is known only at run time.
        vars(self)["code"] = info.code
        vars(self)["retriable"] = info.retriable


def error_of_info(info: log_pb2.ErrorInfo) -> LogStoreError:
    """The error that an `ErrorInfo` describes. Fields that are whole numbers become ints; others are text."""
    error_class = _CLASS_BY_CODE.get(info.code)
    if error_class is None:
        return _ForeignError(info)
    return error_class(info.message, **_fields(info))


def error_of_status(status: Status) -> LogStoreError:
    """The error that a status inside a message describes."""
    info = log_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return error_of_info(info)
    return LogStoreError(status.message, status=status.code)


def error_of_call(error: grpc.RpcError, server: str) -> LogStoreError:
    """The error for a failed call. `server` is its address, for the message."""
    assert isinstance(error, grpc.aio.AioRpcError)
    info = info_of_call(error)
    if info is not None:
        return error_of_info(info)
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(server)
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
        "the server does not answer; check its address and that it runs", server=server
    )


def info_of_call(error: grpc.aio.AioRpcError) -> log_pb2.ErrorInfo | None:
    """The server's description of the failure; None for a failure of the transport."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            return log_pb2.ErrorInfo.FromString(value)
    return None


def _fields(info: log_pb2.ErrorInfo) -> dict[str, object]:
    return {
        name: int(value) if _INTEGER.fullmatch(value) else value
        # A map has no order on the wire; sorting keeps messages equal.
        for name, value in sorted(info.fields.items())
        if name not in ("self", "message")
    }
