"""Edits the manifest of a log directory, as an earlier process might have left it."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    PartitionEntry,
    read_manifest,
)
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import TOPIC_ID


def format_manifest(manifest: Manifest) -> bytes:
    """The contents of the file that has this manifest."""
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    ManifestFile(disk, "/d", manifest).create()
    return disk.read_file(f"/d/{MANIFEST_FILE}")


def edit_manifest(
    disk: FileSystem, directory: str, partition: TopicPartition, topic_id: UUID = TOPIC_ID, **fields: object
) -> None:
    """Give the partition's entry this topic and these fields; makes the entry if there is none."""
    manifest = read_manifest(disk, directory)
    former = manifest.partitions.get(partition, PartitionEntry(topic_id))
    entry = former._replace(topic_id=topic_id, **fields)  # type: ignore[arg-type]  # the fields are those of the entry
    changed = manifest._replace(partitions={**manifest.partitions, partition: entry})
    replace_file(disk, f"{directory}/{MANIFEST_FILE}", format_manifest(changed))
