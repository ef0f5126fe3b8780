"""The offset map of ``offset_map`` in plain Python: twin of the compiled one, except for rows of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import MAX_OFFSET
from stratalog.record.keep_rules import BatchVersions, VersionRule
from stratalog.record.native.pure_key_kernels import HASH_KEY_BYTES
from stratalog.record.record_frame import record_frames

SLOT_BYTES = 24
SLOT_VERSION_BYTES = 8
_DIGEST_BYTES = 16


class OffsetMap:
    """Keys with their highest offsets. Not thread-safe: guarded by its user."""

    # The native map has another hash, which is not visible and is many times slower in plain Python.

    __slots__ = (
        "_capacity",
        "_hash_key",
        "_is_closed",
        "_is_full",
        "_latest_offset",
        "_max_entries",
        "_places",
        "rule",
    )

    def __init__(
        self, hash_key16: Buffer, capacity: int, load_factor: float, rule: VersionRule | None = None
    ) -> None:
        """`capacity` is a number of slots; at most the part `load_factor` of them is used. With a `rule`, the
        record with the highest version counts, and not the last one."""
        assert len(hash_key16) == HASH_KEY_BYTES, "a hash key has 16 bytes"
        assert capacity > 0, "a map has at least one slot"
        assert 0.0 < load_factor <= 1.0, "a part of the slots is used, or all"
        self._hash_key = bytes(hash_key16)
        self._capacity = capacity
        self._max_entries = max(1, int(capacity * load_factor))
        self._latest_offset = -1
        self._is_full = self._is_closed = False
        self.rule = rule
        self._places: dict[bytes, tuple[int, int]] = {}
        """Version (0 without a rule) and offset."""

    @staticmethod
    def slots_for(memory_bytes: int, *, has_versions: bool = False) -> int:
        """The capacity of the largest map that fits this memory; 1 if none fits."""
        return max(1, memory_bytes // _slot_bytes(has_versions=has_versions) - 1)

    @property
    def memory_bytes(self) -> int:
        """The memory of the native map: its slots, and one that always stays empty."""
        return (self._capacity + 1) * _slot_bytes(has_versions=self.rule is not None)

    @property
    def max_entries(self) -> int:
        """The highest number of keys: `load_factor` of the capacity, but at least one."""
        return self._max_entries

    @property
    def latest_offset(self) -> int:
        """The map has seen everything up to this offset, inclusive; -1 if nothing."""
        return self._latest_offset

    @property
    def is_full(self) -> bool:
        """A key had no room; later puts do nothing."""
        return self._is_full

    def check(self) -> None:
        assert len(self._places) <= self._max_entries, "no more keys than it takes"
        assert max((offset for _, offset in self._places.values()), default=-1) <= self._latest_offset, (
            "offsets of the map are seen"
        )

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: Buffer) -> int | None:
        """The offset of the record of the key that stays; None if there is none."""
        place = self._places.get(self._digest(key))
        return None if place is None else place[1]

    def is_below(self, key: Buffer, version: int, offset: int) -> bool:
        """Whether a record with this version (0 without a rule) and offset loses against the one of its
        key."""
        return self._places.get(self._digest(key), (version, offset)) > (version, offset)

    def put_records(
        self,
        payload: Buffer,
        records_count: int,
        base_offset: int,
        first_offset: int,
        last_offset_delta: int,
        versions: BatchVersions | None = None,
    ) -> None:
        """Put the keys of a payload, see ``offset_map``. Raises CorruptRecordError."""
        assert base_offset >= 0, "offsets are not negative"
        assert (versions is None) == (self.rule is None), "a map with versions compares those of records"
        if self._is_full:
            return
        data = bytes(payload)
        for frame in record_frames(data, records_count):
            offset = base_offset + frame.offset_delta
            if frame.offset_delta > last_offset_delta or offset > MAX_OFFSET:
                raise CorruptRecordError(
                    "a record lies behind the last offset of its batch", base_offset=base_offset
                )
            if offset < first_offset or (self._is_closed and offset > self._latest_offset):
                continue
            if frame.key_size >= 0:
                digest = self._digest(data[frame.key_position : frame.key_position + frame.key_size])
                if digest not in self._places and not self._is_closed:
                    if len(self._places) == self._max_entries:
                        self._is_full = True
                        return
                    self._places[digest] = -(2**63), -1
                if digest in self._places:
                    place = 0 if versions is None else versions.of_record(data, frame), offset
                    self._places[digest] = max(place, self._places[digest])
            self._latest_offset = max(self._latest_offset, offset)

    def put_batches(
        self, data: Buffer, position: int, first_offset: int, stop_offset: int, aborted: Sequence[int] = ()
    ) -> tuple[int, int]:
        """Take no batch: the caller puts each one by itself, see ``offset_map``."""
        return position, -1

    def close(self) -> None:
        """Take no further keys, see ``offset_map``."""
        assert self.rule is not None, "by offsets, no earlier record counts"
        self._is_closed, self._is_full = True, False

    def skip_to(self, offset: int) -> None:
        """Mark everything up to `offset`, inclusive, as seen."""
        assert not self._is_full, "no record after a refused key is seen"
        if not self._is_closed:
            self._latest_offset = max(self._latest_offset, offset)

    def _digest(self, key: Buffer) -> bytes:
        return hashlib.blake2b(key, digest_size=_DIGEST_BYTES, key=self._hash_key).digest()


def _slot_bytes(*, has_versions: bool) -> int:
    return SLOT_BYTES + (SLOT_VERSION_BYTES if has_versions else 0)
