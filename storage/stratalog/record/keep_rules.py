"""The rules of compaction: which records and markers stay, and for how long.

The log cleaner, the compaction of objects and the kernels in plain Python call these functions. The compiled
kernels have their twins in ``native/c/keep_rules.h``, which a test compares over a table of all cases, and in
``native/c/versions.h``.

* Only the newest record of a key stays. Under `compaction.strategy=timestamp` or `header` it is the one with
  the highest *version*, and of several with this version the last. A record without a key is dropped from a
  local log, as in Kafka, and stays in an object, where no other record can replace it. Without a value
  it is no tombstone there.
* A tombstone that is the newest record of its key stays until its *delete horizon*, so that each consumer has
  `delete.retention.ms` to read it. The horizon belongs to the batch: KIP-534 sets attribute bit 6 and puts
  the horizon in place of the base timestamp.
  By versions it may beat later records, so a local clean that knows one of its key drops it only the next
  time: the clean may end between the two.
* A batch gets its horizon when a compaction has seen all older records of its keys, and keeps it while it has
  tombstones. An earlier horizon would be wrong: the tombstone could go before the records that it deletes.
  After the last tombstone the horizon means nothing. A local log keeps it, as Kafka does; an object loses
  it, because the earliest horizon of a slice says when its next compaction is due.
* A marker stays as long as data of its transaction is in the log, or while no other batch holds the epoch of
  its producer. After that it gets a horizon, and is dropped when the horizon has passed. In an object no
  marker has to hold an epoch: the index of the last slice knows all producers.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import BatchHeader
from stratalog.record.record_frame import RecordFrame, header_frames

MAX_HORIZON_MS = 1 << 62
"""The latest delete horizon. It means "never", and is far enough from the end of int64 that timestamp deltas
can be taken from it."""
NO_VERSION = -(2**63)
"""The version of a record that has none: the lowest number."""
VERSION_BYTES = 8


class RecordFate(enum.Enum):
    """The action of a compaction on a record."""

    STAYS = enum.auto()
    OUTDATED = enum.auto()
    """Dropped: a newer record has its key."""
    WITHOUT_KEY = enum.auto()
    """Dropped: a compacted local log holds keyed records only."""
    TOMBSTONE_DUE = enum.auto()
    """Dropped: a tombstone after its horizon."""


class MarkerFate(enum.Enum):
    """The action of a compaction on the marker that ends a transaction."""

    STAYS = enum.auto()
    """Data of its transaction is in the log, or only the marker holds its producer's epoch."""
    STAYS_ONCE_MORE = enum.auto()
    """This compaction dropped the last data of its transaction: the next one finds none."""
    GETS_HORIZON = enum.auto()
    STAYS_UNTIL_HORIZON = enum.auto()
    GOES = enum.auto()


def record_fate(*, has_key: bool, is_newest: bool, is_tombstone: bool, is_due: bool) -> RecordFate:
    """The fate of a record. `has_key` is True for all records of objects. `is_newest`: no newer record with
    the key is known. `is_due`: the horizon of its batch has passed, see the function `is_due`."""
    if not has_key:
        return RecordFate.WITHOUT_KEY
    if not is_newest:
        return RecordFate.OUTDATED
    return RecordFate.TOMBSTONE_DUE if is_tombstone and is_due else RecordFate.STAYS


def marker_fate(
    *, is_data_kept: bool | None, holds_epoch: bool, horizon_ms: int | None, now_ms: int | None
) -> MarkerFate:
    """The fate of a marker. `is_data_kept`: data of its transaction stays; None if the log had none.
    `holds_epoch`: no other batch holds the epoch of its producer. `horizon_ms` is that of its batch. `now_ms`
    is None without a time to trust."""
    if holds_epoch or is_data_kept:
        return MarkerFate.STAYS
    if is_data_kept is not None:
        return MarkerFate.STAYS_ONCE_MORE
    if horizon_ms is None:
        return MarkerFate.GETS_HORIZON
    return MarkerFate.GOES if is_due(horizon_ms, now_ms) else MarkerFate.STAYS_UNTIL_HORIZON


def is_due(horizon_ms: int | None, now_ms: int | None) -> bool:
    """Return whether a batch's delete horizon, in ms since the epoch, has passed. False without a horizon,
    and without a time to trust."""
    return horizon_ms is not None and now_ms is not None and horizon_ms <= now_ms


def gets_horizon(horizon_ms: int | None, *, has_tombstones: bool, sees_all_older: bool) -> bool:
    """Return whether a batch gets its delete horizon now. `horizon_ms`: its present horizon, if any.
    `has_tombstones`: tombstones are among the kept records. `sees_all_older`: this compaction sees each older
    record of the batch's keys."""
    return horizon_ms is None and has_tombstones and sees_all_older


def new_horizon_ms(now_ms: int, delete_retention_ms: int) -> int:
    """The horizon that a batch gets now, in ms since the epoch."""
    return min(now_ms + delete_retention_ms, MAX_HORIZON_MS)


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
