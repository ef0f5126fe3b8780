"""`stratalog server start`: run a server in the foreground."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from stratalog.cli.log_lines import keep_grpc_quiet, log_to_stderr
from stratalog.cli.server.service_manager import notify_service_manager
from stratalog.cli.server.settings_options import exit_for_faults, given_settings, settings_options

if TYPE_CHECKING:
    from stratalog.server.app import Server


@click.command()
@settings_options
def start(**given: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, then stop cleanly. An address beyond this machine needs TLS and
    authentication.

    Each setting comes from its option, else from its variable, else from the file of --config-file, else it
    has its default. The file takes further settings, which few servers need: `stratalog server config` shows
    all of them, and `stratalog server check` tries them.

    \b
    Examples:
      stratalog server start --config-file /etc/stratalog/stratalog.toml
      stratalog server start --data-dir /data --store s3://bucket/prefix
      stratalog server start --read-only --store s3://bucket/prefix
    """
    # Before the import of gRPC, which looks at it.
    keep_grpc_quiet()
    from stratalog.server.app import serve

    resolved = given_settings(given)
    exit_for_faults(resolved)
    settings = resolved.settings
    assert settings is not None, "there are no faults"
    log_to_stderr(settings.log_level, settings.log_format)
    data_dir = str(resolved.values["data-dir"].value)
    with _directory(data_dir, read_only=settings.read_only) as directory:
        settings = dataclasses.replace(settings, data_dir=directory)
        logging.getLogger("stratalog").debug("settings: %s", resolved.shown())
        serve(settings, _announce)


@contextmanager
def _directory(data_dir: str, *, read_only: bool) -> Generator[str]:
    """The data directory; for a read-only server an empty one in it, or else among the temporary files,
    which goes with the server."""
    if not read_only:
        yield data_dir
        return
    if data_dir:
        Path(data_dir).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="stratalog-read-only-", dir=data_dir or None) as directory:
        yield directory


def _announce(server: Server) -> None:
    """Print one line once requests are answered: scripts wait for it, and learn the port from it. A service
    manager is notified first.
    """
    notify_service_manager("READY=1")
    host = server.settings.listen.rpartition(":")[0]
    click.echo(
        f"stratalog serves {host}:{server.port} from {server.settings.data_dir}"
        f" and {server.engine.tier.store.url}"
    )
