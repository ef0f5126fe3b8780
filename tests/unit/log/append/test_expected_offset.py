"""Requests that name their offset: applied only there, also inside a group that is written at once."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError, UnexpectedOffsetError
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.record.batch_producer import BatchProducer
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.plain_batches import batch

LOG_PATH = f"{PARTITION_DIR}/{0:020d}.log"


def placed(outcomes: list[AppendInfo | LogStoreError]) -> list[int | tuple[object, object]]:
    """The base offset of each request, or the fields of its refusal."""
    found: list[int | tuple[object, object]] = []
    for outcome in outcomes:
        if isinstance(outcome, AppendInfo):
            found.append(outcome.base_offset)
        else:
            assert type(outcome) is UnexpectedOffsetError
            found.append((outcome.fields["expected_offset"], outcome.fields["log_end_offset"]))
    return found


def test_each_is_judged_behind_those_before_it_in_the_group() -> None:
    log = LogMachine().start()
    log.appender.append_as_leader(batch(3), 1)
    outcomes = log.appender.append_group(
        [batch(2), batch(1), batch(1), batch(4), batch(1)], 1, [None, 3, 5, 6, 6]
    )
    assert placed(outcomes) == [3, (3, 5), 5, 6, (6, 10)]
    assert log.offsets.log_end_offset == 10
    assert placed(log.appender.append_group([batch(1)], 1, [10])) == [10]
    log.check()


def test_a_refused_request_stores_nothing_and_leaves_its_producer_alone() -> None:
    log = LogMachine().start()
    first = batch(producer=BatchProducer(7, 0, 0))
    assert placed(log.appender.append_group([first], 1, [1])) == [(1, 0)]
    assert log.producers() == ()
    assert placed(log.appender.append_group([first], 1, [0])) == [0]
    log.check()


def test_a_request_that_was_stored_before_is_answered_wherever_the_log_ends_now() -> None:
    log = LogMachine().start()
    sent = batch(2, producer=BatchProducer(7, 0, 0))
    # One is stored, and one waits for the same write.
    outcomes = log.appender.append_group([sent, sent, batch(1)], 1, [0, 0, 2])
    assert placed(outcomes) == [0, 0, 2]
    [again] = log.appender.append_group([sent], 1, [0])
    assert again == AppendInfo(0, 1, 0, is_duplicate=True)
    assert log.offsets.log_end_offset == 3


def test_a_rolled_segment_changes_no_offset() -> None:
    log = LogMachine(config=LogConfig(segment_bytes=1024)).start()
    requests = [batch(value_bytes=300)] * 8
    assert placed(log.appender.append_group(requests, 1, list(range(8)))) == list(range(8))
    assert len(log.local_log.segments) > 2


def test_a_place_behind_a_write_that_failed_is_not_taken() -> None:
    """The group is written twice, because the segment rolls in between; the first write fails."""

    def run(disk: FaultyFileSystem) -> list[AppendInfo | LogStoreError]:
        log = LogMachine(disk, LogConfig(segment_bytes=1024)).start()
        requests = [
            batch(value_bytes=300),
            batch(value_bytes=300),
            batch(value_bytes=300),
            batch(value_bytes=300),
        ]
        outcomes = log.appender.append_group(requests, 1, [None, 1, 2, 3])
        log.check()
        return outcomes

    run(whole := FaultyFileSystem())
    appends = [number for number, name in enumerate(whole.trace, 1) if name == f"append {LOG_PATH}"]
    disk = FaultyFileSystem()
    disk.fail_at(appends[0], number=errno.ENOSPC, part=0.5)
    outcomes = run(disk)
    kinds = [type(outcome) for outcome in outcomes]
    assert DataDirectoryError in kinds
    for expected, outcome in zip([None, 1, 2, 3], outcomes, strict=True):
        if isinstance(outcome, AppendInfo):
            assert expected in (None, outcome.base_offset), "no request is applied elsewhere"


def test_a_refusal_that_counts_on_a_waiting_request_fails_with_it() -> None:
    def run(disk: FaultyFileSystem) -> list[AppendInfo | LogStoreError]:
        log = LogMachine(disk).start()
        log.appender.append_as_leader(batch(1), 1)
        return log.appender.append_group([batch(2), batch(1)], 1, [None, 1])

    whole = FaultyFileSystem()
    assert placed(run(whole)) == [1, (1, 3)]
    appends = [number for number, name in enumerate(whole.trace, 1) if name == f"append {LOG_PATH}"]
    disk = FaultyFileSystem()
    disk.fail_at(appends[-1], number=errno.ENOSPC, part=0.5)
    assert [type(outcome) for outcome in run(disk)] == [DataDirectoryError] * 2, "the log still ends at 1"


@pytest.mark.parametrize("expected", [None, 0])
def test_a_request_that_is_no_good_has_its_own_error(expected: int | None) -> None:
    log = LogMachine().start()
    [outcome] = log.appender.append_group([b"x" * 70], 1, [expected])
    assert isinstance(outcome, LogStoreError)
    assert not isinstance(outcome, UnexpectedOffsetError)
