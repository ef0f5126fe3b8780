"""The example of a configuration file: every setting and every key of the broker, with its default.

`deploy/stratalog.toml` is this text, which a test compares. A line that begins with `#` and no blank is a
setting that may be uncommented.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from stratalog.server.configuration.broker_config import BROKER_KEYS, BrokerKey, value_text
from stratalog.server.configuration.setting import Setting, toml_text
from stratalog.server.configuration.settings_file import CONFIG_TABLE, is_bare
from stratalog.server.configuration.settings_table import SETTINGS

_WIDTH = 100
_HEAD = (
    "Settings of a server: `stratalog server start --config-file stratalog.toml`.",
    "",
    "A line that begins with # and no blank shows a default; remove the # to change it. Options of the"
    " command line are stronger than variables of the environment, and these are stronger than this file."
    " `stratalog server config` shows the settings that count, and `stratalog server check` tries them.",
)
_CONFIG_HEAD = (
    "Keys of the broker, under Kafka's names: defaults of topics, and settings of the log manager, the"
    " cleaner, uploads and compaction. docs/broker_configuration.md says what each does. A value that"
    " `stratalog config alter --broker` has set is stronger; keys that are marked read-only change at a"
    " start only.",
)


def settings_example() -> str:
    """The text of the file."""
    lines = [*_comment(*_HEAD)]
    for setting in SETTINGS.values():
        lines += ["", *_lines_of(setting)]
    lines += ["", *_comment(*_CONFIG_HEAD), f"[{CONFIG_TABLE}]"]
    for key in BROKER_KEYS.values():
        lines += ["", *_lines_of_key(key)]
    return "\n".join(lines) + "\n"


def _lines_of(setting: Setting) -> Iterator[str]:
    yield from _comment(setting.help)
    names = ", ".join(filter(None, (setting.option, setting.variable)))
    yield from _comment(f"Takes {setting.kind.allowed}. Also {names}.")
    yield f"#{setting.name} = {toml_text(setting.example or setting.default)}"


def _lines_of_key(key: BrokerKey) -> Iterator[str]:
    yield from _comment(f"Takes {key.key.allowed}; {key.update_mode.value}.")
    text = value_text(key.name, {})
    if text is None:
        yield f"# {key.name} has no default."
        return
    yield f"#{key.name} = {text if is_bare(key.key.parse(text)) else toml_text(text)}"


def _comment(*paragraphs: str) -> Iterator[str]:
    for paragraph in paragraphs:
        for line in textwrap.wrap(paragraph, _WIDTH - 2, break_long_words=False, break_on_hyphens=False) or [
            ""
        ]:
            yield f"# {line}".rstrip()
