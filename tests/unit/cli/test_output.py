"""Tables and JSON documents."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.cli.output import counted, print_json, print_rest, print_table, utc_time, value_document
from stratalog.client import values


def test_a_table_aligns_numbers_right_and_text_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("a", 5), ("longer", 1234)])
    assert capsys.readouterr().out == "NAME    COUNT\na           5\nlonger   1234\n"


def test_a_cut_list_says_how_many_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    print_rest(3, 3, "job")
    print_rest(1_000, 1_001, "job")
    print_rest(1_000, 3_500, "partition", err=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("and 1 more job\n", "and 2,500 more partitions\n")


def test_a_missing_cell_is_a_hyphen(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [(None, "x")])
    assert capsys.readouterr().out.splitlines()[1] == "-  x"


def test_a_value_becomes_a_document_with_every_field() -> None:
    offline = values.OfflinePartition("t", 1, "/d/t-1", "it is damaged")
    topic = values.Topic(
        name="t",
        topic_id="",
        partition_count=2,
        config_overrides={},
        config={"retention.ms": "-1"},
        offline_partitions=(offline,),
        offline_partition_count=0,
    )
    assert value_document(topic) == {
        "name": "t",
        "topic_id": "",
        "partition_count": 2,
        "config_overrides": {},
        "config": {"retention.ms": "-1"},
        "offline_partition_count": 0,
        "offline_partitions": [{"topic": "t", "partition": 1, "path": "/d/t-1", "reason": "it is damaged"}],
    }


def test_members_of_enums_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    cost = values.CompactionCost(4, 1, 5, 3, -1)
    job = values.PlannedJob(values.CompactionReason.DIRTY, ("a", "b"), 5, (), cost)
    print_json(value_document(job))
    assert capsys.readouterr().out == (
        '{"reason": "dirty", "input_names": ["a", "b"], "input_bytes": 5, "runs": [], "cost":'
        ' {"get_request_count": 4, "put_request_count": 1, "read_bytes": 5, "written_bytes": 3,'
        ' "freed_bytes": -1}}\n'
    )


def test_an_error_has_its_code_and_fields() -> None:
    error = DataDirectoryError("the disk failed", partition=3)
    assert value_document(values.RolledPartition(3, -1, error))["error"] == {
        "code": "DATA_DIRECTORY_ERROR",
        "message": "the disk failed",
        "fields": {"partition": "3"},
    }
    assert value_document(values.RolledPartition(3, 7, None))["error"] is None


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 slices"), (1, "1 slice"), (2, "2 slices"), (12_345, "12,345 slices")]
)
def test_a_counted_noun(count: int, text: str) -> None:
    assert counted(count, "slice") == text


def test_a_time_is_in_utc_and_none_is_none() -> None:
    assert utc_time(1_357_034_400_007) == "2013-01-01T10:00:00.007Z"
    assert utc_time(-1) is None


def test_a_time_that_no_calendar_has_is_none() -> None:
    assert utc_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert utc_time(253_402_300_800_000) is None
    assert utc_time(2**63 - 1) is None
