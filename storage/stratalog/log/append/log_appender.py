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
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET


class LogAppender:
    """Thread-safe: it takes UnifiedLog.lock for what it changes."""

    def __init__(self, parts: LogParts, flusher: LogFlusher, random_source: random.Random) -> None:
        self._lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flusher = flusher
        self._roll_rule = RollRule(random_source)

    def append_group(
        self, requests: Sequence[Buffer], leader_epoch: int, config: LogConfig
    ) -> list[AppendInfo | LogStoreError]:
        """See `UnifiedLog.append_group`."""
        validated = [self._validated(request, config) for request in requests]
        with self._lock:
            outcomes = self._write(validated, leader_epoch, config)
        return self._flushed(outcomes, config)

    def append(self, request: AppendRequest, leader_epoch: int, config: LogConfig) -> AppendInfo:
        """Append one that is valid. Raises what it would get in a group."""
        with self._lock:
            outcomes = self._write([request], leader_epoch, config)
        return only(self._flushed(outcomes, config))

    def append_replica(
        self, batches: Buffer, config: LogConfig, begin_behind: Callable[[int, LogConfig], None]
    ) -> AppendInfo:
        """See `UnifiedLog.append_as_follower`. `begin_behind`: lets the log go on there, behind a hole."""
        written: list[AppendInfo] = []
        with self._lock:
            validated = validate_replica(batches, self._offsets.log_end_offset)
            # One by one: what follows a part that was refused would lie behind a hole that is none.
            for part in validated.by_segment():
                if part.headers[-1].last_offset - self._offsets.log_end_offset > MAX_RELATIVE_OFFSET:
                    begin_behind(part.headers[0].base_offset, config)
                request = AppendRequest.of(part, AppendOrigin.REPLICATION)
                written.append(only(self._write([request], None, config)))
        info = AppendInfo(written[0].base_offset, written[-1].last_offset, validated.size_bytes)
        return only(self._flushed([info], config))

    def must_roll_idle(self, config: LogConfig) -> bool:
        """See `RollRule.must_roll_idle`. Under the lock."""
        return self._roll_rule.must_roll_idle(self._local.segments.active, config, self._clock.now_ms())

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

    def _flushed(
        self, outcomes: list[AppendInfo | LogStoreError], config: LogConfig
    ) -> list[AppendInfo | LogStoreError]:
        """What to tell those whose requests were written, after the flush that `flush.messages` asks for."""
        try:
            self._flusher.flush_if_many(config)
        except LogStoreError as failure:
            return [outcome if isinstance(outcome, LogStoreError) else failure for outcome in outcomes]
        return outcomes


def only(outcomes: Sequence[AppendInfo | LogStoreError]) -> AppendInfo:
    """The outcome of the one request; raises where that is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, LogStoreError):
        raise outcome
    return outcome
