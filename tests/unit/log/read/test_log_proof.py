"""The proof of a log: a part with each call, once, and over damage that retention has deleted."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicPartition
from stratalog.log.read.log_proof import LogProof
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from tests.support.tiered.tiered_site import TieredSite

COUNT = 6


class Proven(TieredSite):
    """A log of small segments with one record each, all of them in the store."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = self.start()
        self.logs.create_topic("t", 1, {"retention.ms": "-1"})
        for _ in range(COUNT):
            self.logs.append(self.log, [Record(0, self.clock.now_ms(), b"k", bytes(100))])
            self.logs.seal()
        self.logs.upload()
        self.proof = LogProof(self.log.reader, self.log.offsets)

    @property
    def log(self) -> UnifiedLog:
        return self.logs.logs[TopicPartition("t", 0)]

    def flip(self, base_offset: int) -> None:
        """Damage the record of this segment."""
        [path] = [path for path in self.disk.contents() if path.endswith(f"t-0/{base_offset:020d}.log")]
        data = bytearray(self.disk.read_file(path))
        data[-1] ^= 1
        file = self.disk.open_append(path)
        file.truncate(0)
        file.append([bytes(data)])
        file.close()


def test_a_log_is_read_once_however_many_calls_it_takes() -> None:
    site = Proven()
    size_bytes = sum(one.size_bytes for one in site.log.reader.segments())
    reads: list[int] = []
    while not site.proof.reaches(COUNT):
        assert len(reads) < COUNT
        reads.append(site.proof.prove(COUNT, 1))
    assert len(reads) == COUNT, "each call reads one batch"
    assert sum(reads) == size_bytes
    site.flip(0)
    assert site.proof.prove(COUNT, 1 << 20) == 0


def test_only_what_lies_below_the_end_is_read() -> None:
    site = Proven()
    site.flip(3)
    site.proof.prove(3, 1 << 20)
    assert site.proof.reaches(3)
    assert not site.proof.reaches(4)


@pytest.mark.parametrize("base_offset", range(COUNT))
def test_damage_is_found_until_the_log_begins_behind_it(base_offset: int) -> None:
    site = Proven()
    site.flip(base_offset)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            site.proof.prove(COUNT, 1 << 20)
    assert site.proof.reaches(base_offset)
    assert not site.proof.reaches(base_offset + 1)
    site.log.increment_log_start_offset(base_offset + 1)
    site.proof.prove(COUNT, 1 << 20)
    assert site.proof.reaches(COUNT)


def test_what_retention_deletes_is_proven() -> None:
    site = Proven()
    site.flip(2)
    site.log.retention.delete_local_segments(ignore_retention=True)
    assert site.log.offsets.local_log_start_offset == COUNT
    assert site.proof.prove(COUNT, 1 << 20) == 0
    assert site.proof.reaches(COUNT)
