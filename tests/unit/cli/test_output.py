"""Tables and JSON documents."""

from __future__ import annotations

import pytest

from stratalog.cli.output import (
    counted,
    enum_word,
    kafka_word,
    message_document,
    print_table,
    utc_time,
)
from stratalog.v1 import admin_pb2


def test_a_table_aligns_numbers_right_and_text_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("a", 5), ("longer", 1234)])
    assert capsys.readouterr().out == "NAME    COUNT\na           5\nlonger   1234\n"


def test_a_missing_cell_is_a_hyphen(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [(None, "x")])
    assert capsys.readouterr().out.splitlines()[1] == "-  x"


def test_a_message_becomes_a_document_with_every_field() -> None:
    topic = admin_pb2.TopicListing(name="t", partition_count=2, config_overrides={"retention.ms": "-1"})
    assert message_document(admin_pb2.ListTopicsResponse(topics=[topic])) == {
        "topics": [
            {
                "name": "t",
                "topic_id": "",
                "partition_count": 2,
                "config_overrides": {"retention.ms": "-1"},
                "offline_partition_count": 0,
            }
        ],
        "next_page_token": "",
    }


def test_values_of_enums_are_words_without_their_prefix() -> None:
    kind = admin_pb2.CLEANING_FAILURE_KIND_FULL_DISK
    assert message_document(admin_pb2.UncleanablePartition(kind=kind))["kind"] == "full-disk"
    assert enum_word(admin_pb2.LogDirState.DESCRIPTOR, 0) == "unspecified"
    assert kafka_word(admin_pb2.ConfigSource.DESCRIPTOR, 4) == "DEFAULT_CONFIG"


def test_a_value_that_this_version_does_not_know_is_its_number() -> None:
    assert enum_word(admin_pb2.LogDirState.DESCRIPTOR, 99) == "99"


def test_a_message_that_is_not_set_is_null() -> None:
    assert message_document(admin_pb2.PartitionLog())["offline"] is None
    offline = admin_pb2.OfflinePartition(partition=1)
    assert message_document(admin_pb2.PartitionLog(offline=offline))["offline"] == message_document(offline)


def test_maps_are_sorted_as_the_wire_has_no_order() -> None:
    names = [f"key-{number}" for number in range(50)]
    topic = admin_pb2.Topic(config=dict.fromkeys(reversed(names), "x"))
    config = message_document(topic)["config"]
    assert isinstance(config, dict)
    assert [*config] == sorted(names)


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
