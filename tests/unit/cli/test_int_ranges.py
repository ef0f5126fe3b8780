"""Errors about numbers out of range have the name and the unit that was typed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stratalog.cli.int_ranges import LEAST_SILENCE_S
from stratalog.cli.main import stratalog
from stratalog.server.configuration.settings import ServerSettings


@pytest.mark.parametrize("by_option", [True, False])
@pytest.mark.parametrize("seconds", [-1, 1, 5, 1 << 31])
def test_a_silence_that_is_too_short_is_shown_as_it_was_typed(seconds: int, by_option: bool) -> None:
    arguments = ["--max-silence", str(seconds)] if by_option else []
    result = CliRunner(env={"STRATALOG_MAX_SILENCE": str(seconds)}).invoke(
        stratalog, ["server", "start", "--data-dir", "/nowhere", *arguments]
    )
    assert result.exit_code == 2
    assert "--max-silence" in result.output
    assert str(seconds) in result.output
    assert "max_silence_ms" not in result.output


def test_the_least_silence_is_that_of_a_server() -> None:
    least = ServerSettings(data_dir="d", max_silence_ms=LEAST_SILENCE_S * 1000)
    assert least.max_silence_ms - 1000 <= least.head_refresh_ms
