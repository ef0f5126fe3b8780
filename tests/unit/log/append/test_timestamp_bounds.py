"""Times too far from now are refused, the first of them by name; a list comprehension is the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidTimestampError
from stratalog.log.append.log_validator import validate_append
from stratalog.log.log_config import LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import TimestampType
from stratalog.record.record import Record

NOW_MS = 10_000
HOUR_MS = 60 * 60 * 1000


def refusal(times: list[list[int]], config: LogConfig, codec: Codec = Codec.NONE) -> dict[str, object] | None:
    """The fields of the error that a request of these batches gets."""
    request = b"".join(
        encode_batch([Record(0, time, b"k", b"v") for time in batch], codec=codec) for batch in times
    )
    try:
        validate_append(request, config, NOW_MS)
    except InvalidTimestampError as error:
        return error.fields
    return None


@given(
    st.lists(st.lists(st.integers(-3, 40), min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(0, 25),
    st.integers(0, 25),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_the_first_record_out_of_bounds_is_named(
    times: list[list[int]], before_ms: int, after_ms: int, codec: Codec
) -> None:
    config = LogConfig(message_timestamp_before_max_ms=before_ms, message_timestamp_after_max_ms=after_ms)
    offset_ms = NOW_MS - 20
    absolute = [[time if time < 0 else offset_ms + time for time in batch] for batch in times]
    earliest_ms, latest_ms = NOW_MS - before_ms, NOW_MS + after_ms
    outside = [
        (batch_index, record_index, time)
        for batch_index, batch in enumerate(absolute)
        for record_index, time in enumerate(batch)
        if time != -1 and (time < earliest_ms or time > latest_ms)
    ]
    expected: dict[str, object] | None = None
    if outside:
        batch_index, record_index, timestamp_ms = outside[0]
        expected = {
            "batch_index": batch_index,
            "record_index": record_index,
            "timestamp_ms": timestamp_ms,
            "earliest_ms": earliest_ms,
            "latest_ms": latest_ms,
        }
    assert refusal(absolute, config, codec) == expected


@pytest.mark.parametrize(
    ("timestamp_ms", "is_refused"),
    [
        (NOW_MS + HOUR_MS, False),
        (NOW_MS + HOUR_MS + 1, True),
        (0, False),
        (-1, False),
        (-2, True),
        (-(2**63), True),
        (2**63 - 1, True),
    ],
)
def test_without_configuration_an_hour_ahead_and_everything_behind_is_fine(
    timestamp_ms: int, is_refused: bool
) -> None:
    assert (refusal([[timestamp_ms]], LogConfig()) is not None) == is_refused


def test_where_the_log_takes_its_own_times_the_producers_are_not_looked_at() -> None:
    config = LogConfig(
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        message_timestamp_before_max_ms=0,
        message_timestamp_after_max_ms=0,
    )
    assert refusal([[-5, 2**60]], config) is None


def test_a_late_offender_among_many_records_without_a_time_is_found() -> None:
    times = [-1] * 5000 + [NOW_MS - 8]
    config = LogConfig(message_timestamp_before_max_ms=7)
    fields = refusal([times], config)
    assert fields is not None
    assert (fields["record_index"], fields["timestamp_ms"]) == (5000, NOW_MS - 8)
    assert refusal([times], LogConfig(message_timestamp_before_max_ms=8)) is None
