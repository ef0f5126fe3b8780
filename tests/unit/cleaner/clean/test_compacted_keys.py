"""Keys, values, offsets and times at their limits, and leader epochs: what cleans leave of them."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog

WIDE = dataclasses.replace(CONFIG, segment_bytes=1 << 24)
SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms


def pairs(history: CompactedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in history.read()]


def test_an_empty_key_is_a_key_and_an_empty_value_is_a_value() -> None:
    history = CompactedLog(WIDE)
    history.put("=1", "a=")
    history.put("=", "a=x")
    history.put("b=x", "b=")
    history.clean_all()
    history.machine.clock.advance(10 * RETENTION_MS)
    history.put("z=z")
    history.clean_all()
    assert pairs(history) == [(2, b"", b""), (3, b"a", b"x"), (5, b"b", b""), (6, b"z", b"z")]


@pytest.mark.parametrize("delete_retention_ms", [0, 1, 2**63 - 1])
def test_times_at_their_limits_stay_what_they_are(delete_retention_ms: int) -> None:
    history = CompactedLog(
        dataclasses.replace(
            SMALL, message_timestamp_after_max_ms=2**63 - 1, delete_retention_ms=delete_retention_ms
        )
    )
    for number, time_ms in enumerate((0, 2**62, 2**63 - 2, 1, NO_TIMESTAMP)):
        history.append(
            [Record(0, time_ms, b"k%d" % number, None), Record(0, min(time_ms, 5), b"o%d" % number, b"v")]
        )
    before = history.read()
    history.clean_all()
    assert history.read() == before
    history.put("z=1")
    history.machine.clock.advance(1)
    history.clean_all()
    values_only = [one for one in before if one.value is not None]
    assert history.read()[:-1] == (before if delete_retention_ms == 2**63 - 1 else values_only)
