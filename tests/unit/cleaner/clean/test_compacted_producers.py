"""Idempotent producers of a compacted log: who comes back is known, whatever was made of its batches."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.base.errors import OutOfOrderSequenceError, ProducerFencedError
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_machine import PARTITION

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms
ENDS = ["goes on", "restart", "kill", "kill without snapshots"]


def end(history: CompactedLog, how: str) -> None:
    if how == "kill without snapshots":
        history.log.flusher.flush()
        disk = history.machine.disk
        for path in history.disk_now().contents():
            if path.endswith(".snapshot"):
                disk.unlink(path)
    if how != "goes on":
        history.restart(is_clean=how == "restart")


def request(
    history: CompactedLog,
    sequence: int,
    key: bytes = b"k",
    *,
    epoch: int = 0,
    count: int = 1,
    is_transactional: bool = False,
) -> bytes:
    records = [Record(0, history.now_ms, key, b"%d" % (sequence + delta)) for delta in range(count)]
    return encode_batch(records, producer=BatchProducer(1, epoch, sequence, is_transactional))


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_its_last_batch_is_recognised_and_its_next_one_accepted(how: str, codec: Codec) -> None:
    """Though all that it wrote was superseded long ago."""
    history = CompactedLog(SMALL)
    for number in range(8):
        history.append([Record(0, history.now_ms, b"k", b"%d" % number)] * 3, producer_id=1, codec=codec)
    data, last_offset = history.last_sent[1]
    for _ in range(3):
        history.put("k=other")
        history.machine.clock.advance(RETENTION_MS + 1)
        history.clean_all()
        end(history, how)
        info = history.log.appender.append_as_leader(data, 1)
        assert (info.is_duplicate, info.base_offset, info.last_offset) == (True, last_offset - 2, last_offset)
    with pytest.raises(OutOfOrderSequenceError):
        history.log.appender.append_as_leader(request(history, 25), 1)
    assert not history.log.appender.append_as_leader(request(history, 24), 1).is_duplicate


@pytest.mark.parametrize("how", [*ENDS, "truncation"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_producer_whose_last_batch_is_a_marker_of_a_later_epoch_stays_fenced(
    how: str, *, committed: bool
) -> None:
    """A coordinator writes it that fences the producer, or one that raises the epoch with each marker."""
    history = CompactedLog(SMALL)
    history.log.appender.append_as_leader(request(history, 0, epoch=3, is_transactional=True), 1)
    history.log.appender.append_end_transaction_marker(1, 4, 1, committed=committed, leader_epoch=1)
    for _ in range(4):
        history.put("k=other")
        history.clean_all()
        history.machine.clock.advance(RETENTION_MS + 1)
    if how == "truncation":
        history.put("x=1")
        history.put("x=2")
        assert history.machine.manager is not None
        history.machine.manager.truncate_to(PARTITION, history.log.offsets.log_end_offset - 3)
    else:
        end(history, how)
    assert [(entry.producer_id, entry.epoch) for entry in history.log.producers()] == [(1, 4)]
    with pytest.raises(ProducerFencedError):
        history.log.appender.append_as_leader(request(history, 1, epoch=3), 1)
    assert not history.log.appender.append_as_leader(request(history, 0, epoch=4), 1).is_duplicate
    # Now data tells of the epoch.
    for _ in range(3):
        history.put("k=other")
        history.clean_all()
        history.machine.clock.advance(RETENTION_MS + 1)
    assert not [header for header in history.headers() if header.is_control]
    end(history, "kill without snapshots")
    assert [(entry.producer_id, entry.epoch) for entry in history.log.producers()] == [(1, 4)]


def test_a_sequence_goes_on_behind_the_largest_number_there_is() -> None:
    history = CompactedLog(SMALL)
    largest = 2**31 - 1
    for sequence in (0, 1, 2):
        history.log.appender.append_as_leader(request(history, sequence), 1)
    history.log.appender.append_as_leader(request(history, 0, epoch=1, count=1), 1)
    history.put("k=other")
    history.clean_all()
    history.restart(is_clean=False)
    wrapping = encode_batch(
        [Record(0, history.now_ms, b"k", b"w")] * 4, producer=BatchProducer(2, 0, largest - 1, False)
    )
    history.log.appender.append_as_leader(wrapping, 1)
    history.put("k=other")
    history.clean_all()
    history.restart(is_clean=False)
    assert history.log.appender.append_as_leader(wrapping, 1).is_duplicate
    following = encode_batch([Record(0, history.now_ms, b"k", b"w")], producer=BatchProducer(2, 0, 2, False))
    assert not history.log.appender.append_as_leader(following, 1).is_duplicate


def test_the_batch_of_a_producer_that_was_forgotten_goes() -> None:
    history = CompactedLog(SMALL)
    for producer_id in range(10):
        history.append([Record(0, history.now_ms, b"k", b"v")], producer_id=producer_id)
    history.log.set_producer_id_expiration_ms(1000)
    history.machine.clock.advance(2000)
    history.log.remove_expired_producers()
    history.put("k=last")
    history.clean_all()
    history.put("k=really")
    history.clean_all()
    assert not [header for header in history.headers() if header.has_producer_id]
