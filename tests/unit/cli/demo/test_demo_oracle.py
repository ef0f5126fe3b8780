"""The demonstration's checks can fail: each of them notices what it is there for."""

from __future__ import annotations

from collections import Counter

import pytest

from stratalog.cli.demo import flights
from stratalog.cli.demo.oracle import (
    Check,
    compare_state,
    compare_values,
    last_value_per_key,
    values_without_key,
)
from stratalog.cli.demo.places import DemoPlaces
from stratalog.cli.demo.report import DemoReport

EXPECTED: dict[bytes, bytes | None] = {b"a": b"1", b"b": None}


@pytest.fixture(scope="module")
def data() -> flights.Flights:
    return flights.load(5_000)


def test_the_oracle_agrees_with_a_plain_fold_of_the_records(data: flights.Flights) -> None:
    folded = {record.key: record.value for record in data.records if record.key is not None}
    assert last_value_per_key(data.table) == folded
    assert None in folded.values(), "some planes end with a cancelled flight"
    assert values_without_key(data.table) == Counter(
        record.value for record in data.records if record.key is None
    )


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ({b"a": b"1", b"b": None}, True),
        ({b"a": b"1"}, True),
        ({b"a": b"0", b"b": None}, False),
        ({b"b": None}, False),
        ({b"a": b"1", b"b": b"back"}, False),
        ({b"a": b"1", b"b": None, b"c": b"strange"}, False),
    ],
)
def test_states_are_compared_key_by_key(found: dict[bytes, bytes | None], ok: bool) -> None:
    assert compare_state("state", EXPECTED, found).ok is ok


@pytest.mark.parametrize(
    ("found", "ok"), [([b"x", b"x", b"y"], True), ([b"x", b"y"], False), ([b"x", b"x", b"y", b"y"], False)]
)
def test_values_are_compared_as_often_as_they_occur(found: list[bytes], ok: bool) -> None:
    assert compare_values("values", Counter([b"x", b"x", b"y"]), found).ok is ok


def test_a_report_without_checks_or_with_a_failed_one_is_not_ok() -> None:
    good, bad = Check("one", True, ""), Check("two", False, "")
    for checks, ok in (([], False), ([good], True), ([good, bad], False)):
        assert DemoReport(checks=checks).ok is ok


def test_a_store_of_ones_own_below_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    # The store is opened, though not asked: without credentials it would be refused.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    places = DemoPlaces(None, "s3://bucket/prefix/?endpoint=http://127.0.0.1:1")
    places.is_kept = True
    assert places.store_url.startswith("s3://bucket/prefix/demo-")
    assert places.store_url.endswith("?endpoint=http://127.0.0.1:1")
    places.root.rmdir()
