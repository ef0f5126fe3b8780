"""A partition's writer that writes only at a test's command."""

from __future__ import annotations

from stratalog.base.errors import InvalidRecordError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import PendingAppend, preceding_append_failed
from stratalog.server.log_identity import LogIdentity

SOME_LOG = LogIdentity("t", "11111111-2222-4333-8444-555555555555", 0, 7)
"""The log of appends in tests that do not look at it."""

BAD = b"bad"
"""Batches that the writer refuses."""


class HeldWriter(PartitionWriter):
    """Keeps the submitted appends until the test lets it write them. Belongs to the test's loop."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]  # nothing of the real one is used
        self.waiting: list[PendingAppend] = []
        self.written: list[bytes] = []
        self.submitted_count = 0
        self._to_flush: list[tuple[PendingAppend, AppendInfo]] = []

    def submit(self, append: PendingAppend) -> None:
        self.submitted_count += 1
        self.waiting.append(append)

    def write_all(self) -> None:
        """Write and flush."""
        self.write_os()
        self.flush()

    def write_os(self) -> None:
        """Write everything, and answer the failures and the appends at `os`."""
        while self.waiting:
            self.write_one()

    def write_one(self) -> None:
        """Write the oldest append."""
        append = self.waiting.pop(0)
        session = append.session
        data = append.encoded_batches()
        assert isinstance(data, bytes)
        if session is not None and session.is_broken:
            self._finish(append, preceding_append_failed())
        elif data == BAD:
            error = InvalidRecordError("bad")
            append.break_session(error)
            self._finish(append, error)
        else:
            offset = len(self.written)
            self.written.append(data)
            info = AppendInfo(offset, offset, len(data))
            if append.durability is Durability.OS:
                self._finish(append, info)
            else:
                self._to_flush.append((append, info))

    def flush(self) -> None:
        """Answer the appends at `disk`."""
        flushed, self._to_flush = self._to_flush, []
        for append, info in flushed:
            self._finish(append, info)

    def _finish(self, append: PendingAppend, outcome: AppendInfo | Exception) -> None:
        append.give_back_memory()
        if append.future.done():
            return
        if isinstance(outcome, Exception):
            append.future.set_exception(outcome)
        else:
            append.future.set_result(outcome)
