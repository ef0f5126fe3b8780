"""Builds the objects of uploads: copies the planned shares of partitions into one object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.remote.objects.spool import clear_spool_directory
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.remote.tier.partition_upload import PartitionUpload
from stratalog.remote.tier.upload_plan import Share


class BrokenCopyError(Exception):
    """A defect, or a disk that hangs, has ended the copy of one partition in the middle of its slice. Fields:
    the partition, the cause."""

    def __init__(self, topic_id_partition: TopicIdPartition, cause: Exception) -> None:
        super().__init__(str(cause))
        self.topic_id_partition = topic_id_partition
        self.cause = cause


class ObjectRoom:
    """The room of one object while it is built. Not thread-safe: belongs to its uploader; a context manager
    that gives back what the object has not taken."""

    def __init__(self, object_bytes: int, memory: SpoolMemory, end: Callable[[], None]) -> None:
        """`end` gives the room back."""
        self.object_bytes = object_bytes
        """Data in the object, at most."""
        self.memory = memory
        """For its spools."""
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Give the room back."""
        self._end()


class ObjectBuilder:
    """Builds the objects of one shard. Guarded by the lock of its `Uploader`."""

    def __init__(
        self,
        filesystem: FileSystem,
        metadata: MetadataLog,
        settings: ObjectWriterSettings,
        spool_directory: Callable[[int], str] | None = None,
        memory: SpoolMemory | None = None,
        disk: ScratchDisk | None = None,
    ) -> None:
        """`spool_directory` returns an empty or missing directory for the object of that place, to use in
        place of the settings' directory. Objects that exist at the same time have different places.

        Without it, the directory of the settings is emptied now.

        `memory` and `disk` are those of the objects of several builders.
        """
        self._filesystem = filesystem
        self._metadata = metadata
        # Objects are a shard's; the catalog has none.
        assert metadata.layout.shard is not None
        self._shard = metadata.layout.shard
        self._settings = settings
        self._spool_directory = spool_directory
        self._memory = memory or SpoolMemory(2 * settings.memory_bytes)
        self._disk = disk or ScratchDisk(filesystem)
        if spool_directory is None:
            # Files of an earlier process belong to no object that could still be committed.
            clear_spool_directory(filesystem, settings.spool_directory)

    def spool(self, place: int) -> ObjectWriterSettings:
        """The settings for an object at that place."""
        if self._spool_directory is None:
            return self._settings
        return dataclasses.replace(self._settings, spool_directory=self._spool_directory(place))

    def room(self, spool: ObjectWriterSettings, object_bytes: int) -> ObjectRoom | None:
        """Room for the next object, where `object_bytes` are wanted; None if other objects have all of it.

        On a full disk the object is small enough to need no spool file: only uploads can free a disk that is
        full of untiered segments. Then objects of a shard are to be sent one by one, because those of all
        shards have the memory together.
        """
        # One spool for data and one for key streams.
        disk_bytes = 2 * object_bytes
        if self._disk.promise(spool.spool_directory, disk_bytes):
            return ObjectRoom(object_bytes, self._memory, lambda: self._disk.end(disk_bytes))
        reserve = self._memory.reserve(spool.memory_bytes)
        if reserve is None:
            return None
        # The last read may exceed the limit, and the other parts of the object come on top.
        return ObjectRoom(max(1, min(object_bytes, reserve.limit_bytes // 2)), reserve, reserve.end)

    def free_bytes(self, directory: str) -> int:
        """Free space on the disk of the directory; 0 if the disk cannot be read."""
        try:
            return self._filesystem.free_bytes(directory)
        except OSError:
            return 0

    def build(
        self,
        shares: Sequence[Share],
        uploads: Mapping[TopicIdPartition, PartitionUpload],
        spool: ObjectWriterSettings,
        *,
        epoch: int,
        room: ObjectRoom,
        read_bytes: int,
    ) -> ObjectWriter | None:
        """Copy the shares into a new object, whose slices have all ended; None if nothing could be copied.

        The caller closes the writer. Raises StoppingError, OSError if the spool's disk fails, BrokenCopyError
        if one partition fails in the middle of its slice; those before it in the object have been copied for
        nothing then.
        """
        header = ObjectHeader(
            store_id=self._metadata.store_id,
            shard=self._shard,
            epoch=epoch,
            kind=ObjectKind.UPLOAD,
            name=self._metadata.next_object_name(),
        )
        writer = ObjectWriter(self._filesystem, header, spool, memory=room.memory)
        is_built = False
        # Shares end between batches: the next one takes what the one before has left.
        left_bytes = 0
        try:
            for share in sorted(shares, key=lambda share: share.topic_id_partition):
                upload = uploads[share.topic_id_partition]
                share_bytes, before_bytes = share.size_bytes + left_bytes, writer.data_bytes
                try:
                    upload.copy_into(writer, share_bytes, room.object_bytes, read_bytes)
                except DataDirectoryError as error:
                    raise BrokenCopyError(share.topic_id_partition, error) from error
                except (LogStoreError, OSError):
                    raise
                except Exception as error:
                    raise BrokenCopyError(share.topic_id_partition, error) from error
                copied_bytes = writer.data_bytes - before_bytes
                left_bytes = max(0, share_bytes - copied_bytes)
                upload.note_share(share, copied_bytes, room.object_bytes)
            is_built = writer.slice_count > 0
        finally:
            if not is_built:
                writer.close()
        return writer if is_built else None
