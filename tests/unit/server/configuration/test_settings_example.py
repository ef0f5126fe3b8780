"""deploy/stratalog.toml shows every setting with its default."""

from __future__ import annotations

import re
import tomllib

from stratalog.server.configuration.broker_config import BROKER_KEYS, value_text
from stratalog.server.configuration.settings_example import settings_example
from stratalog.server.configuration.settings_file import parse_settings
from stratalog.server.configuration.settings_table import SETTINGS
from tests.support.places import REPOSITORY

TEXT = (REPOSITORY / "deploy" / "stratalog.toml").read_text()


def test_the_file_is_the_one_that_the_command_prints() -> None:
    assert settings_example() == TEXT, "write it again: stratalog server config --example"


def test_it_sets_nothing_until_a_line_is_uncommented() -> None:
    assert tomllib.loads(TEXT) == {"config": {}}


def test_all_lines_uncommented_are_the_defaults() -> None:
    file = parse_settings(tomllib.loads(re.sub(r"^#(?=\S)", "", TEXT, flags=re.MULTILINE)), "example")
    assert file.faults == ()
    assert dict(file.values) == {
        name: setting.example or setting.default for name, setting in SETTINGS.items()
    }
    defaults = {name: value_text(name, {}) for name in BROKER_KEYS}
    assert {name: BROKER_KEYS[name].key.parse(text) for name, text in file.config.items()} == {
        name: BROKER_KEYS[name].key.parse(text) for name, text in defaults.items() if text is not None
    }
    assert [name for name, text in defaults.items() if text is None] == ["log.retention.minutes"]
