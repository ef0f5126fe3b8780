"""Tables and JSON documents."""

from __future__ import annotations

import json

import pytest

from stratalog.cli.output import message_document, print_json, print_table
from stratalog.v1 import admin_pb2


def test_a_table_aligns_numbers_right_and_text_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("a", 5), ("longer", 1234)])
    assert capsys.readouterr().out == "NAME    COUNT\na           5\nlonger   1234\n"


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [])
    assert capsys.readouterr().out == "NAME  COUNT\n"


def test_a_missing_cell_is_a_hyphen(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [(None, "x")])
    assert capsys.readouterr().out.splitlines()[1] == "-  x"


def test_a_message_becomes_a_document_with_every_field() -> None:
    topic = admin_pb2.Topic(name="t", partition_count=2, config_overrides={"retention.ms": "-1"})
    assert message_document(admin_pb2.ListTopicsResponse(topics=[topic])) == {
        "topics": [
            {
                "name": "t",
                "topic_id": "",
                "partition_count": 2,
                "config_overrides": {"retention.ms": "-1"},
                "config": {},
            }
        ]
    }


def test_numbers_of_64_bits_stay_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(message_document(admin_pb2.DeleteRecordsResponse(log_start_offset=1 << 60)))
    assert json.loads(capsys.readouterr().out) == {"log_start_offset": 1 << 60}
