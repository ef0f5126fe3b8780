"""The manifest of an export: what it has, written last. Without it there is no export.

    _manifest.json                                    this
    topic-NAME/PARTITION-FIRST-END-DIGEST.parquet     records of the offsets [FIRST, END)

The digest is that of the places in the store that the file was made from. So tasks that run twice write the
same bytes under the same name, and a file of another try is never taken for this one's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from stratalog.base.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    StoreCorruptError,
    UnknownTopicOrPartitionError,
)
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.settled_put import settled_put

MANIFEST_KEY = "_manifest.json"
FORMAT = "stratalog-export"
VERSION = 1

_FILE_KEY = re.compile(r"topic-[A-Za-z0-9._-]+/[0-9]+-[0-9]{20}-[0-9]{20}-[0-9a-f]{16}\.parquet")


class ExportedFile(NamedTuple):
    """A file with records of one partition."""

    key: str
    first_offset: int
    end_offset: int
    """Exclusive. The records lie between, with holes."""
    record_count: int
    size_bytes: int
    data_bytes: int
    """The bytes of the log that it was made from."""


class ExportedPartition(NamedTuple):
    """The records of a partition."""

    partition: int
    first_offset: int
    end_offset: int
    """Exclusive. It is the first offset where there is nothing between."""
    files: tuple[ExportedFile, ...]
    """By offset."""

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)


class ExportedTopic(NamedTuple):
    """The records of a topic."""

    name: str
    topic_id: str
    partition_count: int
    """The topic's; the export may have fewer partitions."""
    config: Mapping[str, str]
    """The topic's own keys."""
    partitions: tuple[ExportedPartition, ...]

    @property
    def record_count(self) -> int:
        return sum(one.record_count for one in self.partitions)

    @property
    def files(self) -> Iterator[ExportedFile]:
        return (file for one in self.partitions for file in one.files)


class ExportManifest(NamedTuple):
    """The contents of an export."""

    store_id: str
    isolation: str
    time_ms: int
    """The time of its end, by the clock of the machine that wrote it."""
    topics: tuple[ExportedTopic, ...]

    def topic(self, name: str) -> ExportedTopic:
        """The topic of this name; with an empty one, the only topic. Raises UnknownTopicOrPartitionError,
        InvalidRequestError if there are several."""
        if not name and len(self.topics) == 1:
            return self.topics[0]
        for topic in self.topics:
            if topic.name == name:
                return topic
        names = ", ".join(topic.name for topic in self.topics)
        if not name:
            raise InvalidRequestError("the export has several topics; name the one to import", topics=names)
        raise UnknownTopicOrPartitionError(
            "the export has no such topic; name another one", topic=name, topics=names
        )


def file_key(topic: str, partition: int, first_offset: int, end_offset: int, digest: str) -> str:
    """The key of a file, see this module."""
    return f"topic-{topic}/{partition}-{first_offset:020d}-{end_offset:020d}-{digest}.parquet"


def is_file_key(key: str) -> bool:
    """Whether an export could have written this key."""
    return _FILE_KEY.fullmatch(key) is not None


def has_manifest(target: ObjectStore) -> bool:
    """Whether there is a whole export. Raises StoreError."""
    return any(info.key == MANIFEST_KEY for info in target.list(MANIFEST_KEY))


def write_manifest(target: ObjectStore, manifest: ExportManifest) -> None:
    """Make an export whole. Raises InvalidRequestError if there is a whole one by now, StoreError."""
    document = {"format": FORMAT, "version": VERSION, **_document(manifest)}
    if not settled_put(target, MANIFEST_KEY, json.dumps(document, indent=1).encode()):
        raise whole_export(target)


def whole_export(target: ObjectStore) -> InvalidRequestError:
    """The error for a place that has a whole export."""
    return InvalidRequestError(
        "there is a whole export here; choose another place, or delete that one", url=target.url
    )


def read_manifest(source: ObjectStore) -> ExportManifest:
    """The manifest of an export. Raises InvalidRequestError if there is none, or one that newer software has
    written, StoreCorruptError, StoreError."""
    try:
        found: object = json.loads(source.get(MANIFEST_KEY).data)
    except ObjectNotFoundError as error:
        raise InvalidRequestError(
            "there is no whole export here: the manifest is written last; correct the path, or run the export"
            " to its end",
            url=source.url,
            key=MANIFEST_KEY,
        ) from error
    except ValueError as error:
        raise _damaged(source, str(error)) from error
    document = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if document.get("format") != FORMAT:
        raise _damaged(source, "it is no manifest of an export")
    if document.get("version") != VERSION:
        raise InvalidRequestError(
            "newer software has written this export; use that to import it",
            url=source.url,
            version=document.get("version"),
            known_version=VERSION,
        )
    try:
        return _manifest(document)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(source, repr(error)) from error


def _damaged(source: ObjectStore, reason: str) -> StoreCorruptError:
    return StoreCorruptError(
        "the manifest of the export is damaged; restore it from a copy, or export again",
        url=source.url,
        key=MANIFEST_KEY,
        reason=reason,
    )


def _document(manifest: ExportManifest) -> dict[str, Any]:
    return {
        **manifest._asdict(),
        "topics": [
            {
                **topic._asdict(),
                "partitions": [
                    {**one._asdict(), "files": [file._asdict() for file in one.files]}
                    for one in topic.partitions
                ],
            }
            for topic in manifest.topics
        ],
    }


def _manifest(document: dict[str, Any]) -> ExportManifest:
    topics = tuple(
        ExportedTopic(
            name=topic["name"],
            topic_id=topic["topic_id"],
            partition_count=int(topic["partition_count"]),
            config=dict(topic["config"]),
            partitions=tuple(
                ExportedPartition(
                    partition=int(one["partition"]),
                    first_offset=int(one["first_offset"]),
                    end_offset=int(one["end_offset"]),
                    files=tuple(ExportedFile(**file) for file in one["files"]),
                )
                for one in topic["partitions"]
            ),
        )
        for topic in document["topics"]
    )
    return ExportManifest(document["store_id"], document["isolation"], document["time_ms"], topics)
