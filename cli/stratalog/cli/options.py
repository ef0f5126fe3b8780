"""The options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from stratalog.cli.int_ranges import PARTITION
from stratalog.client.isolation_level import IsolationLevel

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Place = TypeVar("_Place", bound=str | Path | None)
_Decorator = Callable[[_Command], _Command]

DEFAULT_SERVER = "127.0.0.1:9190"
TOPIC_HELP = "Set a topic key (Kafka's name), for example cleanup.policy=compact; may be repeated."


def environment_option(name: str, *names: str, envvar: str = "", **settings: Any) -> _Decorator[Any]:
    """Adds an option that the environment may set: `--max-silence` reads STRATALOG_MAX_SILENCE. The help has
    the variable, and a default that is not empty."""
    variable = envvar or "STRATALOG_" + name.removeprefix("--").replace("-", "_").upper()
    shows_default = settings.get("default", "") != ""
    return click.option(
        name, *names, envvar=variable, show_envvar=True, show_default=shows_default, **settings
    )


def require_unicode(_context: click.Context, _parameter: click.Parameter, value: _Place) -> _Place:
    """Refuse a name that is not UTF-8, because names of places appear in messages and URLs."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise click.BadParameter("the name is not UTF-8, choose another one") from None
    return value


def _parse_isolation(_context: click.Context, _parameter: click.Parameter, value: str) -> IsolationLevel:
    return IsolationLevel(value)


_CREDENTIALS = "stratalog.credentials"
"""Where a command's context has the files of its credentials, by the names of their fields."""


def _note_credential(context: click.Context, parameter: click.Parameter, value: str) -> str:
    chosen: dict[str, str] = context.meta.setdefault(_CREDENTIALS, {})
    chosen[str(parameter.name)] = require_unicode(context, parameter, value)
    return value


def chosen_credentials() -> dict[str, str]:
    """The files of the credentials that the running command was given, by the fields of
    `stratalog.client.access.credentials.Credentials`."""
    context = click.get_current_context(silent=True)
    return {} if context is None else dict(context.meta.get(_CREDENTIALS, {}))


def _credential_option(name: str, text: str) -> _Decorator[Any]:
    return environment_option(
        name,
        default="",
        metavar="FILE",
        help=text,
        callback=_note_credential,
        expose_value=False,
    )


_SERVER_OPTIONS: tuple[_Decorator[Any], ...] = (
    environment_option(
        "--server",
        default=DEFAULT_SERVER,
        metavar="HOST:PORT[,...]",
        help="The server, or servers of one store. Follows the owner.",
    ),
    _credential_option("--tls-ca", "Connect with TLS: the authorities of the server, or `system`."),
    _credential_option("--tls-cert", "A client certificate, with --tls-key."),
    _credential_option("--tls-key", "The key of the client certificate."),
    _credential_option("--token-file", "A file with a token."),
)


def server_option(command: _Command) -> _Command:
    """Adds the options of a command that calls a server. The command gets `server`, and `with_client` the
    others."""
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command


json_option: _Decorator[Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
partitions_option: _Decorator[Any] = click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition; may be repeated. Default: all of the topic.",
)
data_dir_option: _Decorator[Any] = environment_option(
    "--data-dir",
    callback=require_unicode,
    required=True,
    metavar="DIR",
    help="The directory of local logs; created if it is missing. One process at a time uses it.",
)
store_option: _Decorator[Any] = environment_option(
    "--store",
    "store_url",
    callback=require_unicode,
    default="",
    metavar="URL",
    help="file:///dir or s3://bucket/prefix; credentials, region and endpoint as boto3 finds them."
    " Default: the directory DATA_DIR.store beside the data directory.",
)
"""`store_url` is empty for the directory beside the data directory."""
isolation_option: _Decorator[Any] = click.option(
    "--isolation",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_UNCOMMITTED.value,
    show_default=True,
    callback=_parse_isolation,
    help="With read_committed only up to the first transaction that is still open, and without aborted ones.",
)


def config_option(*names: str, text: str = TOPIC_HELP, envvar: str | None = None) -> _Decorator[Any]:
    """Adds the repeatable option of these names, by default `--config`, whose pairs become a dictionary. Its
    environment variable separates pairs by spaces. `text` is its help.
    """
    return click.option(
        *(names or ("--config",)),
        callback=_parse_pairs,
        multiple=True,
        envvar=envvar,
        show_envvar=envvar is not None,
        metavar="KEY=VALUE",
        help=text,
    )


def _parse_pairs(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    config: dict[str, str] = {}
    for value in values:
        name, separator, setting = value.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, for example retention.ms=-1")
        config[name.strip()] = setting.strip()
    return config
