"""Remarks about a bucket that keeps deleted objects, for the operator; and the versions of an object.

With versioning, a deletion only adds a marker: the bytes stay, and are billed, until a lifecycle rule removes
noncurrent versions. Object Lock refuses to delete a version before its time. Both are properties of the
bucket that no request of a store shows, so the server's log and the status of the tier name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import ObjectIdentifierTypeDef

VERSIONS_ARE_KEPT = (
    "the bucket keeps old versions: deleted and replaced objects stay and are billed; let a lifecycle rule"
    " remove noncurrent versions, or add versions=delete to the store's url, so that erased data is gone"
)
VERSIONS_ARE_DELETED = (
    "the bucket keeps old versions: the collector deletes all versions of an object, and replaced heads stay"
    " until a lifecycle rule removes noncurrent versions"
)
VERSIONING_IS_SUSPENDED = (
    "versioning of the bucket is suspended: versions from before stay and are billed until a lifecycle rule"
    " removes noncurrent versions"
)
OBJECTS_ARE_LOCKED = (
    "the bucket has Object Lock: versions are not deleted before their retention ends; the collector tries"
    " again each day"
)


def bucket_remarks(versioning: str, *, has_object_lock: bool, deletes_versions: bool) -> Sequence[str]:
    """A sentence for each property of the bucket that keeps deleted data. `versioning` is `Enabled`,
    `Suspended` or, where it was never on, empty."""
    remarks: list[str] = []
    if versioning == "Suspended":
        remarks.append(VERSIONING_IS_SUSPENDED)
    elif versioning:
        remarks.append(VERSIONS_ARE_DELETED if deletes_versions else VERSIONS_ARE_KEPT)
    if has_object_lock:
        remarks.append(OBJECTS_ARE_LOCKED)
    return remarks


def versions_of(client: S3Client, bucket: str, name: str) -> Iterator[ObjectIdentifierTypeDef]:
    """List the versions and delete markers of the object with exactly this name in the bucket, in the form
    that a bulk deletion takes. Raises what the client raises."""
    markers: dict[str, Any] | None = {}
    while markers is not None:
        answer = client.list_object_versions(Bucket=bucket, Prefix=name, **markers)
        listed: list[Any] = [*answer.get("Versions", []), *answer.get("DeleteMarkers", [])]
        for one in listed:
            if one.get("Key") == name:
                yield {"Key": name, "VersionId": one["VersionId"]}
        # Names in byte order: behind a longer one, no more of this one follow.
        goes_on = answer.get("IsTruncated") and answer.get("NextKeyMarker") == name
        markers = {"KeyMarker": name, "VersionIdMarker": answer["NextVersionIdMarker"]} if goes_on else None
