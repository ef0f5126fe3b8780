"""A server under producers, readers, restarts, a slow disk and a store that fails: by `make torture` for an
hour, or for `STRATALOG_SOAK_S` seconds; in CI for seconds, which show that the soak itself works.

Latency, memory and descriptors stay level from the second fifth of the time to the last one, and no
acknowledged record is lost, doubled or out of order.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stratalog.base.types import Durability
from tests.support.torture.process_use import IS_SHOWN
from tests.support.torture.soak import Fifth, Soak

DURATION_S = float(os.environ.get("STRATALOG_SOAK_S", "5"))
SEED = int(os.environ.get("STRATALOG_TORTURE_SEED", "1"))
IS_LONG = DURATION_S >= 300
"""Whether it lasts long enough for fifths to be compared."""

GROWTH_BYTES = 48 << 20
"""Memory that may be more in the last fifth: caches fill, and the metadata of the log grows."""
GROWTH_COUNT = 16
"""Descriptors and threads that may be more: pools of threads grow as they are needed, and have bounds."""
LATENCY_RATIO = 2.0
LATENCY_MS = 20.0
"""p50 may be so many times as long as before, or so much longer, times the slowness of the machine: machines
of tests have other work."""
TAIL_RATIO = 4.0
TAIL_MS = 250.0
"""The same for p99."""


@pytest.mark.skipif(not IS_SHOWN, reason="it reads /proc")
@pytest.mark.timeout(300 + 3 * DURATION_S)
async def test_a_server_stays_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = await Soak(tmp_path, SEED, DURATION_S).run()
    with capsys.disabled():
        sys.stdout.write(f"\nsoak, seed {SEED}, {DURATION_S:g} s\n{report}\n")
    assert report.kill_count > 0
    assert min(report.slow_disk_count, report.failing_store_count) > 0
    assert all(min(one.acknowledged_count, one.tailed_count) > 0 for one in report.topics)
    assert sum(one.cold_count for one in report.topics) > 0
    assert any(one.uses for one in report.fifths)
    if IS_LONG:
        assert min(report.stop_count, *(len(one.uses) for one in report.fifths)) > 0
        require_level(report.fifths[1], report.fifths[-1])


def require_level(earlier: Fifth, later: Fifth) -> None:
    before, after = earlier.use, later.use
    assert after.resident_bytes <= before.resident_bytes + GROWTH_BYTES
    assert after.descriptor_count <= before.descriptor_count + GROWTH_COUNT
    assert after.thread_count <= before.thread_count + GROWTH_COUNT
    for durability in Durability:
        for percent, ratio, more_ms in ((50, LATENCY_RATIO, LATENCY_MS), (99, TAIL_RATIO, TAIL_MS)):
            was_ms, is_ms = (one.percentile_ms(durability, percent) for one in (earlier, later))
            allowed_ms = later.slowness(earlier) * max(ratio * was_ms, was_ms + more_ms)
            assert is_ms <= allowed_ms, (durability, percent, was_ms, is_ms)
