"""The log has what an answer leaves out."""

from __future__ import annotations

import logging

import pytest

from stratalog.base.errors import AuthorizationFailedError, DataDirectoryError, OffsetOutOfRangeError
from stratalog.server.rpc.error_statuses import (
    MAX_LINE_COUNT,
    MAX_NOTE_LENGTH,
    REPEAT_PERIOD_S,
    ErrorStatuses,
)
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.service.error_details import error_info


def damage(path: str = "/data/t-0") -> DataDirectoryError:
    return DataDirectoryError("the disk failed; repair it", path=path, reason="[Errno 5]", topic="t")


class Answers:
    """Statuses with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.statuses = ErrorStatuses(self.clock, SequentialIds())


def test_a_defect_is_logged_with_its_traceback_and_the_id_of_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = KeyError("the secret text")
    sent = Answers().statuses.status(error, "Fetch")
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    error_id = error_info(sent).metadata["error_id"]
    assert error_id in record.getMessage()
    assert error_id in sent.message
    assert b"secret" not in sent.SerializeToString()
    assert b"KeyError" not in sent.SerializeToString()


def test_two_defects_have_two_ids(caplog: pytest.LogCaptureFixture) -> None:
    statuses = Answers().statuses
    ids = {error_info(statuses.status(ValueError(), "Fetch")).metadata["error_id"] for _ in range(2)}
    assert len(ids) == len(caplog.records) == 2


def test_an_error_that_is_answered_whole_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Answers().statuses.status(OffsetOutOfRangeError("gone", offset=3), "Fetch")
    assert not caplog.records


def test_an_error_that_loses_fields_is_logged_whole_and_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = Answers()
    for _ in range(5):
        sent = answers.statuses.status(damage(), "Fetch")
        assert dict(error_info(sent).metadata) == {"topic": "t"}
    [record] = caplog.records
    assert str(damage()) in record.getMessage()
    answers.statuses.status(damage("/data/t-1"), "Fetch")
    assert len(caplog.records) == 2
    answers.clock.advance(round(REPEAT_PERIOD_S * 1000))
    answers.statuses.status(damage(), "Fetch")
    assert len(caplog.records) == 3


def test_a_refusal_is_one_short_line_and_one_for_each_caller(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers()
    for number in range(5):
        topic = f"t\nERROR a line of the caller's {number}" + "x" * 100_000
        answers.statuses.note("a call of ours was refused", AuthorizationFailedError("no", topic=topic))
    answers.statuses.note("a call of theirs was refused", AuthorizationFailedError("no", topic="t"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "ours" in first
    assert "\n" not in first
    assert len(first) < 2 * MAX_NOTE_LENGTH
    assert second == "a call of theirs was refused, code=`AUTHORIZATION_FAILED`: no topic=`t`"


def test_the_number_of_different_lines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers()
    for number in range(MAX_LINE_COUNT + 5):
        answers.statuses.status(damage(str(number)), "Fetch")
    assert len(caplog.records) == MAX_LINE_COUNT
    answers.clock.advance(round(REPEAT_PERIOD_S * 1000))
    answers.statuses.status(damage("another"), "Fetch")
    assert len(caplog.records) == MAX_LINE_COUNT + 1
