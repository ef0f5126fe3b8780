"""Data objects small enough for a simulation to look into at every step: JSON instead of the object format.

A record has an offset, a key, a number that no other record ever has, and may be a tombstone. An object is
`{"slices":[{"topic_id","partition","base_offset","end_offset","records":[[OFFSET,KEY,NUMBER,IS_TOMBSTONE]...]}...]}`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import crc32c

from stratalog.base.types import TopicIdPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import LastBatch, SliceEntry
from tests.support.tiered.sample_entry import sample_entry


class MockRecord(NamedTuple):
    """A record."""

    offset: int
    key: str
    number: int
    is_tombstone: bool


class MockSlice(NamedTuple):
    """Records of a partition, and the range that they stand for."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    records: tuple[MockRecord, ...]

    def entry(self) -> SliceEntry:
        """The slice's entry in a directory."""
        last = self.records[-1] if self.records else None
        return sample_entry(
            self.base_offset,
            self.end_offset,
            topic_id=self.partition.topic_id,
            partition=self.partition.partition,
            data_bytes=len(self.records) * 10,
            record_count=len(self.records),
            tombstone_count=sum(record.is_tombstone for record in self.records),
            last_batch=LastBatch(last.offset, 0, last.number) if last else None,
        )


class MockObject(NamedTuple):
    """An object, its bytes, and how a commit refers to it."""

    ref: ObjectRef
    slices: tuple[MockSlice, ...]
    data: bytes

    @staticmethod
    def build(name: str, slices: Sequence[MockSlice]) -> MockObject:
        document = {
            "slices": [
                {
                    "topic_id": str(part.partition.topic_id),
                    "partition": part.partition.partition,
                    "base_offset": part.base_offset,
                    "end_offset": part.end_offset,
                    "records": part.records,
                }
                for part in slices
            ]
        }
        data = json.dumps(document).encode()
        ref = ObjectRef(
            name=name,
            size_bytes=len(data),
            data_position=0,
            directory_position=0,
            directory_bytes=len(data),
            key_streams_end=len(data),
            directory_crc=crc32c.crc32c(data),
        )
        return MockObject(ref, tuple(slices), data)

    def entries(self) -> list[SliceEntry]:
        """The directory."""
        return [part.entry() for part in self.slices]


def parse_mock_slices(data: bytes) -> tuple[MockSlice, ...]:
    """The slices of a stored object."""
    return tuple(
        MockSlice(
            TopicIdPartition(UUID(part["topic_id"]), part["partition"]),
            part["base_offset"],
            part["end_offset"],
            tuple(MockRecord(*record) for record in part["records"]),
        )
        for part in json.loads(data)["slices"]
    )


def latest_by_key(records: Sequence[MockRecord]) -> dict[str, MockRecord]:
    """The last record of each key, tombstones included."""
    return {record.key: record for record in sorted(records)}
