"""Records as JSON lines: what one side prints the other reads, byte for byte."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError
from stratalog.cli.records.record_json import bytes_from_json, bytes_to_json, line_of, parse_line
from stratalog.record.record import Record

MAX_INT64 = (1 << 63) - 1
NULLABLE = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=3).map(tuple)
RECORDS = st.builds(
    Record,
    offset=st.integers(0, MAX_INT64),
    timestamp_ms=st.integers(0, MAX_INT64),
    key=NULLABLE,
    value=NULLABLE,
    headers=HEADERS,
)


@given(partition=st.integers(0, 1000), record=RECORDS)
def test_a_printed_record_reads_back(partition: int, record: Record) -> None:
    line = line_of(partition, record)
    assert "\n" not in line
    read = parse_line(line)
    assert (read.key, read.value, read.headers) == (record.key, record.value, record.headers)
    assert (read.partition, read.timestamp_ms) == (partition, record.timestamp_ms)


@given(data=st.binary(max_size=64))
def test_bytes_are_text_exactly_where_they_are_utf8(data: bytes) -> None:
    shown = bytes_to_json(data)
    try:
        assert shown == data.decode()
    except UnicodeDecodeError:
        assert shown == {"base64": base64.b64encode(data).decode()}
    assert bytes_from_json(shown, "value") == data


def test_a_record_in_full() -> None:
    record = Record(7, 1357034400000, b"N14228", b"\xff\x00", (("source", b"csv"), ("none", None)))
    assert json.loads(line_of(3, record)) == {
        "key": "N14228",
        "value": {"base64": "/wA="},
        "partition": 3,
        "offset": 7,
        "timestamp": 1357034400000,
        "headers": [{"key": "source", "value": "csv"}, {"key": "none", "value": None}],
    }


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"key": "a"}', "needs a value"),
        ('{"value": 1}', "value must be a string"),
        ('{"value": {"base64": "?"}}', "base64 of value is malformed"),
        ('{"value": {"base64": "", "more": 1}}', "value must be a string"),
        ('{"value": "a", "vlaue": "b"}', "unknown field"),
        ('{"value": "a", "timestamp": -2}', "timestamp must be a whole number"),
        ('{"value": "a", "partition": true}', "partition must be a whole number"),
        ('{"value": "a", "timestamp": 9223372036854775808}', "timestamp must be a whole number"),
        ('{"value": "a", "headers": {"a": "b"}}', "headers must be a list"),
        ('{"value": "a", "headers": [{"value": "b"}]}', "headers must be a list"),
        ('{"value": "a", "headers": [{"key": "k", "value": 3}]}', "a header's value must be"),
        ('{"value": "\\ud800"}', "surrogate"),
        ('{"value": "a", "headers": [{"key": "\\ud800"}]}', "surrogate"),
        ("1" * 5000, "number that is too long"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: str, part: str) -> None:
    with pytest.raises(InvalidRequestError, match=part):
        parse_line(line)


@given(text=st.text(max_size=60))
def test_garbage_ends_in_a_clear_error_only(text: str) -> None:
    try:
        parse_line(text)
    except InvalidRequestError:
        pass
