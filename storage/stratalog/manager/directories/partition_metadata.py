"""`partition.metadata`: which topic a partition's directory belongs to, in Kafka's format and for its tools.

The manifest of the log directory decides, and a start writes this file again where it is missing. The id is
Kafka's text form of a UUID, URL-safe base64 without padding::

    version: 0
    topic_id: wY5xjfy1QX6vvP2GN2VY_w
"""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

PARTITION_METADATA_FILE = "partition.metadata"
_VERSION = 0


def format_topic_id(topic_id: UUID) -> str:
    """The id in Kafka's text form."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def parse_topic_id(text: str) -> UUID:
    """Parse a topic id. Raises ValueError where it is not as Kafka writes it."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as failure:
        raise ValueError(str(failure)) from None
    return UUID(bytes=raw)


def format_partition_metadata(topic_id: UUID) -> str:
    """The text of the file."""
    return f"version: {_VERSION}\ntopic_id: {format_topic_id(topic_id)}"


def parse_partition_metadata(text: str) -> UUID:
    """Parse `partition.metadata` into the topic id. Raises ValueError where it is anything else."""
    lines = [line.partition(":") for line in text.splitlines() if line.strip()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if set(fields) != {"version", "topic_id"} or int(fields["version"]) != _VERSION:
        raise ValueError("not the metadata of a partition in a known version")
    return parse_topic_id(fields["topic_id"])


def read_partition_metadata(filesystem: FileSystem, directory: str) -> UUID | None:
    """The topic that the directory belongs to; None where the file is missing.

    Raises DataDirectoryError where it is damaged, OSError.
    """
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    try:
        return parse_partition_metadata(filesystem.read_file(path).decode())
    except FileNotFoundError:
        return None
    except ValueError as failure:
        raise DataDirectoryError(
            "the file that names the topic of a partition's directory is damaged; restore it",
            path=path,
        ) from failure


def write_partition_metadata(filesystem: FileSystem, directory: str, topic_id: UUID) -> None:
    """Durable when it returns, as far as the directory's own name is. Raises OSError."""
    text = format_partition_metadata(topic_id)
    replace_file(filesystem, f"{directory}/{PARTITION_METADATA_FILE}", text.encode())
