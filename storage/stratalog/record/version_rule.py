"""The version of a record: under `compaction.strategy=timestamp` or `header` the record of a key with the
highest version stays, and of several with this version the last. Its twin for the kernels is ``versions.h``.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import BatchHeader
from stratalog.record.record_frame import RecordFrame, header_frames

NO_VERSION = -(2**63)
"""The version of a record that has none: the lowest number."""
VERSION_BYTES = 8


class VersionRule(NamedTuple):
    """The place of a record's version."""

    header: bytes | None
    """The name of a header: its value is 8 bytes, a signed big-endian number, and the last header of that
    name counts. None: the timestamp is the version."""

    def of_batch(self, batch: BatchHeader) -> BatchVersions:
        return BatchVersions(self.header, batch.base_timestamp, batch.append_time_ms)


class BatchVersions(NamedTuple):
    """A `VersionRule` for the records of one batch, with the times of the batch."""

    header: bytes | None
    base_timestamp: int
    append_time_ms: int | None

    def of_record(self, payload: bytes, frame: RecordFrame) -> int:
        """The version of a record of the batch. Raises CorruptRecordError for a header with a bad frame, and
        a timestamp that is out of range."""
        if self.header is not None:
            return self._in_headers(payload, frame)
        if self.append_time_ms is not None:
            return self.append_time_ms
        timestamp = self.base_timestamp + frame.timestamp_delta
        if not -(2**63) <= timestamp < 2**63:
            raise CorruptRecordError("a record's timestamp is out of range", record_position=frame.start)
        return timestamp

    def _in_headers(self, payload: bytes, frame: RecordFrame) -> int:
        version = NO_VERSION
        for name_position, name_size, position, size in header_frames(payload, frame):
            if payload[name_position : name_position + name_size] == self.header:
                version = NO_VERSION
                if size == VERSION_BYTES:
                    version = int.from_bytes(payload[position : position + size], "big", signed=True)
        return version
