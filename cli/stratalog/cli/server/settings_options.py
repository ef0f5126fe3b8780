"""The options of a server's settings, made from their table, and what they and the environment give."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from stratalog.cli.error_line import print_error
from stratalog.cli.options import environment_option
from stratalog.server.configuration.setting import Setting, toml_text
from stratalog.server.configuration.settings_table import SETTINGS
from stratalog.server.configuration.start_settings import (
    CONFIG_FILE_VARIABLE,
    CONFIG_OPTION,
    CONFIG_VARIABLE,
    Given,
    StartSettings,
    start_settings,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])

EXIT_FAULT = 1
EXIT_USAGE = 2


def settings_options(command: _Command) -> _Command:
    """Adds the option of each setting, `--config` and `--config-file`. The command takes what they give as
    keywords, for `given_settings`. Click neither reads the environment nor checks values: that is done for
    all sources at once.
    """
    for decorate in (_file_option, _config_option, *reversed([*map(_option, _with_options())])):
        command = decorate(command)
    return command


def given_settings(given: Mapping[str, Any]) -> StartSettings:
    """The settings of a command that has `settings_options`; `given` are the keywords."""
    options = {setting.name: _texts(given[setting.field_name]) for setting in _with_options()}
    return start_settings(Given(options, given["config"], os.environ, given["config_file"]))


def exit_for_faults(settings: StartSettings) -> None:
    """Print each fault as one line, and end the command: with 2 where the command line or the environment
    cannot be understood, else with 1. Does nothing without faults.
    """
    for fault in settings.faults:
        print_error(str(fault.error))
    if settings.faults:
        is_usage = any(fault.is_usage for fault in settings.faults)
        raise click.exceptions.Exit(EXIT_USAGE if is_usage else EXIT_FAULT)


def _with_options() -> list[Setting]:
    return [setting for setting in SETTINGS.values() if setting.option]


def _option(setting: Setting) -> Callable[[Any], Any]:
    default = toml_text(setting.default) if setting.default not in ("", ()) else ""
    remark = f"  [env var: {setting.variable}" + (f"; default: {default.strip(chr(34))}]" if default else "]")
    names = [setting.option, setting.field_name]
    if not setting.kind.metavar:
        names[0] += "/--no-" + setting.option.removeprefix("--")
        return click.option(*names, default=None, help=setting.help + remark)
    return click.option(
        *names, multiple=setting.kind.is_repeatable, metavar=setting.kind.metavar, help=setting.help + remark
    )


def _texts(given: str | bool | Sequence[str] | None) -> Sequence[str]:
    if given is None:
        return ()
    if isinstance(given, bool):
        return (str(given).lower(),)
    return (given,) if isinstance(given, str) else given


_config_option: Callable[[Any], Any] = click.option(
    CONFIG_OPTION,
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the broker (Kafka's name), for example log.cleaner.threads=2; may be repeated."
    " Stronger than the file, and weaker than a value that `stratalog config alter --broker` has set."
    f"  [env var: {CONFIG_VARIABLE}]",
)
_file_option: Callable[[Any], Any] = environment_option(
    "--config-file",
    envvar=CONFIG_FILE_VARIABLE,
    default="",
    metavar="FILE",
    help="Take settings from this file of TOML; options and the environment are stronger."
    " `stratalog server config --example` prints one.",
)
