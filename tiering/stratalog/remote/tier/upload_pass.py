"""One pass of the uploader: what it has begun, what is on its way, and what became of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from stratalog.base.errors import StoreError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.remote.tier.object_builder import BrokenCopyError
from stratalog.remote.tier.object_put import ObjectPut
from stratalog.remote.tier.partition_upload import PartitionUpload, UploadCandidate, upload_error
from stratalog.remote.tier.upload_plan import Share, WaitingPartition
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.remote.tier.uploader_settings import UploaderSettings

PASS_OBJECT_COUNT = 16
"""Objects of a pass that is not urgent, or one share of each partition if that is more: then it ends, so that
the next one sees what has come meanwhile."""


class UploadPass:
    """One pass of the uploader. Guarded by the lock of the uploader."""

    def __init__(
        self,
        epoch: int,
        stop: StopSignal,
        settings: UploaderSettings,
        on_object: Callable[[UploadReport], None],
        more: Callable[[], Sequence[UploadCandidate]],
        *,
        is_urgent: bool,
    ) -> None:
        self.epoch = epoch
        self.stop = stop
        self.settings = settings
        self.on_object = on_object
        self.more = more
        self.is_urgent = is_urgent
        self.report = UploadReport()
        self.candidates: dict[TopicIdPartition, UploadCandidate] = {}
        self.left_out: dict[TopicIdPartition, UploadCandidate] = {}
        """Those that an uploader with precedence did not get."""
        self.uploads: dict[TopicIdPartition, PartitionUpload] = {}
        """The partitions with something left to copy."""
        self.tails: dict[TopicIdPartition, PartitionUpload] = {}
        """All partitions with tails."""
        self.pressed: Collection[str] = ()
        """Log directories that are short of free space."""
        self.puts: deque[ObjectPut] = deque()
        """Objects on their way, in the order of their commits."""
        self.built_count = 0
        self.lost: set[TopicIdPartition] = set()
        """Partitions of objects that failed: the slices behind do not begin at the tiered end."""
        self.refused: set[TopicIdPartition] = set()
        """Partitions of which the metadata refused a slice."""
        self.failure: StoreError | None = None
        """The first failure of an object."""

    @property
    def is_bounded(self) -> bool:
        """The pass has done its part: a number of objects, and a share of each partition."""
        return self.built_count >= PASS_OBJECT_COUNT and all(
            upload.share_count for upload in self.uploads.values()
        )

    def may_extend(self, upload: PartitionUpload) -> bool:
        """Whether more of a tail can go behind the slices that the pass has made. It cannot where one of them
        was refused, or where a deletion of records has overtaken them: the next pass uploads it."""
        is_in_order = upload.error is None and upload.candidate.topic_id_partition not in self.refused
        return is_in_order and upload.candidate.log.offsets.log_start_offset <= upload.next_offset

    def begin_of(self, share: Share) -> int:
        """The offset at which the slice of this share begins."""
        return self.uploads[share.topic_id_partition].next_offset

    def begin_again(self, begins: Mapping[TopicIdPartition, int], broken: BrokenCopyError) -> None:
        """Let the partitions of an object that was given up while it was built begin again where their slices
        began, without the one that has broken it."""
        for tip, offset in begins.items():
            upload = self.uploads[tip]
            error: Exception | None = broken.cause if tip == broken.topic_id_partition else None
            if error is None:
                try:
                    upload = upload.again(offset)
                except Exception as failure:  # noqa: BLE001 - it is the partition's alone
                    error = failure
            if error is not None:
                upload.error = upload_error(upload.candidate, error)
            self.uploads[tip] = upload
            if tip in self.tails:
                self.tails[tip] = upload

    def waiting(self) -> list[WaitingPartition]:
        return [
            WaitingPartition(
                topic_id_partition=tip,
                size_bytes=upload.waiting_bytes,
                since_ms=upload.since_ms,
                max_age_ms=upload.candidate.log.local_log.config.copy_age_ms,
                share_count=upload.share_count,
                is_pressed=log_directory(upload) in self.pressed,
                needs_object=upload.needs_object,
            )
            for tip, upload in self.uploads.items()
        ]

    def give_up(self) -> None:
        """Give up the objects that are on their way."""
        while self.puts:
            self.puts.popleft().close()


def log_directory(upload: PartitionUpload) -> str:
    """The log directory of the partition."""
    return upload.candidate.log.local_log.log_dir
