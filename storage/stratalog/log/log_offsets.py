"""The offsets of a log, and the operations that move them. They only grow, except when a log begins anew::

    log_start_offset        first readable offset in any tier      deletion of records, retention
    local_log_start_offset  first offset on this disk              local retention
    tiered_end_offset       end of the data in the object store    the uploader, after a commit
    uploading_end_offset    end of what may be committed next      the uploader, before it reads; 0 afterwards
    recovery_point          everything below is fsynced            flush
    high_watermark          end of the visible records             append (os), flush (disk), upload (object)
    last_stable_offset      end for readers of committed records   high watermark, end of a transaction
    log_end_offset          the next offset that an append gets    append

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset
    log_start_offset <= local_log_start_offset <= log_end_offset
    first local segment's base offset <= recovery_point <= log_end_offset
    tiered_end_offset <= log_end_offset

Three of them are stored here, the segments hold the ends of the local log, and the others follow. The high
watermark depends on the topic's `min.durability`. Before that key gets a stronger level, `reconfigure` makes
everything durable, so that the high watermark does not go back. To `object` it cannot do so at once: the
records that were visible by then stay visible, until a restart, while they are on their way to the store.
"""

from __future__ import annotations

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.base.types import Durability
from stratalog.log.config_key import LONG_MAX
from stratalog.log.isolation import Isolation
from stratalog.log.local_log import LocalLog
from stratalog.log.log_state import LogState
from stratalog.segment.batch_read import EpochSpan


class LogOffsets:
    """Changes are guarded by UnifiedLog.lock; questions are thread-safe beside them."""

    def __init__(
        self,
        local_log: LocalLog,
        state: LogState,
        *,
        log_start_offset: int,
        recovery_point: int,
    ) -> None:
        self.log_start_offset = log_start_offset
        """First readable offset in any tier."""
        self.tiered_end_offset = 0
        """Exclusive end of the data in the object store, as of the last `update_tiered_end_offset`."""
        self.tiered_limit_offset = LONG_MAX
        """The tiered end counts up to here only, while the tier is being dropped."""
        self.uploading_end_offset = 0
        """Exclusive end of the records that an upload may commit, as far as is known; 0 if none may."""
        self.is_uploading = False
        """An upload needs the segments below `uploading_end_offset`. Without it, only its commit may come."""
        self.recovery_point = recovery_point
        """Everything below is fsynced."""
        self.shown_end_offset = 0
        """Exclusive end of the records that were visible before the topic's durability grew to `object`."""
        self._local = local_log
        self._state = state

    @property
    def min_durability(self) -> Durability:
        """The durability that a record needs before consumers may see it."""
        return self._local.config.min_durability

    @property
    def local_log_start_offset(self) -> int:
        """First offset that this disk serves."""
        return max(self.log_start_offset, self._local.segments.start_offset)

    @property
    def earliest_pending_upload_offset(self) -> int:
        """First offset that is not committed in the object store yet."""
        return max(self.log_start_offset, self.tiered_end_offset)

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given."""
        return self._local.segments[-1].end_offset

    @property
    def high_watermark(self) -> int:
        """Exclusive end of the records that have reached the topic's `min.durability`."""
        min_durability = self._local.config.min_durability
        if min_durability is Durability.OS:
            return self._local.segments[-1].end_offset
        if min_durability is Durability.DISK:
            return self.recovery_point
        return max(self.tiered_end_offset, self.shown_end_offset, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end for readers of committed records: every transaction that begins below it has
        ended."""
        return self.visible_ends()[1]

    def visible_ends(self) -> tuple[int, int]:
        """The high watermark and the last stable offset."""
        high_watermark = self.high_watermark
        return high_watermark, min(high_watermark, max(self._state.stable_limit, self.log_start_offset))

    def end_offset(self, isolation: Isolation) -> int:
        """The end of a read with that isolation."""
        if isolation is Isolation.LOG_END:
            return self.log_end_offset
        return self.high_watermark if isolation is Isolation.HIGH_WATERMARK else self.last_stable_offset

    def epoch_at(self, offset: int) -> EpochSpan:
        """The leader epoch that the batch at `offset` must have, and the end of that epoch."""
        return self._state.epochs.span_at(offset)

    def lower_to(self, end_offset: int) -> None:
        """Lower the promises to a log that ends at `end_offset` or below. The caller moves the log start
        after the cut."""
        self.tiered_end_offset = min(self.tiered_end_offset, end_offset)
        self.shown_end_offset = min(self.shown_end_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)

    def out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        """The error of a request for that offset."""
        return OffsetOutOfRangeError(
            "the offset is outside of what this log holds; go on from an offset inside",
            offset=offset,
            log_start_offset=self.log_start_offset,
            local_log_start_offset=self.local_log_start_offset,
            log_end_offset=self.log_end_offset,
        )

    def check(self) -> None:
        """Assert the relations of the offsets. The caller holds the lock."""
        assert 0 <= self.log_start_offset <= self.local_log_start_offset <= self.log_end_offset
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark <= self.log_end_offset
        assert self._state.stable_limit <= self.log_end_offset
        assert self.tiered_end_offset <= self.log_end_offset
        assert self.shown_end_offset <= self.log_end_offset
        assert self._local.segments.start_offset <= self.recovery_point <= self.log_end_offset
