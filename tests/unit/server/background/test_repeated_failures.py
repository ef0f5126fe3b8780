"""A failure that lasts is reported once; one that comes back is reported again."""

from __future__ import annotations

import logging

import pytest

from stratalog.server.background.repeated_failures import RepeatedFailures


def test_a_failure_is_reported_once_as_long_as_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    failures = RepeatedFailures(logging.getLogger("tests"))
    passes: tuple[list[str], ...] = (["a"], ["a", "b", "b"], ["b"], [], ["a"], ["a"])
    told: list[list[str]] = []
    for met in passes:
        caplog.clear()
        failures.tell(met)
        told.append([record.message for record in caplog.records if record.levelno == logging.WARNING])
    assert told == [["a"], ["b"], [], [], ["a"], []]
