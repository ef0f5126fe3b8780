"""The file of `--config-file`."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.properties_file import read_properties


def test_keys_and_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# comment\n! comment\n\n log.roll.ms = 5 \nlog.cleanup.policy=\na=b=c\n")
    assert read_properties(str(path)) == {"log.roll.ms": "5", "log.cleanup.policy": "", "a": "b=c"}


@pytest.mark.parametrize(
    ("data", "value"), [(b"a=1\na=2", "a=2"), (b"a", "a"), (b"=1", "=1"), (b"\xff", None), (None, None)]
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, data: bytes | None, value: str | None) -> None:
    path = tmp_path / "server.properties"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidConfigError) as refusal:
        read_properties(str(path))
    assert refusal.value.fields["value"] == (value or str(path))
