"""Local logs under everything at once: for seconds, or by `make torture` for ten minutes with a new seed."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.torture.log_torture import THREAD_COUNT, LogTorture

DURATION_S = float(os.environ.get("STRATALOG_TORTURE_S", "5"))
SEED = int(os.environ.get("STRATALOG_TORTURE_SEED", "1"))


@pytest.mark.timeout(300 + 3 * DURATION_S)
def test_every_reader_ends_with_the_last_value_of_each_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(THREAD_COUNT) as threads:
        report = LogTorture(threads, str(tmp_path), SEED).run(DURATION_S)
    with capsys.disabled():
        sys.stdout.write(f"\nseed {SEED}, {DURATION_S:g} s: {report}\n")
    assert report.has_everything, "a run in which something never happened shows little"
