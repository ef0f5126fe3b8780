"""The options of a store's URL that go into its requests, and checksums in the form that the server takes.

Options that belong to every request (the owner of the bucket, the payer) and to every write (encryption) are
added in one hook of botocore, wherever the operation has such a parameter.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.s3_settings import S3Settings

_ALGORITHM_HEADER: Final = "x-amz-sdk-checksum-algorithm"


class S3RequestOptions:
    """The parameters that the settings of a store add to its requests. Immutable, hence thread-safe."""

    def __init__(self, settings: S3Settings) -> None:
        self._checksum_name = settings.checksum
        options: dict[str, Any] = {
            "ExpectedBucketOwner": settings.bucket_owner,
            "RequestPayer": "requester" if settings.requester_pays else None,
            "ServerSideEncryption": settings.encryption,
            "SSEKMSKeyId": settings.encryption_key_id,
            "BucketKeyEnabled": True if settings.uses_bucket_key else None,
        }
        self._everywhere = {name: value for name, value in options.items() if value is not None}
        self.of_data_object: Mapping[str, str] = (
            {"StorageClass": settings.storage_class} if settings.storage_class else {}
        )
        """Parameters of the write of a data object. Metadata is small, often replaced, and always `STANDARD`,
        where other classes bill a month and 128 KiB."""
        self.of_new_object: Mapping[str, str] = (
            {"ChecksumAlgorithm": "CRC32C"} if self._checksum_name == "crc32c" else {}
        )
        """Parameters of a copy in one request."""
        self.of_new_upload: Mapping[str, str] = (
            {**self.of_new_object, "ChecksumType": "FULL_OBJECT"} if self.of_new_object else {}
        )
        """Parameters of the begin of an upload whose parts have checksums, as the whole object shall have."""

    def register(self, events: Any) -> None:
        """Add the hooks to the events of a client."""
        if self._everywhere:
            events.register("before-parameter-build.s3", self._add_options)
        if self._checksum_name == "md5":
            events.register("before-call.s3.DeleteObjects", _replace_checksum_by_md5)
        events.register("before-call.s3.HeadBucket", _end_redirects)

    def checksum(self, window: Sequence[memoryview]) -> dict[str, str]:
        """The checksum of a body, as a parameter of its request; none if the settings say so."""
        if self._checksum_name == "crc32c":
            return {"ChecksumCRC32C": crc_text(content_crc(window))}
        if self._checksum_name == "md5":
            digest = hashlib.md5(usedforsecurity=False)
            for view in window:
                digest.update(view)
            return {"ContentMD5": base64.b64encode(digest.digest()).decode("ascii")}
        return {}

    def _add_options(self, params: dict[str, Any], model: Any, **_: object) -> None:
        members = model.input_shape.members
        for name, value in self._everywhere.items():
            if name in members:
                params.setdefault(name, value)


def crc_text(crc: int) -> str:
    """A CRC-32C as requests and answers have it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode("ascii")


def whole_crc(answer: Mapping[str, Any]) -> str | None:
    """The CRC-32C of a whole object in an answer about it; None if the server tells none. The checksum of
    checksums that some servers have of an object in parts ends with the number of parts."""
    found = answer.get("ChecksumCRC32C")
    return found if found and "-" not in found else None


def _replace_checksum_by_md5(params: dict[str, Any], **_: object) -> None:
    """A bulk deletion must have a checksum, and older servers know only this one."""
    # botocore adds the newer checksum after this hook, if it is still asked for here.
    params["context"].get("checksum", {}).pop("request_algorithm", None)
    headers = params["headers"]
    headers.pop(_ALGORITHM_HEADER, None)
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    headers["Content-MD5"] = base64.b64encode(digest).decode("ascii")


def _end_redirects(params: dict[str, Any], **_: object) -> None:
    """Called by botocore before it asks for the region of a bucket, because an answer was a redirect.

    A gateway that redirects all requests, to HTTPS for example, redirects this one as well, and botocore
    would ask again until the stack is full.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True
