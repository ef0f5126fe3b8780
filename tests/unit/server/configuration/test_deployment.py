"""The units of systemd in deploy/ agree with the example file, the commands and the documents."""

from __future__ import annotations

import configparser
import shlex

from stratalog.cli.lazy_group import EXIT_INTERRUPTED
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.configuration.settings_table import SETTINGS
from tests.support.places import DOCS, REPOSITORY
from tests.support.service.documented_examples import named_command


def unit_of(name: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's names have upper case
    unit.read_string((REPOSITORY / "deploy" / name).read_text())
    return unit


UNIT = unit_of("stratalog.service")
SERVICE = UNIT["Service"]


def test_the_command_starts_a_server_on_the_documented_file() -> None:
    program, *words = shlex.split(SERVICE["ExecStart"])
    assert program == "/opt/stratalog/bin/stratalog"
    command, arguments = named_command(shlex.join(["stratalog", *words]))
    assert command.name == "start"
    file = "/etc/stratalog/stratalog.toml"
    assert arguments == ["--config-file", file]
    assert UNIT["Unit"]["Documentation"] == f"file:{file}"
    assert file in (DOCS / "operating.md").read_text()


def test_the_directory_of_the_unit_has_data_and_store() -> None:
    place = f"/var/lib/{SERVICE['StateDirectory']}/"
    settings = ServerSettings(data_dir=SETTINGS["data-dir"].example)
    assert settings.data_dir.startswith(place)
    assert settings.effective_store_url.startswith(f"file://{place}")


def test_a_start_is_waited_for_and_a_stop_has_its_grace() -> None:
    assert (SERVICE["Type"], SERVICE["TimeoutStartSec"], SERVICE["KillSignal"]) == (
        "notify",
        "infinity",
        "SIGTERM",
    )
    assert SERVICE["TimeoutStopSec"] == "5min"
    assert ServerSettings(data_dir="d").shutdown_grace_s < 300
    assert int(SERVICE["LimitNOFILE"]) >= 10_000


def test_a_compactor_keeps_its_state_in_the_directory_of_its_unit() -> None:
    unit = unit_of("stratalog-compactor.service")
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/stratalog/bin/stratalog"
    command, arguments = named_command(shlex.join(["stratalog", *words]))
    assert command.name == "run"
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given.keys() <= {option for one in command.params for option in one.opts}
    assert given["--state-dir"] == f"/var/lib/{service['StateDirectory']}"
    assert given["--config-file"] == UNIT["Unit"]["Documentation"].removeprefix("file:")
    assert given["--metrics-listen"].startswith("127.0.0.1:")
    assert int(service["SuccessExitStatus"]) == EXIT_INTERRUPTED
    shared = (
        "User",
        "KillSignal",
        "TimeoutStopSec",
        "Restart",
        "ProtectSystem",
        "PrivateTmp",
        "NoNewPrivileges",
    )
    assert {name: service[name] for name in shared} == {name: SERVICE[name] for name in shared}
