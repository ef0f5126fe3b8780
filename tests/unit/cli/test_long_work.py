"""The line of progress on a terminal."""

from __future__ import annotations

import io
import re
import sys
from uuid import UUID

import pytest

from stratalog.cli.long_work import progress_bar
from stratalog.client import values
from stratalog.client.values.conversion import value_of
from stratalog.compaction.compaction_progress import CompactionProgress, Transfer
from stratalog.server.background.tier_compaction import operation_progress
from stratalog.server.operations.operation import OperationKind, OperationView
from stratalog.server.rpc.admin.operation_convert import view_message

_STYLES = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The line that a terminal of this width shows for a compaction under way."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    progress = CompactionProgress(
        done_job_count=12,
        job_count=345,
        done_partition_count=6_789,
        partition_count=98_765,
        transfer=Transfer(read_bytes=1_200_000_000),
        planned_read_bytes=34_500_000_000,
        remaining_ms=7_384_000,
    )
    view = OperationView(UUID(int=7), 1, OperationKind.COMPACTION, (), 1_000)
    message = view_message(view._replace(progress=operation_progress(progress)), lambda _: True)
    with progress_bar() as show:
        show(value_of(values.Operation, message))
    lines = re.split("[\r\n]", _STYLES.sub("", terminal.getvalue()))
    return [line for line in lines if "GB" in line][-1]


def test_a_narrow_terminal_shows_bytes_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    line = shown_line(80, monkeypatch)
    assert len(line) <= 80
    assert "1.2/34.5 GB" in line
    assert "2:03:04 left, 12/345 jobs" in line


def test_a_wide_terminal_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    line = shown_line(240, monkeypatch)
    for text in ("1.2/34.5 GB", "2:03:04 left", "6,789/98,765 partitions", "0 kept", "0 GETs", "0 PUTs"):
        assert text in line
