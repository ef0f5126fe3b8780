"""The uploader: copies rolled segments of many partitions into object files and commits them.

One pass takes the logs in the order of (topic id, partition):

1. Read the end of each partition's tiered part from the shard's state, and from the log the segments behind
   it that are rolled and fsynced. A pass remembers nothing for the next one, so nothing can be forgotten.
2. Prove the headers of each segment by its seal. Copy batches, each proved by its checksum, into an object of
   bounded size. Its slices ascend.
3. PUT it under a fresh name. After an unknown outcome, send the same bytes under the same name again. After a
   few attempts the name is given up for ever; the object, if it landed, is an orphan.
4. Commit it. The commit judges each slice; only accepted slices count as tiered.
5. Tell the logs their new tiered end, so that local retention may delete segments. Then make the next object.

A crash before 4 leaves an orphan. After 4 everything is committed, and the next pass begins behind it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, StoreUnavailableError
from stratalog.base.filesystem import FileSystem
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.spool import clear_spool_directory
from stratalog.remote.tier.local_beginnings import commit_local_beginnings
from stratalog.remote.tier.partition_upload import PartitionUpload, UploadCandidate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UploaderSettings:
    """Settings of the uploader. Immutable."""

    writer: ObjectWriterSettings
    """How objects are made. The uploader empties its spool directory at its start."""
    max_object_bytes: int = 256 << 20
    """Data in one object; less while the spool's disk is full. Larger means fewer objects and a longer time
    until the first commit."""
    read_bytes: int = 8 << 20
    """Size of one read from a segment."""
    put_attempts: int = 3
    """How often an object is sent before its name is given up."""
    put_backoff_ms: int = 500
    """Pause before the second attempt; doubled for each one after it."""


class RefusedUpload(NamedTuple):
    """A slice that was stored but not made live. No reader sees its bytes."""

    topic_partition: TopicPartition
    object_name: str
    reason: str


class FailedUpload(NamedTuple):
    """A partition that stopped at a damaged or unreadable batch, or before a segment that contradicts its
    seal. What lies before was uploaded, and the next pass tries again.
    """

    topic_partition: TopicPartition
    error: LogStoreError


@dataclasses.dataclass(slots=True)
class UploadReport:
    """The result of one pass. Counts are of committed slices and objects. Not thread-safe while a pass runs:
    guarded by the uploader's lock.
    """

    object_names: list[str] = dataclasses.field(default_factory=list[str])
    slice_count: int = 0
    data_bytes: int = 0
    """Record batches in live slices."""
    object_bytes: int = 0
    """Whole objects, refused slices included."""
    refused: list[RefusedUpload] = dataclasses.field(default_factory=list[RefusedUpload])
    failed: list[FailedUpload] = dataclasses.field(default_factory=list[FailedUpload])

    @property
    def object_count(self) -> int:
        return len(self.object_names)


class Uploader:
    """Uploads the sealed segments of a shard's partitions. Thread-safe: `_lock` admits one pass at a time;
    logs and metadata have locks of their own."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: ObjectStore,
        clock: Clock,
        metadata: MetadataLog,
        stop: StopSignal,
        settings: UploaderSettings,
        spool_directory: Callable[[], str] | None = None,
    ) -> None:
        """`stop` ends a pass before its next read of a log; `store` may look at it, too.

        `spool_directory` returns, for each object, an empty or missing directory to use in place of the
        settings' directory.
        """
        self._filesystem = filesystem
        self._store = store
        self._clock = clock
        self._metadata = metadata
        # Objects are a shard's; the catalog has none.
        assert metadata.layout.shard is not None
        self._shard = metadata.layout.shard
        self._stop = stop
        self._settings = settings
        self._lock = threading.Lock()
        self._is_settled = True
        self._spool_directory = spool_directory
        if spool_directory is None:
            # Files of an earlier process belong to no object that could still be committed.
            clear_spool_directory(filesystem, settings.writer.spool_directory)

    def upload(
        self,
        candidates: Sequence[UploadCandidate],
        *,
        epoch: int,
        stop: StopSignal | None = None,
        on_object: Callable[[UploadReport], None] = lambda _: None,
    ) -> UploadReport:
        """Upload everything that is ready, under the epoch that this process has claimed. Calls `on_object`
        after each object, with the report up to then.

        When it returns, everything that the report counts is committed and the logs know it. A partition
        that cannot be read is reported and does not hold up the others. Raises NotOwnerError if the shard
        has another owner, StoreError (a later pass goes on where this one stopped), OSError if the
        spool's disk fails, StoppingError once the stop signal is set: `stop`, or else that of the
        constructor. Committed objects stay.
        """
        with self._lock:
            report = UploadReport()
            store = self._store if stop is None else StoppableObjectStore(self._store, stop)
            uploads = self._begin(candidates, epoch, report, stop or self._stop)
            while uploads:
                self._upload_object(store, uploads, epoch, report)
                on_object(report)
                for upload in uploads:
                    if upload.error is not None:
                        report.failed.append(FailedUpload(upload.candidate.log.topic_partition, upload.error))
                uploads = [upload for upload in uploads if not upload.is_finished]
            return report

    def _begin(
        self, candidates: Sequence[UploadCandidate], epoch: int, report: UploadReport, stop: StopSignal
    ) -> list[PartitionUpload]:
        if not self._is_settled:
            self._metadata.refresh()
        self._is_settled = True
        commit_local_beginnings(self._metadata, [candidate.log for candidate in candidates], epoch)
        state = self._metadata.state()
        uploads: list[PartitionUpload] = []
        for candidate in sorted(candidates, key=lambda candidate: candidate.topic_id_partition):
            partition = state.partition(candidate.topic_id_partition)
            try:
                # A commit of unknown outcome may have landed after all.
                candidate.log.update_tiered_end_offset(partition.tiered_end_offset)
                upload = PartitionUpload(candidate, partition.tiered_end_offset, stop)
            except LogStoreError as error:
                report.failed.append(FailedUpload(candidate.log.topic_partition, error))
                continue
            if not upload.is_finished:
                uploads.append(upload)
        return uploads

    def _upload_object(
        self, store: ObjectStore, uploads: Sequence[PartitionUpload], epoch: int, report: UploadReport
    ) -> None:
        settings = self._settings
        header = ObjectHeader(
            store_id=self._metadata.store_id,
            shard=self._shard,
            epoch=epoch,
            kind=ObjectKind.UPLOAD,
            name=self._metadata.next_object_name(),
        )
        writer_settings = settings.writer
        if self._spool_directory is not None:
            writer_settings = dataclasses.replace(writer_settings, spool_directory=self._spool_directory())
        max_object_bytes = self._max_object_bytes(writer_settings.spool_directory)
        with ObjectWriter(self._filesystem, header, writer_settings) as writer:
            for upload in uploads:
                if writer.data_bytes >= max_object_bytes:
                    break
                upload.copy_into(writer, max_object_bytes, settings.read_bytes)
                # The object is full.
                if not upload.is_finished:
                    break
            if writer.slice_count > 0:
                finished = writer.finish()
                self._put(store, finished)
                self._commit(finished, uploads, epoch, report)

    def _max_object_bytes(self, spool_directory: str) -> int:
        """Data in the next object. On a full disk it is little enough to need no spool file: only uploads can
        free a disk that is full of untiered segments.
        """
        settings = self._settings
        try:
            free_bytes = self._filesystem.free_bytes(spool_directory)
        except OSError:
            # The directory is missing, and its disk cannot be read.
            free_bytes = 0
        # One spool for data and one for key streams.
        has_room = free_bytes >= 2 * settings.max_object_bytes
        # The last read may exceed the limit, and the other parts of the object come on top.
        in_memory_bytes = max(1, settings.writer.memory_bytes // 2)
        return settings.max_object_bytes if has_room else min(settings.max_object_bytes, in_memory_bytes)

    def _commit(
        self, finished: FinishedObject, uploads: Sequence[PartitionUpload], epoch: int, report: UploadReport
    ) -> None:
        # Until the outcome is known the tiered ends may be old, and a pass would send the same records again.
        self._is_settled = False
        outcome = self._metadata.add([(finished.ref, finished.entries)], epoch)
        self._is_settled = True
        state = self._metadata.state()
        by_partition = {upload.candidate.topic_id_partition: upload for upload in uploads}
        refused: dict[TopicIdPartition, str] = {tip: reason for _, tip, reason in outcome.refused}
        if len(refused) < len(finished.entries):
            report.object_names.append(finished.ref.name)
            report.object_bytes += finished.ref.size_bytes
        for entry in finished.entries:
            tip = entry.topic_id_partition
            upload = by_partition[tip]
            upload.candidate.log.update_tiered_end_offset(state.partition(tip).tiered_end_offset)
            if tip in refused:
                name = TopicPartition(entry.topic, entry.partition)
                report.refused.append(RefusedUpload(name, finished.ref.name, refused[tip]))
                # The next slice would not begin at the tiered end either: the next pass uploads it.
                upload.stop()
            else:
                report.slice_count += 1
                report.data_bytes += entry.data_bytes

    def _put(self, store: ObjectStore, finished: FinishedObject) -> None:
        """Send the object until it is known to be stored. Raises StoreError; its name is given up then."""
        for attempt in range(1, self._settings.put_attempts + 1):
            try:
                finished.store(store, self._metadata.layout)
            except StoreUnavailableError:
                if attempt == self._settings.put_attempts:
                    raise
                self._clock.sleep(self._settings.put_backoff_ms * 2 ** (attempt - 1) / 1000)
            else:
                return
