"""Errors about numbers out of range have the name and the unit that was typed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog


@pytest.mark.parametrize("by_option", [True, False])
@pytest.mark.parametrize("seconds", [-1, 1 << 31])
def test_a_silence_out_of_range_is_shown_as_it_was_typed(seconds: int, by_option: bool) -> None:
    arguments = ["--max-silence", str(seconds)] if by_option else []
    variables = {} if by_option else {"STRATALOG_MAX_SILENCE": str(seconds)}
    result = CliRunner(env=variables).invoke(
        stratalog, ["server", "start", "--data-dir", "/nowhere", *arguments]
    )
    assert result.exit_code == 2
    assert f"value=`{seconds}`" in result.stderr
    assert ("source=`--max-silence`" if by_option else "source=`STRATALOG_MAX_SILENCE`") in result.stderr
    assert "max_silence_ms" not in result.stderr


@pytest.mark.parametrize("seconds", [1, 5])
def test_a_silence_that_is_too_short_is_shown_as_it_was_typed(seconds: int) -> None:
    result = CliRunner().invoke(
        stratalog, ["server", "start", "--data-dir", "/nowhere", "--max-silence", str(seconds)]
    )
    assert result.exit_code == 1
    assert (
        f"name=`max-silence` value=`{seconds}` allowed=`0 for never, or longer than 5000 ms`" in result.stderr
    )
