"""A log in which everything occurs that a log can hold, and copies of its disk with single bits turned over.

Five segments; all codecs; a batch of several records and holes as compaction leaves them, within a batch,
within a segment and between two; producers with and without transactions, one committed, one open, and three
aborted, of which two have several batches, overlap each other and end in different segments; five leader
epochs, of which one has a single batch. All of it is durable, and the process has ended in order.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.log.log_config import LogConfig
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.native.kernels import copy_records
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

CONFIG = LogConfig(segment_bytes=520, index_interval_bytes=150, remote_storage_enable=False, retention_ms=-1)


class PlacedBatch(NamedTuple):
    """A batch as it was written: in which file, where, and its bytes."""

    path: str
    position: int
    header: BatchHeader
    data: bytes


class VariedLog:
    """The log, closed, and its files. Immutable once it is made."""

    def __init__(self) -> None:
        disk = MemoryFileSystem()
        machine = LogMachine(disk, CONFIG)
        log = machine.start()
        now_ms = machine.clock.now_ms()
        for data in _batches(now_ms):
            log.appender.append_as_follower(data)
        log.appender.append_as_leader(encode_batch([Record(0, now_ms + 60, b"last", b"one")]), 9)
        self.end_offset = log.offsets.log_end_offset
        machine.stop()
        self.contents = disk.contents()
        self.batches = tuple(self._placed())

    def _placed(self) -> list[PlacedBatch]:
        found: list[PlacedBatch] = []
        for path in sorted(self.log_paths):
            data = self.file(path)
            for position, header in batches(data):
                found.append(PlacedBatch(path, position, header, data[position:][: header.size_in_bytes]))
        return found

    @property
    def log_paths(self) -> list[str]:
        return [path for path in self.contents if path.startswith(PARTITION_DIR) and path.endswith(".log")]

    def file(self, path: str) -> bytes:
        data = self.contents[path]
        assert data is not None
        return data

    def disk(self, changed: dict[str, bytes | None]) -> MemoryFileSystem:
        """The disk with other contents of these files; None for one that is gone. All of it is durable."""
        disk = MemoryFileSystem()
        for path, data in (self.contents | changed).items():
            if path not in changed and data is None:
                disk.make_directories(path)
            elif data is not None:
                file = disk.open_append(path)
                file.append([data])
                file.sync()
        for path in ("/", *(path for path, data in self.contents.items() if data is None)):
            disk.sync_directory(path)
        return disk

    def flipped(self, path: str, position: int, bit: int) -> bytes:
        """The file with that bit turned over."""
        data = bytearray(self.file(path))
        data[position] ^= 1 << bit
        return bytes(data)


def _batches(now_ms: int) -> list[bytes]:
    """In order, with their offsets and leader epochs."""

    def batch(
        base_offset: int,
        leader_epoch: int,
        count: int = 1,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        sequence: int = 0,
        *,
        txn: bool = False,
    ) -> bytes:
        records = [
            Record(0, now_ms + base_offset + number, b"k%d" % number, b"v%d" % (base_offset + number))
            for number in range(count)
        ]
        if producer_id < 0:
            return encode_batch(records, codec=codec, base_offset=base_offset, leader_epoch=leader_epoch)
        producer = BatchProducer(producer_id, 0, sequence, txn)
        return encode_batch(
            records, codec=codec, base_offset=base_offset, leader_epoch=leader_epoch, producer=producer
        )

    def marker(base_offset: int, leader_epoch: int, producer_id: int, kind: ControlType) -> bytes:
        # As old as the batch before it: a snapshot has one time of a producer, whichever that is.
        ended_ms = now_ms + base_offset - 1
        made = EndTransactionMarker(kind, 0)
        return made.to_batch(producer_id, 0, ended_ms, base_offset=base_offset, leader_epoch=leader_epoch)

    def holed(base_offset: int, leader_epoch: int) -> bytes:
        return with_holes(batch(base_offset, leader_epoch, 8))

    return [
        batch(0, 0, 2),
        batch(2, 0, 1, Codec.GZIP),
        batch(3, 2, 2, Codec.SNAPPY, 1, 0, txn=True),
        batch(7, 2, 1, Codec.LZ4, 2, 0),
        marker(8, 2, 1, ControlType.ABORT),
        batch(9, 3, 3, Codec.ZSTD),
        batch(12, 5, 1, producer_id=1, sequence=2, txn=True),
        batch(13, 5, 2),
        marker(15, 5, 1, ControlType.COMMIT),
        batch(20, 5, 1, producer_id=2, sequence=1),
        batch(21, 5, 2, producer_id=1, sequence=3, txn=True),
        holed(24, 5),
        batch(33, 5, producer_id=1, sequence=5, txn=True),
        batch(34, 5, producer_id=3, txn=True),
        batch(35, 5, 2, producer_id=3, sequence=1, txn=True),
        batch(37, 5, producer_id=1, sequence=6, txn=True),
        marker(38, 5, 1, ControlType.ABORT),
        batch(39, 5, producer_id=3, sequence=3, txn=True),
        holed(40, 5),
        batch(50, 5, producer_id=3, sequence=4, txn=True),
        marker(51, 5, 3, ControlType.ABORT),
        batch(52, 5, 2, producer_id=1, sequence=7, txn=True),
        batch(54, 9),
    ]


def with_holes(full: bytes) -> bytes:
    """The batch of eight records as a clean leaves it that keeps the first and the last but one."""
    header = parse_header(full)
    kept = copy_records(
        full[HEADER_SIZE:],
        header.records_count,
        bytes([0b01000001]),
        0,
        first_offset_delta=0,
        end_offset_delta=header.last_offset_delta + 1,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    newest_ms = header.base_timestamp + kept.max_timestamp_delta
    return rebuild_batch(header, kept.payload, records_count=kept.count, max_timestamp=newest_ms)
