"""The settings of a start: the strongest source counts, and all faults are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog.server.configuration.setting import Setting, text_kind, toml_text
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.configuration.settings_table import SETTING_OF_FIELD, SETTINGS
from stratalog.server.configuration.start_settings import (
    Given,
    SettingSource,
    Sourced,
    StartSettings,
    start_settings,
)

DATA = {"data-dir": ["/data"]}


def resolved(
    options: Mapping[str, Sequence[str]] | None = None,
    config: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    config_file: Path | str = "",
) -> StartSettings:
    return start_settings(Given(options or {}, config, environment or {}, str(config_file)))


def names_of_faults(start: StartSettings) -> list[object]:
    return [fault.error.fields["name"] for fault in start.faults]


def test_the_table_has_every_field_once() -> None:
    fields = {field.name for field in dataclasses.fields(ServerSettings)}
    assert set(SETTING_OF_FIELD) == fields - {"config"}
    assert len(SETTING_OF_FIELD) == len(SETTINGS)
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_default_is_a_value_that_its_setting_takes(setting: Setting) -> None:
    field = {one.name: one for one in dataclasses.fields(ServerSettings)}[setting.field_name]
    if field.default is not dataclasses.MISSING:
        assert setting.field_value(setting.default) == field.default
    plain = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    assert setting.of_file(plain, "f") == setting.default
    text = toml_text(setting.default).strip('"[]')
    if text:
        assert setting.of_texts([text], "s") == setting.default


def test_without_anything_but_a_directory_all_are_defaults() -> None:
    start = resolved(DATA)
    assert start.settings == ServerSettings(data_dir="/data")
    assert {sourced.source for name, sourced in start.values.items() if name != "data-dir"} == {
        SettingSource.DEFAULT
    }


def test_an_option_is_stronger_than_the_environment_and_that_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        "listen = '127.0.0.2:1'\nadvertise = 'file:2'\nupload-interval = 7\nlog-dirs = ['/f']\n"
        "[config]\nlog.roll.ms = 1\nlog.segment.bytes = 4096\nlog.index.interval.bytes = 1\n"
    )
    start = resolved(
        {**DATA, "listen": ["127.0.0.1:1"]},
        ["log.roll.ms=3"],
        {
            "STRATALOG_LISTEN": "127.0.0.3:1",
            "STRATALOG_ADVERTISE": "environment:2",
            "STRATALOG_UPLOAD_INTERVAL": "",
            "STRATALOG_LOG_DIRS": "/e /e2",
            "STRATALOG_CONFIG": "log.roll.ms=2 log.segment.bytes=8192",
        },
        file,
    )
    assert start.settings == ServerSettings(
        data_dir="/data",
        listen="127.0.0.1:1",
        advertise="environment:2",
        upload_ms=7000,
        log_dirs=("/e", "/e2"),
        config={"log.roll.ms": "3", "log.segment.bytes": "8192", "log.index.interval.bytes": "1"},
    )
    assert start.values["listen"] == Sourced("127.0.0.1:1", SettingSource.OPTION, "--listen")
    assert start.values["advertise"].place == "STRATALOG_ADVERTISE"
    assert start.values["upload-interval"] == Sourced(7, SettingSource.FILE, str(file))
    assert [start.config[name].place for name in ("log.roll.ms", "log.segment.bytes")] == [
        "--config",
        "STRATALOG_CONFIG",
    ]
    assert start.config["log.index.interval.bytes"].place == str(file)


def test_an_option_may_take_back_a_flag() -> None:
    on = {**DATA, "store": ["memory://"]}
    assert (
        getattr(resolved(on, environment={"STRATALOG_READ_ONLY": "yes"}).settings, "read_only", None) is True
    )
    off = resolved({**on, "read-only": ["false"]}, environment={"STRATALOG_READ_ONLY": "1"})
    assert getattr(off.settings, "read_only", None) is False


def test_every_fault_of_every_source_is_found_at_once(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("shards = 'x'\nnothing = 1\n")
    start = resolved(
        {"upload-interval": ["0"], "listen": ["nowhere"], "max-request-memory": ["64"]},
        ["log.roll.ms", "log.roll.ms=x"],
        {
            "STRATALOG_MAX_SILENCE": "3",
            "STRATALOG_HISTORY_DAYS": "many",
            "STRATALOG_MAX_REQUEST_BYTES": str(64 << 20),
            "STRATALOG_ADVERTISE": "0.0.0.0:1",
        },
        file,
    )
    assert start.settings is None
    assert sorted(map(str, names_of_faults(start))) == sorted(
        [
            "shards",
            "nothing",
            "upload-interval",
            "listen",
            "max-request-memory",
            "--config",
            "log.roll.ms",
            "max-silence",
            "history-days",
            "advertise",
            "data-dir",
        ]
    )
    by_name = {fault.error.fields["name"]: fault for fault in start.faults}
    assert by_name["max-silence"].error.fields["value"] == 3
    assert by_name["max-silence"].error.fields["source"] == "STRATALOG_MAX_SILENCE"
    assert by_name["max-request-memory"].error.fields["value"] == 64
    assert {name for name, fault in by_name.items() if fault.is_usage} == {
        "upload-interval",
        "--config",
        "history-days",
        "data-dir",
    }


def test_keys_that_contradict_each_other_are_one_fault() -> None:
    [fault] = resolved(
        DATA, ["log.cleaner.min.compaction.lag.ms=5", "log.cleaner.max.compaction.lag.ms=4"]
    ).faults
    assert "compaction.lag.ms" in str(fault.error.fields["name"])


def test_a_default_that_contradicts_a_value_ends_the_search() -> None:
    start = resolved(DATA, environment={"STRATALOG_HEAD_REFRESH_MS": "70000"})
    assert names_of_faults(start) == ["max-silence"]
    assert start.faults[0].error.fields["source"] == "default"


def test_a_read_only_server_has_settings_of_its_own() -> None:
    given: dict[str, list[str]] = {"read-only": ["true"], "follow-interval": ["3"]}
    assert names_of_faults(resolved(given)) == ["store"]
    settings = resolved({**given, "store": ["s3://b/p"], "log-dirs": ["/b"]}).settings
    assert settings is not None
    assert (settings.head_refresh_ms, settings.max_silence_ms, settings.log_dirs) == (3000, 0, ())


def test_secrets_and_users_in_urls_are_hidden() -> None:
    store = SETTINGS["store"]
    assert store.shown("s3://me:secret@bucket/p?endpoint=http://me:secret@h:1") == (
        "s3://(hidden)@bucket/p?endpoint=http://(hidden)@h:1"
    )
    for mistyped in ("s3:///me:secret@bucket/p", "s3://me:secret/secret@bucket/p"):
        assert store.shown(mistyped) == "s3://(hidden)@bucket/p"
    assert store.shown("file:///data@home/store") == "file:///data@home/store"
    secret: Any = Setting(
        name="token", field_name="listen", kind=text_kind("T", "a token"), help="A token.", is_secret=True
    )
    assert (secret.shown("abc"), secret.shown("")) == ("(hidden)", "")
    start = resolved({"store": ["ftp://me:secret@h"], "data-dir": ["/data"], "own-shards": ["x"]})
    assert "secret" not in str(start.shown())
