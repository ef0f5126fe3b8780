"""The options of the source that an export takes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stratalog.base.errors import InvalidConfigError
from stratalog.cli.spark.export_command import export


@pytest.mark.parametrize(
    "option", ["server=log:9190", "Topic=t", "isolationLevel=read_committed", "partition=0"]
)
def test_an_option_that_an_export_would_not_heed_is_refused(option: str) -> None:
    words = ["orders", "--to", "/nowhere", "--store", "file:///nowhere", "--option", option]
    ended = CliRunner().invoke(export, words)
    assert isinstance(ended.exception, InvalidConfigError)
    assert ended.exception.fields["name"] == option.partition("=")[0]
