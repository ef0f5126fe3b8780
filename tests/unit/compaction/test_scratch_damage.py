"""A disk that gives back other bytes of the scratch than it was given does not change what a compaction
keeps: the job refuses, or the bytes did not count."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.base.filesystem import AppendFile
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.spool import SCRATCH_SUFFIX
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.key_streams import require_key_streams
from tests.support.logs.sampling import Sampling
from tests.support.tiered.tiered_store import TieredStore

FILE = type(MemoryFileSystem().open_append("/any"))


class ScratchReads:
    """Reads of scratch files, one of which has a wrong bit. Not thread-safe: one test uses it."""

    def __init__(self, damaged: tuple[int, int] | None) -> None:
        """`damaged`: the number of the read, and a place in it; none is wrong without."""
        self.sizes: list[int] = []
        """The bytes of each read so far."""
        self._damaged = damaged
        self._read_at = FILE.read_at

    def read_at(self, file: AppendFile, position: int, size: int) -> bytes:
        """Take the place of `AppendFile.read_at`."""
        data = self._read_at(file, position, size)
        if not file.path.endswith(SCRATCH_SUFFIX):
            return data
        number = len(self.sizes)
        self.sizes.append(len(data))
        if self._damaged is None or number != self._damaged[0]:
            return data
        wrong = bytearray(data)
        wrong[self._damaged[1] % len(wrong)] ^= 1
        return bytes(wrong)


def compacted(
    monkeypatch: pytest.MonkeyPatch, damaged: tuple[int, int] | None, *, with_key_streams: bool
) -> tuple[bool, list[int]]:
    """Compact a partition with all of its scratch in files. Returns whether it was compacted, and the sizes
    of the reads of scratch."""
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    tiered = TieredStore(MemoryFileSystem(), store, clock, SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {"cleanup.policy": "compact"}).topic_id, 0)
    for keys in ((b"a", b"b", b"c"), (b"b", b"d"), (b"a", b"b", b"e")):
        base_offset = tiered.partition(tip).tiered_end_offset
        records = [Record(0, clock.now_ms(), key, None if key == b"b" else b"v") for key in keys]
        batch = encode_batch(records, base_offset=base_offset, leader_epoch=1)
        tiered.upload({tip: [batch]}, with_key_streams=with_key_streams)
    before = tiered.records(tip)
    compactor = tiered.compactor(
        change=lambda base: dataclasses.replace(base, job_memory_bytes=0, hash_part_entries=2)
    )
    reads = ScratchReads(damaged)

    def read_at(file: AppendFile, position: int, size: int) -> bytes:
        return reads.read_at(file, position, size)

    with monkeypatch.context() as patch:
        patch.setattr(FILE, "read_at", read_at)
        reports = compactor.run()
    tiered.metadata.refresh()
    require_key_streams(store, tiered.metadata, tiered.catalog)
    after = tiered.records(tip)
    is_compacted = tiered.partition(tip).compacted_upto > 0
    # A partition that has failed may be carried after that.
    assert is_compacted or any(report.refused for report in reports)
    newest = {record.key: record for record in before}
    kept = sorted(newest.values(), key=lambda record: record.offset)
    assert after == (kept if is_compacted else before)
    return is_compacted, reads.sizes


@pytest.mark.parametrize("with_key_streams", [True, False])
def test_a_wrong_bit_in_scratch_is_noticed_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, with_key_streams: bool
) -> None:
    is_compacted, sizes = compacted(monkeypatch, None, with_key_streams=with_key_streams)
    assert is_compacted
    places = [(number, place) for number, size in enumerate(sizes) for place in range(0, size, 5)]
    refused_count = 0
    for damaged in Sampling().at_most(places, 40):
        try:
            is_compacted, _ = compacted(monkeypatch, damaged, with_key_streams=with_key_streams)
        except AssertionError as error:
            raise AssertionError(f"with a wrong bit in read and place {damaged}") from error
        refused_count += not is_compacted
    assert refused_count > 0
