"""The file of `--config-file`: what it sets, and all that is wrong with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.broker_config import BROKER_KEYS
from stratalog.server.configuration.settings_file import CONFIG_TABLE, SettingsFile, read_settings_file
from stratalog.server.configuration.settings_table import SETTINGS


def written(folder: Path, text: str) -> SettingsFile:
    path = folder / "stratalog.toml"
    path.write_text(text)
    return read_settings_file(str(path))


def test_settings_and_keys_are_read_with_their_types(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        data-dir = "/data"    # a comment
        log-dirs = ["/b", "/c d"]
        read-only = true
        own-shards = [0, 2]
        max-silence = 30
        shutdown-grace-s = 2
        [config]
        log.roll.ms = 5
        "log.cleaner.enable" = false
        log.cleanup.policy = "compact,delete"
        log.cleaner.min.cleanable.ratio = 0.25
        cordoned.log.dirs = ["/b", "/c"]
        """,
    )
    assert file.faults == ()
    assert file.values == {
        "data-dir": "/data",
        "log-dirs": ("/b", "/c d"),
        "read-only": True,
        "own-shards": (0, 2),
        "max-silence": 30,
        "shutdown-grace-s": 2.0,
    }
    assert file.config == {
        "log.roll.ms": "5",
        "log.cleaner.enable": "false",
        "log.cleanup.policy": "compact,delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "cordoned.log.dirs": "/b,/c",
    }


@pytest.mark.parametrize(
    ("line", "name", "value", "part"),
    [
        ("listn = 'a:1'", "listn", None, "did you mean `listen`"),
        ("max_silence = 5", "max_silence", None, "did you mean `max-silence`"),
        ("max-silence = '5'", "max-silence", '"5"', "a whole number"),
        ("max-silence = -1", "max-silence", "-1", "a whole number"),
        ("max-silence = true", "max-silence", "true", "a whole number"),
        ("max-silence = 5.0", "max-silence", "5.0", "a whole number"),
        ("read-only = 1", "read-only", "1", "true or false"),
        ("log-dirs = '/b'", "log-dirs", '"/b"', "a list"),
        ("log-dirs = ['/b', 3]", "log-dirs", '["/b", 3]', "a list"),
        ("own-shards = [-1]", "own-shards", "[-1]", "numbers of shards"),
        ("log-level = 'loud'", "log-level", '"loud"', "one of debug"),
        ("shutdown-grace-s = -0.5", "shutdown-grace-s", "-0.5", "a decimal number"),
        ("listen = 1979-05-27", "listen", "1979-05-27", "HOST:PORT"),
        ("log.retention.hours = 4", "log", None, "`log.retention.hours` below the line [config]"),
        ("config = 3", "config", "3", "[config]"),
        ("[config]\nlog.retention.hour = 4", "log.retention.hour", "4", "`log.retention.hours`"),
        ("[config]\nlog.retention.hours = '4'", "log.retention.hours", '"4"', "without quotes"),
        ("[config]\nlog.cleaner.enable = 1", "log.cleaner.enable", "1", "true or false"),
        ("[config]\nlog.roll.ms = 1\n'log.roll.ms' = 2", "log.roll.ms", "2", "keep one"),
        ("[config]\nretention.ms = 1", "retention.ms", "1", "`log.retention.ms`"),
    ],
)
def test_a_fault_names_key_value_remedy_and_file(
    tmp_path: Path, line: str, name: str, value: str | None, part: str
) -> None:
    [fault] = written(tmp_path, f"{line}\n").faults
    assert (fault.fields["name"], fault.fields.get("value")) == (name, value)
    assert fault.fields["source"] == f"{tmp_path}/stratalog.toml"
    assert part in str(fault)


def test_all_faults_are_found_and_the_rest_is_read(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "nonsense = 1\nshards = 'x'\nlisten = 'h:1'\n"
        "[config]\na.b = 1\nlog.roll.ms = 0\nlog.roll.hours = 2\n",
    )
    assert [fault.fields["name"] for fault in file.faults] == ["nonsense", "shards", "a.b", "log.roll.ms"]
    assert (file.values, file.config) == ({"listen": "h:1"}, {"log.roll.hours": "2"})


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"a = 1\na = 2\n", "line 2"),
        (b"log.roll.ms=5 6\n", "line 1"),
        (b"a = '\xff'", "utf-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, data: bytes | None, part: str) -> None:
    path = tmp_path / "stratalog.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidConfigError) as refusal:
        read_settings_file(str(path))
    assert (refusal.value.fields["name"], refusal.value.fields["value"]) == ("config-file", str(path))
    assert part in str(refusal.value.fields["reason"])


def test_every_key_may_be_written_with_dots() -> None:
    """No key of the broker is a table of another one."""
    beginnings = {
        name.rsplit(".", count)[0] for name in BROKER_KEYS for count in range(1, name.count(".") + 1)
    }
    assert not beginnings & BROKER_KEYS.keys()
    assert not {name for name in SETTINGS if "." in name or name == CONFIG_TABLE}
