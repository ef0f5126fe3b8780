"""Copies rolled segments of many partitions into object files and commits them.

A pass, for the logs that it is given, in the order of (topic id, partition):

1. Take from the shard's state where each partition's tiered part ends, and from its log what lies behind
   that, is rolled and is fsynced. Nothing is remembered from pass to pass, so nothing can be forgotten.
2. Copy batches, each proved by its checksum, into an object of bounded size; its slices ascend.
3. PUT it under a fresh name. After an unknown outcome the same bytes are sent under the same name again;
   after a few tries the name is given up for ever and the object, if it landed, is an orphan for the
   collector.
4. Commit it. The commit decides slice by slice; only what it took counts as tiered.
5. Tell the logs their new tiered end, so that local retention may drop what is safe. Then the next object.

A crash before 4 leaves an orphan; after 4 everything is committed, and the next pass begins behind it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, StoreUnavailableError
from stratalog.base.filesystem import FileSystem
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.spool import clear_spool_directory
from stratalog.remote.tier.upload_report import FailedUpload, RefusedUpload, UploadReport
from stratalog.remote.tier.upload_run import UploadCandidate, UploadRun


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogManagerSettings:
    """Immutable."""

    writer: ObjectWriterSettings
    """How objects are made. Its spool directory is emptied when the manager is made."""
    max_object_bytes: int = 256 << 20
    """Data in one object; less while the spool's disk is full. Larger means fewer objects and longer until
    the first of them is committed."""
    read_bytes: int = 8 << 20
    """What is read from a segment at a time."""
    put_attempts: int = 3
    """How often an object is sent before its name is given up."""
    put_backoff_ms: int = 500
    """Pause before the second attempt; doubled for each one after it."""


class RemoteLogManager:
    """Thread-safe: `_lock` lets one pass run at a time; logs and metadata have locks of their own."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: ObjectStore,
        clock: Clock,
        metadata: MetadataLog,
        store_id: UUID,
        stop: StopSignal,
        settings: RemoteLogManagerSettings,
        spool_directory: Callable[[], str] | None = None,
    ) -> None:
        """`stop` ends a pass before its next read of a log; `store` may look at it, too. `spool_directory`:
        asked before each object, in place of the settings' own one, for a directory that is empty, or not
        there.
        """
        self._filesystem = filesystem
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._store_id = store_id
        # Objects are a shard's; the catalog has none.
        assert metadata.layout.shard is not None
        self._shard = metadata.layout.shard
        self._stop = stop
        self._settings = settings
        self._lock = threading.Lock()
        self._is_settled = True
        self._spool_directory = spool_directory
        if spool_directory is None:
            # What an earlier process left there belongs to no object that could still be committed.
            clear_spool_directory(filesystem, settings.writer.spool_directory)

    def upload(self, candidates: Sequence[UploadCandidate], *, epoch: int) -> UploadReport:
        """Upload all that is ready, under the epoch that this process has claimed.

        When it returns, what the report counts is committed and the logs know it. A partition that cannot
        be read is reported and does not hold up the others. Raises FencedError where the shard has another
        owner, StoreError (a later pass goes on where this one stopped), OSError where the spool's disk
        refuses, StoppingError where it was stopped: objects that were committed stay.
        """
        with self._lock:
            report = _Report()
            runs = self._runs(candidates, report)
            while runs:
                self._upload_object(runs, epoch, report)
                for run in runs:
                    if run.error is not None:
                        report.failed.append(FailedUpload(run.candidate.log.topic_partition, run.error))
                runs = [run for run in runs if not run.is_finished]
            return report.finish()

    def _runs(self, candidates: Sequence[UploadCandidate], report: _Report) -> list[UploadRun]:
        state = self._metadata.state() if self._is_settled else self._metadata.refresh()
        self._is_settled = True
        runs: list[UploadRun] = []
        for candidate in sorted(candidates, key=lambda candidate: candidate.topic_id_partition):
            partition = state.partition(candidate.topic_id_partition)
            try:
                # A commit whose outcome was unknown may have turned out to have landed.
                candidate.log.update_tiered_end_offset(partition.tiered_end_offset)
                run = UploadRun(candidate, partition.tiered_end_offset, self._stop)
            except LogStoreError as error:
                report.failed.append(FailedUpload(candidate.log.topic_partition, error))
                continue
            if not run.is_finished:
                runs.append(run)
        return runs

    def _upload_object(self, runs: Sequence[UploadRun], epoch: int, report: _Report) -> None:
        """Build, store and commit one object from the first runs that fit."""
        settings = self._settings
        header = ObjectHeader(
            store_id=self._store_id,
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
            for run in runs:
                if writer.data_bytes >= max_object_bytes:
                    break
                run.copy_into(writer, max_object_bytes, settings.read_bytes)
                # The object is full.
                if not run.is_finished:
                    break
            if writer.slice_count > 0:
                self._store_and_commit(writer.finish(), runs, epoch, report)

    def _max_object_bytes(self, spool_directory: str) -> int:
        """Data in the next object. Where there is no room for a spool it is so little that none is needed:
        nothing but uploads frees a disk that is full of what is to be tiered."""
        settings = self._settings
        try:
            free_bytes = self._filesystem.free_bytes(spool_directory)
        except OSError:
            # It is not there, and cannot be made either.
            free_bytes = 0
        # Data and key streams.
        has_room = free_bytes >= 2 * settings.max_object_bytes
        # One read goes beyond it, and what surrounds the data comes on top.
        in_memory_bytes = max(1, settings.writer.memory_bytes // 2)
        return settings.max_object_bytes if has_room else min(settings.max_object_bytes, in_memory_bytes)

    def _store_and_commit(
        self, finished: FinishedObject, runs: Sequence[UploadRun], epoch: int, report: _Report
    ) -> None:
        self._put(finished)
        # Until the outcome is known the tiered ends at hand may be old, and a pass would send the same again.
        self._is_settled = False
        outcome = self._metadata.add([(finished.ref, finished.entries)], epoch)
        self._is_settled = True
        state = self._metadata.state()
        runs_by_partition = {run.candidate.topic_id_partition: run for run in runs}
        refused: dict[TopicIdPartition, str] = {tip: reason for _, tip, reason in outcome.refused}
        if len(refused) < len(finished.entries):
            report.object_names.append(finished.ref.name)
            report.object_bytes += finished.ref.size_bytes
        for entry in finished.entries:
            tip = entry.topic_id_partition
            run = runs_by_partition[tip]
            run.candidate.log.update_tiered_end_offset(state.partition(tip).tiered_end_offset)
            if tip in refused:
                name = TopicPartition(entry.topic, entry.partition)
                report.refused.append(RefusedUpload(name, finished.ref.name, refused[tip]))
                # What follows it cannot begin at the tiered end either: it is left to the next pass.
                run.stop()
            else:
                report.slice_count += 1
                report.data_bytes += entry.data_bytes

    def _put(self, finished: FinishedObject) -> None:
        """Send the object until it is known to be there. Raises StoreError; the name is given up then."""
        for attempt in range(1, self._settings.put_attempts + 1):
            try:
                finished.store(self._store, self._metadata.layout)
            except StoreUnavailableError:
                if attempt == self._settings.put_attempts:
                    raise
                self._clock.sleep(self._settings.put_backoff_ms * 2 ** (attempt - 1) / 1000)
            else:
                return


class _Report:
    """An `UploadReport` in the making. Guarded by the manager's lock."""

    def __init__(self) -> None:
        self.object_names: list[str] = []
        self.slice_count = 0
        self.data_bytes = 0
        self.object_bytes = 0
        self.refused: list[RefusedUpload] = []
        self.failed: list[FailedUpload] = []

    def finish(self) -> UploadReport:
        return UploadReport(
            tuple(self.object_names),
            self.slice_count,
            self.data_bytes,
            self.object_bytes,
            tuple(self.refused),
            tuple(self.failed),
        )
