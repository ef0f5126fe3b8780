"""The unit of systemd in deploy/ agrees with the example file, the command and the document."""

from __future__ import annotations

import configparser
import shlex

from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.configuration.settings_table import SETTINGS
from tests.support.places import DOCS, REPOSITORY
from tests.support.service.documented_examples import named_command

UNIT = configparser.ConfigParser(interpolation=None, delimiters=("=",))
UNIT.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's names have upper case
UNIT.read_string((REPOSITORY / "deploy" / "stratalog.service").read_text())
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
