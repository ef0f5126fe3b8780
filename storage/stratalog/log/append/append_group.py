"""Appends a group of requests with few writes.

The group collects requests until the active segment has to be rolled or no request is left, and then writes
them at once. They succeed or fail together, because a failed write is cut off the file again: no request is
stored by half, and no refused request is stored at all.

A request that names its offset is applied only there: behind the requests before it in the group, whether
they are written or wait. A refusal because of offsets or of a producer's state counts on the waiting
requests, so it becomes the failure of their write if that fails.

The requests of a chain are stored in their order, and none behind one of them that failed: neither behind a
refused one, nor behind one whose write failed, although a later write of the group may succeed.

Each request is checked against the producer state that the requests before it leave behind; this becomes the
state of the log with the write. A request that was stored before is answered with its old offsets. If the
first copy still waits for its write, both get the same outcome.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    PrecedingAppendFailedError,
    UnexpectedOffsetError,
)
from stratalog.base.filesystem import Buffer
from stratalog.log.append.roll_rule import RollRule
from stratalog.log.append.validated_append import ValidatedAppend
from stratalog.log.append_info import AppendInfo
from stratalog.log.disk_error import disk_error
from stratalog.log.local_log import LocalLog
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_state import LogState
from stratalog.log.producers.producer_append import AppendOrigin, ProducerAppend
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.header import BatchHeader, TimestampType
from stratalog.record.native.batch_row import AppendedBatch


class AppendGroup:
    """One group of requests. Guarded by UnifiedLog.lock, from its making to `finish`."""

    def __init__(
        self,
        local_log: LocalLog,
        state: LogState,
        offsets: LogOffsets,
        roll_rule: RollRule,
        now_ms: int,
        leader_epoch: int | None,
        refusal: LogStoreError | None,
    ) -> None:
        """`leader_epoch`: stamped into the batches together with new offsets; None keeps both as they are.
        `refusal`: the error of all requests, if the log takes no changes."""
        self.fatal: DataDirectoryError | None = None
        self._local = local_log
        self._state = state
        self._producers = ProducerAppend(state.producers)
        self._roll_rule = roll_rule
        self._config = local_log.config
        self._log_start_offset = offsets.log_start_offset
        self._now_ms = now_ms
        self._leader_epoch = leader_epoch
        self._is_append_time = (
            leader_epoch is not None and self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        )
        self._refusal = refusal
        self._outcomes: list[AppendInfo | LogStoreError] = []
        # The chain of each request, and those in which one has failed.
        self._chains: list[Hashable | None] = []
        self._broken: set[Hashable | None] = set()
        # Places of the outcomes that hold once the next write succeeds.
        self._pending: list[int] = []
        self._parts: list[Buffer] = []
        self._batches: list[AppendedBatch] = []
        self._pending_bytes = 0

    def add(self, request: ValidatedAppend | LogStoreError, chain: Hashable | None = None) -> None:
        """Add the next request, or the error that it already has. `chain`: see `LogAppender.append_group`."""
        self._chains.append(chain)
        try:
            self._add(request, chain)
        except LogStoreError as failure:
            self._fail(len(self._outcomes), failure)

    def _add(self, request: ValidatedAppend | LogStoreError, chain: Hashable | None) -> None:
        """Add the next request. Raises its error if it fails by itself."""
        if chain in self._broken:
            raise _behind_a_failure()
        if isinstance(request, LogStoreError):
            raise request
        if request.producer_batches and self._refusal is None and self._is_duplicate(request):
            return
        last_offset = self._place_of(request)
        if self._refusal is not None:
            raise self._refusal
        if chain in self._broken:
            # The write that made room has failed.
            raise _behind_a_failure()
        try:
            self._take(request, last_offset)
        except LogStoreError:
            if self._batches:
                self._pending.append(len(self._outcomes))
            raise

    def _fail(self, place: int, failure: LogStoreError) -> None:
        """Set the outcome of the request at that place, which is the next one at most, and break its
        chain."""
        self._outcomes[place : place + 1] = [failure]
        chain = self._chains[place]
        if chain is not None:
            self._broken.add(chain)

    def finish(self) -> list[AppendInfo | LogStoreError]:
        """Write the waiting requests; return one outcome for each request, in order."""
        self._write()
        return self._outcomes

    def _is_duplicate(self, request: ValidatedAppend) -> bool:
        """Whether a client sent the request before; adds its outcome then."""
        if request.origin is not AppendOrigin.CLIENT:
            return False
        duplicate = self._producers.duplicate_of(request.producer_batches)
        if duplicate is None:
            return False
        if duplicate.last_offset >= self._local.segments.end_offset:
            self._pending.append(len(self._outcomes))
        self._outcomes.append(duplicate._replace(log_start_offset=self._log_start_offset))
        return True

    def _place_of(self, request: ValidatedAppend) -> int:
        """The last offset of the request, after `_make_room`; -1 once the log takes no changes. Raises
        DataDirectoryError for this request alone."""
        if self._refusal is not None:
            return -1
        try:
            return self._make_room(request)
        except OSError as failure:
            raise self._disk_error(failure) from failure
        except DataDirectoryError as failure:
            self.fatal = self._refusal = failure
            return -1

    def _make_room(self, request: ValidatedAppend) -> int:
        """Write and roll if the active segment has no room for the request behind the waiting ones.

        Returns the last offset of the request.
        """
        last_offset = self._last_offset(request)
        if not self._must_roll(request, last_offset):
            return last_offset
        self._write()
        last_offset = self._last_offset(request)
        if self._refusal is None and self._must_roll(request, last_offset):
            self._state.producers.take_snapshot(durable=False)
            self._local.roll(self._now_ms)
        return last_offset

    def _must_roll(self, request: ValidatedAppend, last_offset: int) -> bool:
        return self._roll_rule.must_roll(
            self._local.segments[-1],
            self._config,
            size_bytes=self._pending_bytes + request.size_bytes,
            last_offset=last_offset,
            max_timestamp_ms=self._now_ms if self._is_append_time else request.max_timestamp_ms,
            now_ms=self._now_ms,
        )

    def _last_offset(self, request: ValidatedAppend) -> int:
        if self._leader_epoch is None:
            return request.located[-1][1].last_offset
        segments = self._local.segments
        next_offset = self._batches[-1].last_offset + 1 if self._batches else segments[-1].end_offset
        return next_offset + request.offset_count - 1

    def _take(self, request: ValidatedAppend, last_offset: int) -> None:
        """Let the request wait for the next write. Raises UnexpectedOffsetError, and what
        `ProducerAppend.stage` raises."""
        if self._leader_epoch is None:
            headers = [header for _, header in request.located]
            base_offset = headers[0].base_offset
            self._follow(request.producer_batches, request.origin, base_offset, headers)
            parts, batches = request.verbatim()
        else:
            base_offset = last_offset - request.offset_count + 1
            if request.expected_offset not in (None, base_offset):
                raise UnexpectedOffsetError(
                    "the log does not end at the expected offset; read what others appended, then decide",
                    expected_offset=request.expected_offset,
                    log_end_offset=base_offset,
                )
            append_time_ms = self._now_ms if self._is_append_time else None
            producer_batches = request.producer_batches
            placed = _placed(producer_batches, base_offset, append_time_ms) if producer_batches else ()
            self._follow(placed, request.origin, base_offset)
            parts, batches = request.stamp(base_offset, self._leader_epoch, append_time_ms)
        assert batches[-1].last_offset == last_offset
        self._pending.append(len(self._outcomes))
        self._outcomes.append(
            AppendInfo(base_offset, last_offset, request.size_bytes, log_start_offset=self._log_start_offset)
        )
        self._parts += parts
        self._batches += batches
        self._pending_bytes += request.size_bytes

    def _follow(
        self,
        batches: Sequence[ProducerBatch],
        origin: AppendOrigin,
        base_offset: int,
        replicated: Sequence[BatchHeader] = (),
    ) -> None:
        """Check and stage what the state gets of a request. Raises the errors of what may not be, and nothing
        has changed then."""
        try:
            for header in replicated:
                self._state.follow_epoch(header.leader_epoch, header.base_offset)
            if self._leader_epoch is not None:
                self._state.follow_epoch(self._leader_epoch, base_offset)
            if batches:
                self._producers.stage(batches, origin)
        except LogStoreError:
            self._state.epochs.truncate_from_end(base_offset)
            raise

    def _write(self) -> None:
        """Write the waiting requests. If the write fails, all of them get the error."""
        if not self._pending:
            return
        failure: LogStoreError | None = None
        try:
            # First the epoch, then its batch: the file must know the epoch of every batch.
            self._state.epochs.flush()
            active = self._local.segments.active
            is_first = active.size_bytes == 0
            self._local.append(self._parts, self._batches)
            if is_first:
                active.first_append_ms = self._now_ms
        except OSError as error:
            failure = self._disk_error(error)
        except DataDirectoryError as error:
            # The bytes on the disk are unknown now: nothing else may be written.
            failure = self.fatal = self._refusal = error
        self._settle(is_written=failure is None)
        if failure is not None:
            for place in self._pending:
                self._fail(place, failure)
        self._pending, self._parts, self._batches, self._pending_bytes = [], [], [], 0

    def _disk_error(self, failure: OSError) -> DataDirectoryError:
        error = disk_error(failure, self._local.directory)
        return DataDirectoryError(f"nothing of this append was stored: {error.message}", **error.fields)

    def _settle(self, *, is_written: bool) -> None:
        """Let the state follow the written batches, or discard the staged ones."""
        end_offset = self._local.segments.end_offset
        if not is_written:
            self._producers.discard()
            self._state.epochs.truncate_from_end(end_offset)
            return
        for transaction in self._producers.commit():
            if transaction.is_aborted:
                self._local.segments.active.add_aborted(transaction.index_entry)
        self._state.producers.update_map_end_offset(end_offset)


def _behind_a_failure() -> PrecedingAppendFailedError:
    return PrecedingAppendFailedError("an earlier request of the chain failed; send this one again")


def _placed(
    batches: Sequence[ProducerBatch], base_offset: int, append_time_ms: int | None
) -> list[ProducerBatch]:
    """The batches with their offsets, from `base_offset` on."""
    placed: list[ProducerBatch] = []
    for batch in batches:
        placed.append(batch.stamped(base_offset, append_time_ms))
        base_offset = placed[-1].header.next_offset
    return placed
