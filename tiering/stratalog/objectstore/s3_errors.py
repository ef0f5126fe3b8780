"""The only table from the responses of an S3 server to our errors.

Fields hold the HTTP status, the server's error code and its request id, each cut to a bound and to harmless
characters. The server's own text never gets into a message or a log: we control neither its length nor its
content.
"""

from __future__ import annotations

import re
from typing import Final

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

_CLOCK_CODES: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_ACCESS_CODES: Final = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_REGION_CODES: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
# The bytes were changed on their way, or were too slow: sending them again helps.
_TRANSIENT_CODES: Final = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InvalidDigest",
        "NoSuchUpload",
        "OperationAborted",
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)


def error_of_answer(
    status: int, code: str, *, key: str, store: str, request_id: str = "", is_conditional_write: bool = False
) -> StoreError:
    """The error for a response that is no success. `key` is empty unless it concerns a single object."""
    answer: dict[str, object] = {"key": key} if key else {}
    answer |= {"store": store, "status": status, "store_code": _bounded(code)}
    if request_id:
        answer["request_id"] = _bounded(request_id)
    is_refused = status == 412 or (is_conditional_write and status in (404, 409))
    if is_refused and code != "NoSuchBucket":
        return PreconditionFailedError("the conditional request was refused; read the object again", **answer)
    if code in _TRANSIENT_CODES or (status >= 500 and status != 501) or status == 429:
        return StoreUnavailableError("the store cannot do this now; try again later", **answer)
    about_bucket = _about_bucket(status, code)
    if about_bucket:
        return StoreNotUsableError(about_bucket, **answer)
    if code in _CLOCK_CODES:
        return StoreAccessDeniedError("the clock of this machine differs from the store's; set it", **answer)
    if code == "InvalidObjectState" and key:
        return ObjectArchivedError(
            "the object is archived, so that it cannot be read; restore it (`aws s3api restore-object`) and"
            " end the bucket's lifecycle rule or archive tier that took it there",
            **answer,
        )
    if code.startswith("KMS."):
        return StoreAccessDeniedError(
            "the store cannot use the key that encrypts its objects; enable the key in KMS, or correct"
            " sse-key in the store's url",
            **answer,
        )
    if code in _ACCESS_CODES or status in (401, 403):
        return StoreAccessDeniedError(
            "the store refuses these credentials; correct them or their permissions", **answer
        )
    if status == 404 and key:
        return ObjectNotFoundError("no object has this key; check it", **answer)
    if status == 416:
        return StoreCorruptError(
            "the object ends before the requested range; restore it from a copy", **answer
        )
    return StoreNotUsableError("the store does not accept this request; use a complete S3 server", **answer)


def _about_bucket(status: int, code: str) -> str:
    """The text about a bucket that cannot be used as it is; empty for other answers."""
    if code == "NoSuchBucket":
        return "the bucket does not exist; make it (for example with `aws s3 mb`) or correct the store's url"
    if code.endswith("QuotaExceeded"):
        return "the bucket has reached its quota; raise the quota, or delete other objects there"
    if code in _REGION_CODES or status in (301, 302, 303, 307, 308):
        return "the bucket is in another region or at another endpoint; correct them"
    return ""


def _bounded(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:/+=-]", "_", text[:64])
