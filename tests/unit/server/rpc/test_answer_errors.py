"""Errors of all partitions of a request fit an answer, and the first ones are whole."""

from __future__ import annotations

from uuid import UUID

from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError, NotOwnerError
from stratalog.base.types import TopicPartition
from stratalog.client.errors import error_of_status
from stratalog.server.rpc.answer_errors import MAX_ERROR_BYTES, AnswerErrors
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.v1 import log_pb2, partition_pb2

CLIENT_LIMIT_BYTES = 4 << 20
PARTITION_COUNT = 10_000
NAME = "n" * 249
TEXT = "the log cannot be opened; look at the directory, restore its files, and start the server again " * 2
LARGEST = (1 << 63) - 1


def statuses(count: int) -> list[Status]:
    errors = AnswerErrors(ErrorStatuses(SystemClock(), SequentialIds()))
    return [
        errors.status(DataDirectoryError(TEXT, path="/d", size=LARGEST), "Roll", TopicPartition(NAME, number))
        for number in range(count)
    ]


def test_the_first_errors_are_whole_and_the_others_have_their_reason() -> None:
    made = statuses(PARTITION_COUNT)
    first, last = error_of_status(made[0]), error_of_status(made[-1])
    assert first.message == TEXT
    assert first.fields["topic"] == NAME
    assert type(first) is type(last) is DataDirectoryError
    assert last.message != TEXT
    assert last.fields == {}
    whole_count = sum(bool(status.message) for status in made)
    whole_bytes = sum(status.ByteSize() for status in made[:whole_count])
    assert MAX_ERROR_BYTES <= whole_bytes <= MAX_ERROR_BYTES + made[0].ByteSize()
    assert not any(status.message for status in made[whole_count:])


def test_a_few_errors_are_whole() -> None:
    assert all(status.message == TEXT for status in statuses(100))


def test_a_short_error_of_another_owner_is_retriable_for_those_who_follow() -> None:
    errors = AnswerErrors(ErrorStatuses(SystemClock(), SequentialIds()))
    refusal = NotOwnerError(TEXT, owner=NAME, endpoint="h:1", epoch=3)
    made = [errors.status(refusal, "Fetch", TopicPartition(NAME, 0)) for _ in range(1000)]
    assert isinstance(error_of_status(made[-1]), NotOwnerError)
    info = ErrorInfo()
    made[-1].details[0].Unpack(info)
    assert (info.reason, dict(info.metadata)) == (NotOwnerError.code, {})


def test_answers_about_all_partitions_fit_a_client() -> None:
    made = statuses(PARTITION_COUNT)
    fetched = log_pb2.FetchResponse()
    for number, status in enumerate(made):
        one = fetched.partitions.add(
            topic=NAME,
            partition=number,
            fetch_offset=LARGEST,
            next_fetch_offset=LARGEST,
            last_epoch=-1,
            error=status,
        )
        if status.message:
            one.topic_id = str(UUID(int=0))
            one.log_start_offset = one.high_watermark = one.last_stable_offset = LARGEST
    assert fetched.ByteSize() < CLIENT_LIMIT_BYTES
    for answer in (
        partition_pb2.RollResponse(
            partitions=[
                partition_pb2.RolledPartition(partition=number, active_base_offset=-1, error=status)
                for number, status in enumerate(made)
            ]
        ),
        partition_pb2.FlushResponse(
            partitions=[
                partition_pb2.FlushedPartition(partition=number, recovery_point=-1, error=status)
                for number, status in enumerate(made)
            ]
        ),
        partition_pb2.DeleteRecordsResponse(
            partitions=[
                partition_pb2.DeletedRecords(partition=number, log_start_offset=-1, error=status)
                for number, status in enumerate(made)
            ]
        ),
    ):
        assert answer.ByteSize() < CLIENT_LIMIT_BYTES
