"""Writing many requests with few writes.

Requests are collected until the active segment has to be rolled or there are no more, and then written at
once. What is written together succeeds or fails together, because the file is cut back to where it was: no
request is stored by half, and none that was refused is stored at all.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.log.append_info import AppendInfo
from stratalog.log.local_log import LocalLog
from stratalog.log.log_config import LogConfig
from stratalog.log.log_validator import ValidatedAppend
from stratalog.record.header import TimestampType
from stratalog.segment.log_segment import AppendedBatch
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET


class _Pending(NamedTuple):
    """A request that waits for the next write: its place among the outcomes, and what to tell when it is
    written."""

    ordinal: int
    info: AppendInfo


class AppendRun:
    """One group of requests. Guarded by UnifiedLog.lock, from its making to `finish`."""

    def __init__(
        self,
        local_log: LocalLog,
        config: LogConfig,
        now_ms: int,
        leader_epoch: int | None,
        refusal: LogStoreError | None,
    ) -> None:
        """`leader_epoch`: stamped together with new offsets; None keeps both as they are. `refusal`: of
        everything."""
        self.fatal: DataDirectoryError | None = None
        self._local = local_log
        self._config = config
        self._now_ms = now_ms
        self._leader_epoch = leader_epoch
        self._is_append_time = (
            leader_epoch is not None and config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        )
        self._refusal = refusal
        self._outcomes: list[AppendInfo | LogStoreError] = []
        self._pending: list[_Pending] = []
        self._parts: list[Buffer] = []
        self._batches: list[AppendedBatch] = []
        self._pending_bytes = 0

    def add(self, request: ValidatedAppend | LogStoreError) -> None:
        """The next request, or the error that it gets."""
        if isinstance(request, LogStoreError):
            self._outcomes.append(request)
            return
        try:
            last_offset = self._make_room(request) if self._refusal is None else -1
        except OSError as failure:
            self._outcomes.append(_disk_error(self._local, failure))
            return
        except DataDirectoryError as failure:
            self.fatal = self._refusal = failure
            last_offset = -1
        if self._refusal is not None:
            self._outcomes.append(self._refusal)
        else:
            self._take(request, last_offset)

    def finish(self) -> list[AppendInfo | LogStoreError]:
        """Write what waits; one outcome for each request, in order."""
        self._write()
        return self._outcomes

    def _make_room(self, request: ValidatedAppend) -> int:
        """Write and roll where the request does not go into the active segment behind what waits.

        Returns the last offset that the request gets.
        """
        last_offset = self._last_offset(request)
        if not self._should_roll(request, last_offset):
            return last_offset
        self._write()
        last_offset = self._last_offset(request)
        if self._refusal is None and self._should_roll(request, last_offset):
            base_offset = self._local.segments.end_offset
            if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                base_offset = request.headers[0].base_offset
            self._local.roll(self._config, self._now_ms, base_offset)
        return last_offset

    def _should_roll(self, request: ValidatedAppend, last_offset: int) -> bool:
        return self._local.should_roll(
            self._config,
            size_bytes=self._pending_bytes + request.size_bytes,
            last_offset=last_offset,
            max_timestamp_ms=self._now_ms if self._is_append_time else request.max_timestamp_ms,
            now_ms=self._now_ms,
        )

    def _last_offset(self, request: ValidatedAppend) -> int:
        if self._leader_epoch is None:
            return request.headers[-1].last_offset
        next_offset = self._batches[-1].last_offset + 1 if self._batches else self._local.segments.end_offset
        return next_offset + request.offset_count - 1

    def _take(self, request: ValidatedAppend, last_offset: int) -> None:
        if self._leader_epoch is None:
            base_offset = request.headers[0].base_offset
            parts, batches = request.verbatim()
        else:
            base_offset = last_offset - request.offset_count + 1
            append_time_ms = self._now_ms if self._is_append_time else None
            parts, batches = request.stamp(base_offset, self._leader_epoch, append_time_ms)
        assert batches[-1].last_offset == last_offset
        info = AppendInfo(base_offset, last_offset, request.size_bytes)
        self._pending.append(_Pending(len(self._outcomes), info))
        self._outcomes.append(info)
        self._parts += parts
        self._batches += batches
        self._pending_bytes += request.size_bytes

    def _write(self) -> None:
        """Write what waits. Where that fails, all of it gets the error."""
        if not self._pending:
            return
        failure: LogStoreError | None = None
        try:
            self._local.append(self._parts, self._batches)
        except OSError as error:
            failure = _disk_error(self._local, error)
        except DataDirectoryError as error:
            # What is on the disk is not known any more: nothing else may be written.
            failure = self.fatal = self._refusal = error
        if failure is not None:
            for waiting in self._pending:
                self._outcomes[waiting.ordinal] = failure
        self._pending, self._parts, self._batches, self._pending_bytes = [], [], [], 0


def _disk_error(local_log: LocalLog, failure: OSError) -> DataDirectoryError:
    return DataDirectoryError(
        "the local disk refused a write, nothing was stored; free space or repair it, then send again",
        path=local_log.directory,
        reason=str(failure),
    )
