"""A single flipped bit, anywhere in a partition: it is found, or harmless, or in a documented place.

What is served afterwards is byte for byte what was appended, in its place, or there is an error of ours. The
categories that no check can see are those of docs/operating.md, "Damage"; a flip that is unseen and in none
of them fails, and so does a category that nothing falls into any more.

`make simulate` flips every bit of every byte, and other runs a sample of these bits (see `Sampling`).
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache

import pytest

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, LogStoreError
from stratalog.base.types import Durability
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.partition_metadata import format_topic_id
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.header import (
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    parse_header,
)
from stratalog.record.record import Record
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.decoded_records import decode_all
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, TOPIC_ID, LogMachine
from tests.support.logs.overwriting import overwrite
from tests.support.logs.sampling import IS_WHOLE, Sampling
from tests.support.logs.varied_log import CONFIG, PlacedBatch, VariedLog
from tests.support.places import DOCS

DOCUMENT = DOCS / "operating.md"
IN_A_HOLE = "within a hole"
LAST_UPWARD = "last batch upward"
SEED = 20260
OPEN_TRANSACTION = BatchProducer(7, 0, 0, is_transactional=True)
# Of base offset, length and leader epoch: what is likely to make something that can be.
LOW_BYTES = frozenset({7, LEADER_EPOCH_POSITION - 1, LEADER_EPOCH_POSITION + 3})

CLOSED_MARK = f"{DATA_DIR}/.kafka_cleanshutdown"
RECOVERY_POINTS = f"{DATA_DIR}/recovery-point-offset-checkpoint"
METADATA = f"{PARTITION_DIR}/partition.metadata"
EPOCHS = f"{PARTITION_DIR}/leader-epoch-checkpoint"
CLOSED: dict[str, bytes | None] = {}
FLIP_COUNT = 120
KILLED: dict[str, bytes | None] = {CLOSED_MARK: None}
KILLED_UNKNOWN: dict[str, bytes | None] = {CLOSED_MARK: None, RECOVERY_POINTS: None}


@cache
def varied() -> VariedLog:
    return VariedLog()


def start(changed: dict[str, bytes | None]) -> UnifiedLog | None:
    """The log on a disk with these contents; None where it is refused."""
    try:
        return LogMachine(varied().disk(changed), CONFIG).start()
    except LogStoreError:
        return None


@cache
def whole_log() -> UnifiedLog:
    log = start(CLOSED)
    assert log is not None
    return log


def is_true(log: UnifiedLog, near: PlacedBatch | None = None) -> bool:
    """Every read, from each offset, gives the batches that were appended from there on, or an error; so does
    every look-up by time, if the log was not cut. `near`: all around that batch, and some of the others."""
    if log.offsets.log_end_offset == varied().end_offset:
        pairs = zip(times_of(log, near), true_times(near), strict=True)
        if any(found not in (expected, "refused") for found, expected in pairs):
            return False
    # A flip upward may have put the end very far away.
    end_offset = min(log.offsets.log_end_offset, 2 * varied().end_offset)
    for max_bytes, step in ((1, 1 if near is None else 4), (400, 3), (1 << 20, 5)):
        offsets = set(range(log.offsets.local_log_start_offset, end_offset, step))
        if near is not None and max_bytes == 1:
            begin, end = (varied().batches[near_ordinals(near)[number]].header for number in (0, -1))
            offsets |= set(range(begin.base_offset, min(end.next_offset, end_offset)))
        for offset in offsets:
            try:
                data = log.reader.read(offset, max_bytes, Isolation.LOG_END)
            except LogStoreError:
                continue
            if not data.batches or not bytes_behind(offset).startswith(data.batches):
                return False
    return True


@cache
def bytes_behind(offset: int) -> bytes:
    return b"".join(placed.data for placed in varied().batches if placed.header.last_offset >= offset)


def unseen(flipped: PlacedBatch, position: int, bit: int) -> str | None:
    """The documented category that the flip belongs to, by what it makes of the offset."""
    if position >= BATCH_LENGTH_POSITION:
        return None
    header, placed = flipped.header, varied().batches
    base_offset = header.base_offset ^ 1 << (8 * (BATCH_LENGTH_POSITION - 1 - position) + bit)
    ordinal = placed.index(flipped)
    lowest = max(placed[ordinal - 1].header.next_offset if ordinal else 0, int(flipped.path[-24:-4]))
    if base_offset < lowest:
        return None
    if flipped is placed[-1]:
        is_far = base_offset + header.last_offset_delta - int(flipped.path[-24:-4]) > MAX_RELATIVE_OFFSET
        return None if is_far else LAST_UPWARD
    return (
        IN_A_HOLE if base_offset + header.last_offset_delta < placed[ordinal + 1].header.base_offset else None
    )


def flips(*, every_bit_of: frozenset[int]) -> list[tuple[PlacedBatch, int, int]]:
    """A sample of these: all bits of some bytes of each header, and of a header that a reader believes if its
    batch has holes inside; one bit of every other byte."""
    chosen, found = random.Random(SEED), list[tuple[PlacedBatch, int, int]]()
    for placed in varied().batches:
        has_holes = placed.header.records_count <= placed.header.last_offset_delta
        for position in range(len(placed.data)):
            is_whole = position in every_bit_of or (every_bit_of and has_holes and position < HEADER_SIZE)
            bits = range(8) if is_whole or IS_WHOLE else (chosen.randrange(8),)
            found += [(placed, position, bit) for bit in bits]
    return Sampling().at_most(found, FLIP_COUNT)


def changed_by(placed: PlacedBatch, position: int, bit: int) -> dict[str, bytes | None]:
    return {placed.path: varied().flipped(placed.path, placed.position + position, bit)}


def test_the_log_is_varied_and_whole() -> None:
    log = start(CLOSED)
    assert log is not None
    log.check()
    assert is_true(log)
    headers = [placed.header for placed in varied().batches]
    assert {header.codec for header in headers} == set(range(5))
    assert len({placed.path for placed in varied().batches}) == 5
    assert len({header.leader_epoch for header in headers}) == 5
    assert any(header.is_control for header in headers)
    assert any(header.is_transactional for header in headers)
    assert any(header.records_count <= header.last_offset_delta for header in headers)
    flipped = {
        (placed.path, placed.position + position) for placed, position, _ in flips(every_bit_of=frozenset())
    }
    assert len(flipped) >= FLIP_COUNT


def test_reads_of_a_closed_log_serve_no_flipped_bit() -> None:
    found: set[str] = set()
    for placed, position, bit in flips(every_bit_of=LOW_BYTES):
        log = start(changed_by(placed, position, bit))
        category = unseen(placed, position, bit)
        if log is None or is_true(log, placed):
            continue
        assert category is not None, (placed.header, position, bit, SEED)
        found.add(category)
    # Where the log was closed its end is known.
    assert found == {IN_A_HOLE}


@pytest.mark.parametrize("state", [KILLED, KILLED_UNKNOWN], ids=["durable", "unknown"])
def test_a_recovery_cuts_before_a_flipped_bit_or_refuses_the_log(state: dict[str, bytes | None]) -> None:
    found: set[str] = set()
    for placed, position, bit in flips(every_bit_of=LOW_BYTES):
        log = start(state | changed_by(placed, position, bit))
        if log is None:
            continue
        category = unseen(placed, position, bit)
        if not is_true(log, placed):
            assert category is not None, (placed.header, position, bit, SEED)
            found.add(category)
        elif state is KILLED:
            assert log.offsets.log_end_offset == varied().end_offset, "what was durable is not cut"
        elif log.offsets.log_end_offset < varied().end_offset:
            assert log.offsets.log_end_offset <= placed.header.base_offset, (placed.header, position, bit)
            assert log.offsets.log_end_offset == end_before(placed), "more was cut than the damage"
    # Durable segments are not walked. Walked ones are compared with their seals.
    assert found == ({IN_A_HOLE} if state is KILLED else set())


def end_before(placed: PlacedBatch) -> int:
    ordinal = varied().batches.index(placed)
    before = varied().batches[ordinal - 1].header.next_offset if ordinal else 0
    return max(before, int(placed.path[-24:-4])) if before else 0


def test_the_documented_categories_are_these() -> None:
    text = DOCUMENT.read_text()
    listed = text.partition("No check can see")[2].partition("\n\n")[2].partition("\n\n")[0]
    names = [
        line.partition("**")[2].partition("**")[0] for line in listed.splitlines() if line.startswith("- ")
    ]
    assert names == [IN_A_HOLE, LAST_UPWARD]


def other_files() -> list[str]:
    return sorted(
        path
        for path, data in varied().contents.items()
        if data and path not in varied().log_paths and not path.endswith("meta.properties")
    )


def test_there_is_a_file_of_every_other_kind() -> None:
    kinds = {path.rpartition("/")[2].rpartition(".")[2] for path in other_files()}
    assert kinds >= {
        "index",
        "timeindex",
        "txnindex",
        "seal",
        "snapshot",
        "metadata",
        "leader-epoch-checkpoint",
    }
    assert {RECOVERY_POINTS, CLOSED_MARK} <= set(other_files())


@pytest.mark.parametrize("state", [CLOSED, KILLED], ids=["closed", "killed"])
def test_a_flipped_bit_in_another_file_costs_a_rebuild_or_is_refused(state: dict[str, bytes | None]) -> None:
    """Nothing acknowledged is lost, nothing else is served, and each error names its file."""
    chosen, sampling = random.Random(SEED), Sampling()
    whole = start(state)
    assert whole is not None
    producers, times = producers_of(whole), times_of(whole)
    truth = whole.reader.aborted_transactions(0, varied().end_offset)
    for path in other_files():
        if path in state or path == METADATA:
            continue
        for position in sampling.some(range(len(varied().file(path))), 16):
            bit = chosen.randrange(8)
            flip: dict[str, bytes | None] = {path: varied().flipped(path, position, bit)}
            log = start(state | flip)
            where = (path, position, bit, SEED)
            if log is None:
                continue
            assert is_true(log), where
            assert log.offsets.log_end_offset == varied().end_offset, where
            assert log.offsets.log_start_offset == 0, where
            assert producers_of(log) == producers, where
            if "index" in path:
                assert times_of(log) == times, where
                assert log.reader.aborted_transactions(0, varied().end_offset) == truth, where


@pytest.mark.parametrize("state", [CLOSED, KILLED, KILLED_UNKNOWN], ids=["closed", "durable", "unknown"])
def test_no_flip_lets_an_aborted_record_be_read_as_committed(state: dict[str, bytes | None]) -> None:
    """A reader of committed records gets the same transactions wherever it begins. What lies beside
    the log costs no more than a look at it."""
    chosen, sampling, truth = random.Random(SEED), Sampling(), aborted_of(whole_log())
    assert len({found for found in truth if found}) > 3
    indexes = [path for path in other_files() if path.endswith(".txnindex")]
    paths = indexes + [path.replace(".txnindex", ".seal") for path in indexes]
    assert len(paths) == 2 * len({entry.last_offset for found in truth for entry in found})
    for path in paths:
        for position in sampling.some(range(len(varied().file(path))), 6):
            for bit in range(8) if IS_WHOLE else (chosen.randrange(8),):
                log = start(state | {path: varied().flipped(path, position, bit)})
                assert log is not None, (path, position, bit)
                assert aborted_of(log) == truth, (path, position, bit)
    for lost in paths:
        log = start(state | {lost: None})
        assert log is not None, lost
        assert aborted_of(log) == truth, lost


def test_no_flip_under_a_running_log_lets_an_aborted_record_be_read_as_committed() -> None:
    """Readers of committed records are refused until the next start, or told the truth; others go on."""
    chosen, truth = random.Random(SEED), aborted_of(whole_log())
    refused_count = 0
    for path in (path for path in other_files() if path.endswith(".txnindex")):
        for position in range(len(varied().file(path))):
            disk = varied().disk(CLOSED)
            machine = LogMachine(disk, CONFIG)
            log = machine.start()
            overwrite(disk, path, varied().flipped(path, position, chosen.randrange(8)))
            everything = [
                log.reader.read(offset, 1, Isolation.LOG_END) for offset in range(varied().end_offset)
            ]
            assert b"".join(dict.fromkeys(data.batches for data in everything)) == bytes_behind(0)
            for offset, expected in enumerate(truth):
                try:
                    data = log.reader.read(offset, 1, Isolation.TXN_COMMITTED)
                except LogStoreError:
                    refused_count += 1
                else:
                    assert data.aborted_transactions == expected, (path, position, offset, SEED)
            machine.kill()
            assert aborted_of(machine.start()) == truth, (path, position, SEED)
    assert refused_count > 100


def aborted_of(log: UnifiedLog) -> list[tuple[AbortedTransaction, ...]]:
    """Aborted transactions that come with a fetch from each offset."""
    return [
        log.reader.read(offset, 1, Isolation.TXN_COMMITTED).aborted_transactions
        for offset in range(log.offsets.last_stable_offset)
    ]


@pytest.mark.parametrize("state", [CLOSED, KILLED, KILLED_UNKNOWN], ids=["closed", "durable", "unknown"])
def test_any_flip_in_the_file_of_leader_epochs_is_found_when_the_log_is_opened(
    state: dict[str, bytes | None],
) -> None:
    """The file has no checksum. The epochs come from the seals."""
    whole = start(state)
    assert whole is not None
    epochs, sampling = epochs_of(whole), Sampling()
    reads = [whole.reader.read(offset, 1) for offset in range(varied().end_offset)]
    for position in range(len(varied().file(EPOCHS))):
        for bit in sampling.some(range(8), 6):
            log = start(state | {EPOCHS: varied().flipped(EPOCHS, position, bit)})
            where = (position, bit)
            assert log is not None, where
            assert epochs_of(log) == epochs, where
            assert log.offsets.log_end_offset == varied().end_offset, where
            for offset, expected in enumerate(reads):
                assert log.reader.read(offset, 1) == expected, where


def epochs_of(log: UnifiedLog) -> list[object]:
    epochs = {placed.header.leader_epoch for placed in varied().batches}
    answers = [log.end_offset_for(epoch) for epoch in range(max(epochs) + 2)]
    # The first one may begin later: below it no epoch is known then.
    return [log.state_transfer.leader_epochs(3, log.offsets.log_end_offset), *answers]


def producers_of(log: UnifiedLog) -> list[object]:
    """The state that decides over the next batch. A snapshot has one batch of each producer, the log all."""
    return [
        (
            entry.producer_id,
            entry.epoch,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
            entry.batches[-1:],
        )
        for entry in log.producers()
    ]


def times_of(log: UnifiedLog, near: PlacedBatch | None = None) -> list[TimestampOffset | str | None]:
    """Answers to look-ups of times, or that there is none."""
    headers = [placed.header for placed in varied().batches]
    around = range(len(headers)) if near is None else near_ordinals(near)
    asked_ms = {headers[number].max_timestamp + more for number in around for more in (0, 1)}
    found: list[TimestampOffset | str | None] = []
    for one_ms in (None, *sorted(asked_ms)):
        try:
            found.append(
                log.reader.max_timestamp() if one_ms is None else log.reader.offset_for_timestamp(one_ms)
            )
        except LogStoreError:
            found.append("refused")
    return found


@cache
def true_times(near: PlacedBatch | None) -> list[TimestampOffset | str | None]:
    return times_of(whole_log(), near)


def near_ordinals(placed: PlacedBatch) -> range:
    ordinal = varied().batches.index(placed)
    return range(max(0, ordinal - 1), min(ordinal + 2, len(varied().batches)))


def test_a_flip_in_what_names_the_partition_is_harmless_or_refused() -> None:
    """No directory is taken for another topic's, and nothing is renamed."""
    expected, sampling = format_topic_id(TOPIC_ID), Sampling()
    for position in range(len(varied().file(METADATA))):
        for bit in sampling.some(range(8), 4):
            disk = varied().disk({METADATA: varied().flipped(METADATA, position, bit)})
            log, failure = opened(disk)
            if log is None:
                assert failure["path"] == METADATA
                assert failure.get("expected_topic_id", expected) == expected
            else:
                assert log.offsets.log_end_offset == varied().end_offset, (position, bit)
                assert is_true(log)
            assert not [name for name in disk.list_directory(DATA_DIR) if name.endswith("-stray")]


def opened(disk: MemoryFileSystem) -> tuple[UnifiedLog | None, dict[str, object]]:
    """The log, or what the error says."""
    try:
        return LogMachine(disk, CONFIG).start(), {}
    except DataDirectoryError as failure:
        return None, dict(failure.fields)


@pytest.mark.parametrize("isolation", [Isolation.TXN_COMMITTED, Isolation.HIGH_WATERMARK])
def test_no_flipped_offset_makes_a_hole_up_to_where_a_reader_may_go(isolation: Isolation) -> None:
    """The stable part of the log ends in its midst, and the damaged batch seems to begin behind that."""
    count, stable_count = 80, 30
    config = LogConfig(remote_storage_enable=False, retention_ms=-1, min_durability=Durability.DISK)
    machine = LogMachine(config=config)
    log = machine.start()
    for number in range(count):
        # One transaction that stays open, for readers of committed records.
        producer = OPEN_TRANSACTION if number == stable_count else BatchProducer()
        log.appender.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v")], producer=producer), 1)
        if number + 1 == stable_count or isolation is Isolation.TXN_COMMITTED:
            log.flusher.flush()
    path, position = f"{PARTITION_DIR}/{0:020}.log", 0
    data = machine.disk.read_file(path)
    for victim in range(stable_count):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position + 7] ^= 1 << bit
            overwrite(machine.disk, path, flipped)
            offset, read = 0, list[int]()
            with suppress(CorruptRecordError):
                while offset < stable_count:
                    found = log.reader.read(offset, 300, isolation)
                    read += [record.offset for record in decode_all(found.batches)]
                    offset = found.next_offset
            # Of two that contradict each other neither is served.
            assert victim - 1 <= offset <= victim, (victim, bit)
            assert read == list(range(offset))
        position += parse_header(data, position).size_in_bytes
