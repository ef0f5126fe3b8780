"""Appends batches to a log, from producers, from transaction coordinators, or from another log.

Requests are validated without a lock, because that may take long, and written under `UnifiedLog.lock`, one
`AppendGroup` at a time; if the configuration changes meanwhile, they are validated once more. A
flush that `flush.messages` asks for comes after that lock is free again, so that other appends go on beside
it. The requests that caused the flush wait for it, and fail with it. A caller that has threads for flushes
does it there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence

from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.log.append.append_group import AppendGroup
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.append.log_validator import validate_append, validate_replica
from stratalog.log.append.roll_rule import RollRule
from stratalog.log.append.unpacking import UNLIMITED, Unpacking
from stratalog.log.append.validated_append import ValidatedAppend
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.log_parts import LogParts
from stratalog.log.producers.producer_append import AppendOrigin
from stratalog.record.batch import batches
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET


class LogAppender:
    """Appends requests to a log. Thread-safe: it takes UnifiedLog.lock for what it changes."""

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

    def append_group(
        self,
        requests: Sequence[Buffer],
        leader_epoch: int,
        expected_offsets: Sequence[int | None] | None = None,
        chains: Sequence[Hashable | None] | None = None,
        *,
        unpackings: Sequence[Unpacking] | None = None,
        flushes: bool = True,
    ) -> list[AppendInfo | LogStoreError]:
        """Append many producers' requests, in order, with one write for all of them (one more for each roll).

        Each request has its own outcome. A request that is not valid, or that its producer may not send now,
        is not stored; its outcome is the error (the classes that `validate_append` and `ProducerAppend.stage`
        raise). A request that was stored before is answered with its first offsets. The data are in the page
        cache when this returns, and durable after `LogFlusher.flush`, or at once if `flush.messages` says so.
        If the disk fails, all requests of the write or of the sync get DataDirectoryError; after a failed
        sync they may be stored. The buffers must not change until this returns.

        `expected_offsets`: for each request the offset that its first record must get, or None for any.
        Elsewhere it fails with UnexpectedOffsetError, unless it was stored before.
        `chains`: for each request the chain that it belongs to, or None for none. Behind a failed request the
        later ones of its chain fail with PrecedingAppendFailedError and are not stored; only where one sync
        or one write fails for several of them, each gets DataDirectoryError.
        `unpackings`: for each request the memory of its decompressed batches and the work with them; None:
        there is always enough. If one of them raises LongWorkError, so does this, and nothing is stored.
        `flushes`: False if the caller looks at `LogFlusher.has_many` then, and lets the requests wait for a
        flush where it is true.
        """
        count = len(requests)
        sent = (requests, expected_offsets or [None] * count, unpackings or [UNLIMITED] * count)
        outcomes: list[AppendInfo | LogStoreError] | None = None
        while outcomes is None:
            config = self._local.config
            validated = [self._validated(*one, config) for one in zip(*sent, strict=True)]
            with self._lock:
                # A request must be valid by the configuration that it is written with. An equal one comes
                # again and again while another log of the topic, on a disk that hangs, misses a change.
                if self._local.config is config or self._local.config == config:
                    outcomes = self._write(validated, leader_epoch, chains)
        return self._flushed(outcomes) if flushes else outcomes

    def has_epoch(self, leader_epoch: int) -> bool:
        """Whether the next append with this epoch has nothing to write but its batches."""
        return self._state.latest_epoch == leader_epoch

    def write_epoch(self, leader_epoch: int) -> None:
        """Make the epoch of the next append durable, which the append does otherwise: its file must know the
        epoch before a batch has it. Does nothing if that fails; the append tries again, and fails with the
        reason."""
        with self._lock:
            end_offset = self._local.segments.end_offset
            if self._availability.refusal() is not None:
                return
            try:
                self._state.follow_epoch(leader_epoch, end_offset)
                self._state.epochs.flush()
            except (OSError, LogStoreError):
                self._state.epochs.truncate_from_end(end_offset)

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

        The server has no coordinator yet, so it does not call this: transactions come with imported logs.
        Tests and benchmarks make transactional logs with it.

        Raises ProducerFencedError, CoordinatorFencedError, DataDirectoryError.
        """
        control_type = ControlType.COMMIT if committed else ControlType.ABORT
        marker = EndTransactionMarker(control_type, coordinator_epoch)
        data = marker.to_batch(producer_id, producer_epoch, self._clock.now_ms())
        request = ValidatedAppend.of(data, tuple(batches(data)), AppendOrigin.COORDINATOR)
        with self._lock:
            outcomes = self._write([request], leader_epoch)
        return only(self._flushed(outcomes))

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append batches that already have their offsets and epochs, at or above the log's end. Durable after
        `LogFlusher.flush`.

        Stores all of them or none, unless holes between them are too wide for one segment: then a failure
        may leave the first ones, up to `log_end_offset`. Raises CorruptRecordError, DataDirectoryError.
        """
        written: list[AppendInfo] = []
        # The flush lock comes first, because writing down a wide hole takes a flush.
        with self._flush_lock:
            with self._lock:
                validated = validate_replica(batches, self._offsets.log_end_offset)
                # One by one: behind a refused part the next one would leave a hole that is no real one.
                for part in validated.by_segment():
                    if part.located[-1][1].last_offset - self._offsets.log_end_offset > MAX_RELATIVE_OFFSET:
                        self._begin_behind(part.located[0][1].base_offset)
                    written.append(only(self._write([part], None)))
            info = written[-1]._replace(base_offset=written[0].base_offset, size_bytes=validated.size_bytes)
            return only(self._flushed([info]))

    def must_roll_idle(self) -> bool:
        """Whether an idle log must be rolled now, see `RollRule.must_roll_idle`. The caller holds the
        lock."""
        return self._roll_rule.must_roll_idle(
            self._local.segments.active, self._local.config, self._clock.now_ms()
        )

    def _validated(
        self, request: Buffer, expected_offset: int | None, unpacking: Unpacking, config: LogConfig
    ) -> ValidatedAppend | LogStoreError:
        try:
            validated = validate_append(request, config, self._clock.now_ms(), unpacking)
        except LogStoreError as failure:
            return failure
        return validated if expected_offset is None else validated._replace(expected_offset=expected_offset)

    def _write(
        self,
        requests: Sequence[ValidatedAppend | LogStoreError],
        leader_epoch: int | None,
        chains: Sequence[Hashable | None] | None = None,
    ) -> list[AppendInfo | LogStoreError]:
        group = AppendGroup(
            self._local,
            self._state,
            self._offsets,
            self._roll_rule,
            self._clock.now_ms(),
            leader_epoch,
            self._availability.refusal(),
        )
        for request, chain in zip(requests, chains or [None] * len(requests), strict=True):
            group.add(request, chain)
        outcomes = group.finish()
        if group.fatal is not None:
            self._availability.go_offline(group.fatal)
        self._state.publish(self._offsets.high_watermark)
        return outcomes

    def _flushed(self, outcomes: list[AppendInfo | LogStoreError]) -> list[AppendInfo | LogStoreError]:
        """Flush if `flush.messages` asks for it, and return the outcomes: errors after a failed flush."""
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
