"""`check` proves what decides about aborted records: an index that says another thing does not pass."""

from __future__ import annotations

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from tests.support.logs.log_machine import LogMachine

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1)
EXPECTED = [AbortedTransaction(1, 2, 9, 4), AbortedTransaction(2, 4, 10, 11)]


def of_two_aborts() -> UnifiedLog:
    """Two transactions that overlap; records of both, before them and between, belong to others."""
    log = LogMachine(config=CONFIG).start()
    records = [Record(0, DEFAULT_NOW_MS, b"k", b"v")] * 2
    log.appender.append_as_leader(encode_batch(records), 1)
    for producer_id in (1, 2):
        producer = BatchProducer(producer_id, 0, 0, True)
        log.appender.append_as_leader(encode_batch(records, producer=producer), 1)
    log.appender.append_as_leader(encode_batch(records[:1]), 1)
    for producer_id in (1, 2):
        producer = BatchProducer(producer_id, 0, 2, True)
        log.appender.append_as_leader(encode_batch(records[:1], producer=producer), 1)
    for producer_id in (1, 2):
        log.appender.append_end_transaction_marker(producer_id, 0, 0, committed=False, leader_epoch=1)
    return log


def replace_last(log: UnifiedLog, changed: list[AbortedTransaction]) -> None:
    index = TransactionIndex(0)
    for entry in changed:
        index.append(entry)
    log.local_log.segments.active.indexes().transaction_index = index


def test_true_entries_pass() -> None:
    log = of_two_aborts()
    assert list(log.reader.aborted_transactions(0, log.offsets.log_end_offset)) == EXPECTED
    replace_last(log, EXPECTED)
    log.check()


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize(
    ("field", "difference"),
    [
        *(("first_offset", difference) for difference in (-2, 1, 2, 5)),
        ("producer_id", 2),
        # Behind the marker, of both.
        ("last_stable_offset", 7),
        ("last_stable_offset", 12),
    ],
)
def test_an_entry_that_says_another_thing_does_not_pass(ordinal: int, field: str, difference: int) -> None:
    log = of_two_aborts()
    values = EXPECTED[ordinal]._asdict()
    values[field] += difference
    changed = list(EXPECTED)
    changed[ordinal] = AbortedTransaction(**values)
    replace_last(log, changed)
    with pytest.raises(AssertionError):
        log.check()


def test_a_stable_offset_just_behind_the_marker_is_the_highest_that_passes() -> None:
    log = of_two_aborts()
    for last_stable_offset in (11, 12):
        replace_last(log, [EXPECTED[0], EXPECTED[1]._replace(last_stable_offset=last_stable_offset)])
        if last_stable_offset == 11:
            log.check()
    with pytest.raises(AssertionError):
        log.check()
