"""Requests of a chain inside one group: in order, and none behind one that failed."""

from __future__ import annotations

import errno

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidRecordError,
    LogStoreError,
    OutOfOrderSequenceError,
    PrecedingAppendFailedError,
    ProducerFencedError,
)
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.record.batch_producer import BatchProducer
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.plain_batches import batch

GARBAGE = b"x" * 70
LOG_PATH = f"{PARTITION_DIR}/{0:020d}.log"


def told(outcomes: list[AppendInfo | LogStoreError]) -> list[int | type[LogStoreError]]:
    """The base offset of each request, or the class of its error."""
    return [one.base_offset if isinstance(one, AppendInfo) else type(one) for one in outcomes]


def sent(producer_id: int, sequence: int, epoch: int = 0) -> bytes:
    return batch(producer=BatchProducer(producer_id, epoch, sequence))


def first_append_fails(requests: list[bytes], chains: list[str | None]) -> list[int | type[LogStoreError]]:
    """The outcomes of a group in segments of 1,000 bytes, of whose writes the first one finds no space."""

    def run(disk: FaultyFileSystem) -> list[int | type[LogStoreError]]:
        log = LogMachine(disk, LogConfig(segment_bytes=1000)).start()
        outcomes = told(log.appender.append_group(requests, 1, None, chains))
        log.check()
        stored = [one for one in outcomes if isinstance(one, int)]
        assert log.offsets.log_end_offset == len(set(stored)), "nothing else is stored"
        return outcomes

    run(whole := FaultyFileSystem())
    appends = [number for number, name in enumerate(whole.trace, 1) if name == f"append {LOG_PATH}"]
    disk = FaultyFileSystem()
    disk.fail_at(appends[0], number=errno.ENOSPC, part=0.5)
    return run(disk)


def test_a_chain_stops_at_its_first_failure_and_the_others_go_on() -> None:
    log = LogMachine().start()
    requests = [batch(), GARBAGE, batch(2), batch(3), batch(4), GARBAGE, batch(5)]
    chains = ["a", "a", "a", "b", None, None, "b"]
    assert told(log.appender.append_group(requests, 1, None, chains)) == [
        0,
        InvalidRecordError,
        PrecedingAppendFailedError,
        1,
        4,
        InvalidRecordError,
        8,
    ]
    assert log.offsets.log_end_offset == 13
    assert told(log.appender.append_group([batch()], 1, None, ["a"])) == [13], "of this group alone"


def test_sequences_are_judged_in_the_order_of_the_chain() -> None:
    log = LogMachine().start()
    requests = [sent(7, 0), sent(9, 0), sent(7, 1), sent(7, 0), sent(7, 5), sent(7, 2), sent(9, 1)]
    chains = ["a", "b", "a", "a", "a", "a", "b"]
    outcomes = log.appender.append_group(requests, 1, None, chains)
    assert told(outcomes) == [0, 1, 2, 0, OutOfOrderSequenceError, PrecedingAppendFailedError, 3]
    assert outcomes[3] == AppendInfo(0, 0, 0, is_duplicate=True), "a copy fails nothing"
    assert log.offsets.log_end_offset == 4


def test_behind_a_write_that_failed_the_next_write_stores_nothing_of_the_chain() -> None:
    """Three of these fill a segment, so the fourth begins another write after the first one has failed."""
    requests = [batch(value_bytes=200)] * 5
    assert first_append_fails(requests, ["a", "b", None, "a", "c"]) == [
        DataDirectoryError,
        DataDirectoryError,
        DataDirectoryError,
        PrecedingAppendFailedError,
        0,
    ]


def test_what_shares_the_failed_write_gets_its_error_and_what_comes_later_is_behind() -> None:
    requests = [batch(value_bytes=200)] * 5
    assert (
        first_append_fails(requests, ["a"] * 5) == [DataDirectoryError] * 3 + [PrecedingAppendFailedError] * 2
    )


def test_a_producer_that_was_fenced_by_a_request_whose_write_failed_may_send_again() -> None:
    requests = [sent(7, 0, epoch=1), sent(7, 0)]
    log = LogMachine().start()
    assert told(log.appender.append_group(requests, 1)) == [0, ProducerFencedError]
    assert first_append_fails(requests, [None, None]) == [DataDirectoryError] * 2


def test_a_segment_that_cannot_be_made_fails_one_request_and_its_chain() -> None:
    def run(disk: FaultyFileSystem) -> list[int | type[LogStoreError]]:
        log = LogMachine(disk, LogConfig(segment_bytes=500)).start()
        return told(log.appender.append_group([batch(value_bytes=300)] * 4, 1, None, ["a", "b", "b", "a"]))

    run(whole := FaultyFileSystem())
    second = f"open_append {PARTITION_DIR}/{1:020d}.log"
    [made] = [number for number, name in enumerate(whole.trace, 1) if name == second]
    disk = FaultyFileSystem()
    disk.fail_at(made, number=errno.ENOSPC)
    assert run(disk) == [0, DataDirectoryError, PrecedingAppendFailedError, 1]
