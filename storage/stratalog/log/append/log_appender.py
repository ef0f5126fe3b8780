"""Takes what is appended to a log, from its producers, its transactions' coordinators, or another log.

Requests are validated without a lock and written under `UnifiedLog.lock`, one `AppendRun` at a time. The
flush that `flush.messages` may ask for comes when that lock is free again, so that other appends go on beside
it; who asked for it by appending waits, and is told where it failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.append.append_request import AppendRequest
from stratalog.log.append.append_run import AppendRun
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.append.log_validator import validate_append, validate_replica
from stratalog.log.append.roll_rule import RollRule
from stratalog.log.log_config import LogConfig
from stratalog.log.log_parts import LogParts
from stratalog.log.producers.producer_append import AppendOrigin
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET


class LogAppender:
    """Thread-safe: it takes UnifiedLog.lock for what it changes."""

    def __init__(
        self,
        parts: LogParts,
        flusher: LogFlusher,
        random_source: random.Random,
        *,
        begin_behind: Callable[[int], None],
    ) -> None:
        """`begin_behind`: lets the log go on at that offset, behind a hole; called under both locks."""
        self._flush_lock = parts.flush_lock
        self._lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flusher = flusher
        self._begin_behind = begin_behind
        self._roll_rule = RollRule(random_source)

    def append_as_leader(self, batches: Buffer, leader_epoch: int) -> AppendInfo:
        """Append a producer's batches, which become visible together; see `append_group`."""
        return only(self.append_group([batches], leader_epoch))

    def append_group(self, requests: Sequence[Buffer], leader_epoch: int) -> list[AppendInfo | LogStoreError]:
        """Append many producers' requests, in order, with one write for all of them (one more for each roll).

        Each request stands for itself: where it is not valid, or its producer may not send it now, its place
        in the result holds the error (the classes that `validate_append` and `ProducerAppend.stage` raise)
        and nothing of it is stored. One that was stored before is answered with its offsets of then. In the
        page cache when this returns, durable after `LogFlusher.flush`; or at once, where `flush.messages`
        says so. A disk that fails gives DataDirectoryError for the requests that were written, or synced,
        together: of the latter nobody knows whether they are stored. The buffers must not change until this
        returns.
        """
        config = self._local.config
        validated = [self._validated(request, config) for request in requests]
        with self._lock:
            outcomes = self._write(validated, leader_epoch, config)
        return self._flushed(outcomes)

    def append_end_transaction_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        committed: bool,
        leader_epoch: int,
    ) -> AppendInfo:
        """End the producer's transaction, for its coordinator. Durable after `LogFlusher.flush`.

        Raises ProducerFencedError, CoordinatorFencedError, DataDirectoryError.
        """
        control_type = ControlType.COMMIT if committed else ControlType.ABORT
        marker = EndTransactionMarker(control_type, coordinator_epoch)
        request = AppendRequest.end_of_transaction(producer_id, producer_epoch, marker, self._clock.now_ms())
        with self._lock:
            outcomes = self._write([request], leader_epoch, self._local.config)
        return only(self._flushed(outcomes))

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append batches that already have their offsets and epochs, at or above the log's end. Durable after
        `LogFlusher.flush`.

        All of them or none, unless holes between them are so wide that they do not go into one segment: then
        `log_end_offset` says how far it came. Raises CorruptRecordError, DataDirectoryError.
        """
        written: list[AppendInfo] = []
        # The flush lock is taken first: a wide hole is written down, which takes a flush.
        with self._flush_lock:
            with self._lock:
                config = self._local.config
                validated = validate_replica(batches, self._offsets.log_end_offset)
                # One by one: what follows a part that was refused would lie behind a hole that is none.
                for part in validated.by_segment():
                    if part.headers[-1].last_offset - self._offsets.log_end_offset > MAX_RELATIVE_OFFSET:
                        self._begin_behind(part.headers[0].base_offset)
                    request = AppendRequest.of(part, AppendOrigin.REPLICATION)
                    written.append(only(self._write([request], None, config)))
            info = AppendInfo(written[0].base_offset, written[-1].last_offset, validated.size_bytes)
            return only(self._flushed([info]))

    def must_roll_idle(self) -> bool:
        """See `RollRule.must_roll_idle`. Under the lock."""
        return self._roll_rule.must_roll_idle(
            self._local.segments.active, self._local.config, self._clock.now_ms()
        )

    def _validated(self, request: Buffer, config: LogConfig) -> AppendRequest | LogStoreError:
        try:
            validated = validate_append(request, config, self._clock.now_ms())
            return AppendRequest.of(validated, AppendOrigin.CLIENT)
        except LogStoreError as failure:
            return failure

    def _write(
        self, requests: Sequence[AppendRequest | LogStoreError], leader_epoch: int | None, config: LogConfig
    ) -> list[AppendInfo | LogStoreError]:
        run = AppendRun(
            self._local,
            self._state,
            self._roll_rule,
            config,
            self._clock.now_ms(),
            leader_epoch,
            self._availability.refusal(),
        )
        for request in requests:
            run.add(request)
        outcomes = run.finish()
        if run.fatal is not None:
            self._availability.go_offline(run.fatal)
        self._state.publish(self._offsets.high_watermark)
        return outcomes

    def _flushed(self, outcomes: list[AppendInfo | LogStoreError]) -> list[AppendInfo | LogStoreError]:
        """What to tell those whose requests were written, after the flush that `flush.messages` asks for."""
        try:
            self._flusher.flush_if_many()
        except LogStoreError as failure:
            return [outcome if isinstance(outcome, LogStoreError) else failure for outcome in outcomes]
        return outcomes


def only(outcomes: Sequence[AppendInfo | LogStoreError]) -> AppendInfo:
    """The outcome of the one request; raises where that is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, LogStoreError):
        raise outcome
    return outcome
