"""A real broker's log, replayed: the snapshots and transaction indexes are those that the broker wrote.

All ids in it are small, so the broker's hash map has them in ascending order, and every file is compared byte
for byte. It gave the offsets as the leader, so the batches pass our checks of a leader's appends, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.log.producers.producer_append import AppendOrigin, ProducerAppend
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot import ProducerSnapshot, parse_snapshot_name
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.batch import batches
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.places import GOLDEN

SNAPSHOTS = sorted((GOLDEN / "data").glob("*/*.snapshot"))
INDEXES = sorted((GOLDEN / "data").glob("*/*.txnindex"))
TOPICS = ["appendtime", "codecs", "compacted", "recompressed", "txn"]
COMPACTED_CLIENT = ("compacted", AppendOrigin.CLIENT)
DAY_MS = 86_400_000


def end_offset_of(path: Path) -> int:
    end_offset = parse_snapshot_name(path.name)
    assert end_offset is not None
    return end_offset


def directory_of(name: str) -> str:
    return f"g1-{name}-0"


def log_of(name: str) -> Iterator[ProducerBatch]:
    for path in sorted((GOLDEN / "data" / directory_of(name)).glob("*.log")):
        data = path.read_bytes()
        for position, header in batches(data):
            yield ProducerBatch.read(data, position, header)


def state_at(files: dict[int, bytes], end_offset: int) -> ProducerStateManager:
    """A log directory with these snapshots, opened with its end there."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/log")
    snapshot_files = ProducerSnapshotFiles(filesystem, "/log")
    for offset, data in files.items():
        snapshot_files.write(ProducerSnapshot.from_bytes(offset, data))
    state = ProducerStateManager(snapshot_files, producer_id_expiration_ms=DAY_MS)
    state.truncate_and_reload(0, end_offset, now_ms=0)
    return state


def snapshots_of(name: str) -> dict[int, bytes]:
    return {
        end_offset_of(path): path.read_bytes() for path in SNAPSHOTS if path.parent.name == directory_of(name)
    }


def indexes_of(name: str) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in INDEXES if path.parent.name == directory_of(name)}


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{int(path.stem)}")
def test_snapshots_are_read_and_written_as_kafka_does(path: Path) -> None:
    data, end_offset = path.read_bytes(), end_offset_of(path)
    snapshot = ProducerSnapshot.from_bytes(end_offset, data)
    assert snapshot.to_bytes() == data
    name = path.parent.name.removeprefix("g1-").removesuffix("-0")
    dump = (GOLDEN / "expected" / f"{name}.dump.txt").read_text()
    section = dump.partition(f"{path.name}\n")[2].partition("Dumping")[0]
    printed = [dict(re.findall(r"(\w+): (\S+)", line)) for line in section.splitlines()]
    assert [shown(snapshot, ordinal) for ordinal in range(len(snapshot.entries))] == printed


def shown(snapshot: ProducerSnapshot, ordinal: int) -> dict[str, str]:
    """An entry as Kafka's tool prints it."""
    entry = snapshot.entries[ordinal]
    first_offset = entry.current_txn_first_offset
    fields: dict[str, object] = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": f"OptionalLong{'.empty' if first_offset is None else f'[{first_offset}]'}",
        "lastTimestamp": entry.last_timestamp_ms,
    }
    for batch in entry.batches:
        fields |= {
            "firstSequence": batch.first_sequence,
            "lastSequence": batch.last_sequence,
            "lastOffset": batch.last_offset,
            "offsetDelta": batch.offset_delta,
            "timestamp": batch.timestamp_ms,
        }
    return {name: str(value) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("name", "origin"),
    # Compaction has taken batches, so a producer's sequence numbers have holes there.
    [(name, origin) for name in TOPICS for origin in AppendOrigin if (name, origin) != COMPACTED_CLIENT],
)
def test_a_replay_gives_kafkas_snapshots_and_transaction_indexes(name: str, origin: AppendOrigin) -> None:
    state = state_at({}, 0)
    expected = snapshots_of(name)
    index_bytes: dict[int, bytes] = {}
    aborted: list[AbortedTransaction] = []
    compared = 0
    for batch in log_of(name):
        if state.map_end_offset in expected:
            assert state.snapshot().to_bytes() == expected[state.map_end_offset]
            compared += 1
        append = ProducerAppend(state)
        sender = AppendOrigin.COORDINATOR if batch.header.is_control else origin
        append.stage([batch], sender)
        for completed in append.commit():
            aborted += [completed.index_entry] if completed.is_aborted else []
            state.on_high_watermark_updated(state.map_end_offset)
        state.check()
    assert state.snapshot().to_bytes() == expected[state.map_end_offset]
    assert compared + 1 == len(expected)
    for base_offset, data in indexes_of(name).items():
        later = [other for other in [*expected, *indexes_of(name)] if other > base_offset]
        index = TransactionIndex(base_offset)
        for entry in aborted:
            if base_offset <= entry.last_offset < min(later):
                index.append(entry)
        index_bytes[base_offset] = index.to_bytes()
        assert list(TransactionIndex(base_offset, data)) == list(index)
    assert index_bytes == indexes_of(name)
    assert sum(map(len, index_bytes.values())) == 34 * len(aborted)
