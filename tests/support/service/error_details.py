"""The details of the statuses in a server's answers, read with protobuf alone."""

from __future__ import annotations

from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status


def error_info(status: Status) -> ErrorInfo:
    """The `ErrorInfo` of the status; an empty one if there is none."""
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            break
    return info


def retry_info(status: Status) -> RetryInfo | None:
    """The `RetryInfo` of the status; None if the same request cannot succeed later."""
    info = RetryInfo()
    return info if any(detail.Unpack(info) for detail in status.details) else None
