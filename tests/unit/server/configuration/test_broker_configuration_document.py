"""docs/broker_configuration.md agrees with the code."""

from __future__ import annotations

import re

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.server.configuration.broker_config import BROKER_KEYS, BrokerConfig
from stratalog.server.configuration.config_entry import ConfigSource
from stratalog.server.configuration.settings import ServerSettings
from tests.support.places import DOCS

TEXT = (DOCS / "broker_configuration.md").read_text()
ROWS: list[tuple[str, str, str, str]] = re.findall(
    r"^\| `([a-z0-9.]+)` \| ([^|]+) \| ([^|]+) \| ([a-z-]+) \|", TEXT, re.MULTILINE
)


def test_the_table_has_every_key_with_default_and_update_mode() -> None:
    assert [name for name, _, _, _ in ROWS] == list(BROKER_KEYS)
    for name, default, allowed, update_mode in ROWS:
        key = BROKER_KEYS[name]
        named = key.fallbacks[-1].name if key.fallbacks else None
        assert default.strip("`") == (key.default or named or "none"), name
        assert (allowed, update_mode) == (key.key.allowed, key.update_mode.value)


@pytest.mark.parametrize(("name", "allowed"), [(name, allowed) for name, _, allowed, _ in ROWS])
def test_the_values_of_a_key_are_those_of_its_error(name: str, allowed: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        BrokerConfig.from_overrides({name: "no such value"})
    assert failure.value.fields == {"name": name, "value": "no such value", "allowed": allowed}


def test_names_of_files_sources_and_bounds_are_those_of_the_code() -> None:
    assert f"`{MANIFEST_FILE}`" in TEXT
    assert all(f"`{source.value}`" in TEXT for source in ConfigSource)
    assert ServerSettings(data_dir="d").max_request_bytes == 32 << 20
