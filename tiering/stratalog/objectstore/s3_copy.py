"""Copies an object within a server of S3: its bytes do not come through this machine.

One request copies at most 5 GiB. Larger objects are copied in parts; so are those above `COPY_PART_BYTES`,
because the server is silent while it copies, and every silence has a bound. Encryption and storage class are
those of the target, whatever the source has. A copy in one request has the checksum of the target, too. One
in parts has none of ours, because MinIO wants to be sent those of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from stratalog.objectstore.protocol import ObjectPlace

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import CompletedPartTypeDef

COPY_PART_BYTES: Final = 1 << 30
"""The most that one request copies."""


def copy_whole(
    client: S3Client, target: ObjectPlace, source: ObjectPlace, options: Mapping[str, str]
) -> None:
    """Copy an object of at most `COPY_PART_BYTES` in one request. Raises the errors of boto3."""
    client.copy_object(
        Bucket=target.bucket, Key=target.name, **cast("Any", {**_source_of(source), **options})
    )


class PartsCopy:
    """Copies a large object part by part. Not thread-safe: one call uses it. Raises the errors of boto3."""

    def __init__(self, client: S3Client, target: ObjectPlace, source: ObjectPlace) -> None:
        self._client = client
        self._target = target
        self._source = source
        self._upload_id = ""

    def run(
        self, size_bytes: int, part_bytes: int, options: Mapping[str, str], on_part: Callable[[], None]
    ) -> None:
        """Copy `size_bytes` in parts of `part_bytes`; calls `on_part` before each. `options` are those of the
        upload."""
        bucket, name = self._target.bucket, self._target.name
        created = self._client.create_multipart_upload(Bucket=bucket, Key=name, **cast("Any", options))
        self._upload_id = created["UploadId"]
        completed: list[CompletedPartTypeDef] = []
        for number, position in enumerate(range(0, size_bytes, part_bytes), start=1):
            on_part()
            completed.append(self._part(number, position, min(position + part_bytes, size_bytes)))
        self._client.complete_multipart_upload(
            Bucket=bucket, Key=name, UploadId=self._upload_id, MultipartUpload={"Parts": completed}
        )

    def abort(self) -> None:
        """Discard the parts: they would cost money for ever. After the end of the copy it changes nothing."""
        if self._upload_id:
            self._client.abort_multipart_upload(
                Bucket=self._target.bucket, Key=self._target.name, UploadId=self._upload_id
            )

    def _part(self, number: int, position: int, end_position: int) -> CompletedPartTypeDef:
        answer = self._client.upload_part_copy(
            Bucket=self._target.bucket,
            Key=self._target.name,
            UploadId=self._upload_id,
            PartNumber=number,
            CopySourceRange=f"bytes={position}-{end_position - 1}",
            **cast("Any", _source_of(self._source)),
        )["CopyPartResult"]
        # A KeyError is the answer of a server that is none of S3.
        return {"PartNumber": number, "ETag": cast("dict[str, str]", answer)["ETag"]}


def _source_of(source: ObjectPlace) -> dict[str, Any]:
    """The parameters that name the source."""
    owner = {} if source.bucket_owner is None else {"ExpectedSourceBucketOwner": source.bucket_owner}
    return {"CopySource": {"Bucket": source.bucket, "Key": source.name}, **owner}
