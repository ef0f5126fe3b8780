"""Each answer of a server becomes the error that says what the caller can do about it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import (
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.objectstore.s3_errors import error_of_answer


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NoSuchBucket", StoreNotUsableError),
        (403, "InvalidObjectState", ObjectArchivedError),
        (403, "AccessDenied", StoreAccessDeniedError),
        (403, "QuotaExceeded", StoreNotUsableError),  # Ceph
        (400, "XMinioAdminBucketQuotaExceeded", StoreNotUsableError),
        (403, "InvalidAccessKeyId", StoreAccessDeniedError),
        (403, "SignatureDoesNotMatch", StoreAccessDeniedError),
        (403, "RequestTimeTooSkewed", StoreAccessDeniedError),
        (400, "ExpiredToken", StoreAccessDeniedError),
        (401, "Unauthorized", StoreAccessDeniedError),
        (400, "AuthorizationHeaderMalformed", StoreNotUsableError),
        (416, "InvalidRange", StoreCorruptError),
        (429, "TooManyRequests", StoreUnavailableError),
        (400, "RequestTimeout", StoreUnavailableError),
        (500, "InternalError", StoreUnavailableError),
        (502, "", StoreUnavailableError),
        (503, "SlowDown", StoreUnavailableError),
        (501, "NotImplemented", StoreNotUsableError),
        (405, "MethodNotAllowed", StoreNotUsableError),
        (409, "OperationAborted", StoreUnavailableError),
    ],
)
def test_each_error_is_what_the_caller_can_do_about_it(
    status: int, code: str, expected: type[StoreError]
) -> None:
    error = error_of_answer(status, code, key="key", store="s3://bucket", request_id="r1")
    assert type(error) is expected
    assert error.fields == {
        "key": "key",
        "store": "s3://bucket",
        "status": status,
        "store_code": code,
        "request_id": "r1",
    }


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (412, "PreconditionFailed", PreconditionFailedError),
        (409, "ConditionalRequestConflict", PreconditionFailedError),
        (404, "NoSuchKey", PreconditionFailedError),
        (404, "NoSuchBucket", StoreNotUsableError),
        (403, "AccessDenied", StoreAccessDeniedError),
        (503, "SlowDown", StoreUnavailableError),
    ],
)
def test_refusals_of_conditional_writes(status: int, code: str, expected: type[StoreError]) -> None:
    error = error_of_answer(status, code, key="key", store="s3://bucket", is_conditional_write=True)
    assert type(error) is expected


@pytest.mark.parametrize(
    ("status", "code"), [(403, "QuotaExceeded"), (400, "XMinioAdminBucketQuotaExceeded")]
)
def test_a_bucket_at_its_quota_is_no_matter_of_credentials(status: int, code: str) -> None:
    error = error_of_answer(status, code, key="key", store="s3://bucket", is_conditional_write=True)
    assert error.message.startswith("the bucket has reached its quota")


def test_not_found_where_no_object_was_asked_for_is_no_s3_server() -> None:
    error = error_of_answer(404, "404", key="", store="s3://bucket")
    assert type(error) is StoreNotUsableError


def test_a_server_cannot_make_messages_long_or_strange() -> None:
    error = error_of_answer(
        400, "a\nb`<script>" + "x" * 1000, key="", store="s3://bucket", request_id="\0" * 999
    )
    assert "\n" not in str(error)
    assert "<" not in str(error)
    assert len(str(error)) < 400
    assert "key" not in error.fields
