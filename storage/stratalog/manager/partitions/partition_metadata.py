"""`partition.metadata`: which topic a partition's directory belongs to, in Kafka's format.

Names of topics are used again, ids are not: a directory whose id is not that of the topic is from an older
one of the same name, and its data must not be served. The id is Kafka's text form of a UUID, URL-safe base64
without padding::

    version: 0
    topic_id: wY5xjfy1QX6vvP2GN2VY_w

The file has no checksum. But ids are random: two that differ in a single character are one id, damaged.
"""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.file_names import LOG_SUFFIX

PARTITION_METADATA_FILE = "partition.metadata"
_VERSION = 0


def format_topic_id(topic_id: UUID) -> str:
    """As Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def parse_topic_id(text: str) -> UUID:
    """Raises ValueError where it is not as Kafka writes it."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as failure:
        raise ValueError(str(failure)) from None
    return UUID(bytes=raw)


def format_partition_metadata(topic_id: UUID) -> str:
    """The text of the file."""
    return f"version: {_VERSION}\ntopic_id: {format_topic_id(topic_id)}"


def parse_partition_metadata(text: str) -> UUID:
    """Raises ValueError where it is anything else."""
    lines = [line.partition(":") for line in text.splitlines() if line.strip()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if set(fields) != {"version", "topic_id"} or int(fields["version"]) != _VERSION:
        raise ValueError("not the metadata of a partition in a known version")
    return parse_topic_id(fields["topic_id"])


def read_partition_metadata(filesystem: FileSystem, directory: str) -> UUID | None:
    """The topic that the directory belongs to; None where the file is missing.

    Raises DataDirectoryError where it is damaged, which no crash does: nobody knows then whose the records
    are. Raises OSError.
    """
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    try:
        return parse_partition_metadata(filesystem.read_file(path).decode())
    except FileNotFoundError:
        return None
    except ValueError as failure:
        raise DataDirectoryError(
            "the file that says whose a partition's directory is has been damaged; restore it, or move the"
            " directory away and make an empty one in its place",
            path=path,
        ) from failure


def is_of_topic(filesystem: FileSystem, directory: str, found_id: UUID | None, topic_id: UUID) -> bool:
    """The directory, in which `read_partition_metadata` has found this, is that of the topic, and not of
    another one of its name; or it has no segment yet, because a crash cut its creation off.

    Raises DataDirectoryError where the file is damaged, or missing beside segments: it was durable before the
    first of them, so somebody has lost it. Raises OSError.
    """
    path, expected = f"{directory}/{PARTITION_METADATA_FILE}", format_topic_id(topic_id)
    if found_id is None:
        if any(name.endswith(LOG_SUFFIX) for name in filesystem.list_directory(directory)):
            raise DataDirectoryError(
                "a partition's directory has segments, and lost the file that says whose they are; restore"
                " it, write it with the expected id if they are this topic's, or move the directory away and"
                " make an empty one in its place",
                path=path,
                expected_topic_id=expected,
            )
        return True
    found = format_topic_id(found_id)
    if sum(one != other for one, other in zip(found, expected, strict=True)) == 1:
        raise DataDirectoryError(
            "the id of a partition's topic differs from the catalog's in a single character, so it has been"
            " damaged; write the expected one there, or move the directory away and make an empty one in its"
            " place",
            path=path,
            topic_id=found,
            expected_topic_id=expected,
        )
    return found == expected


def write_partition_metadata(filesystem: FileSystem, directory: str, topic_id: UUID) -> None:
    """Durable when it returns, as far as the directory's own name is. Raises OSError."""
    text = format_partition_metadata(topic_id)
    replace_file(filesystem, f"{directory}/{PARTITION_METADATA_FILE}", text.encode())
