"""`stratalog server`: run a server in the foreground, and describe a running one."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import (
    CALL_COUNT,
    DISK_MIB,
    LEAST_SILENCE_S,
    MEMORY_MIB,
    SECONDS,
    SECONDS_OR_NEVER,
    shard_numbers,
    silence_seconds,
)
from stratalog.cli.options import (
    config_option,
    environment_option,
    json_option,
    require_unicode,
    require_unicode_each,
    server_option,
    store_option,
)
from stratalog.cli.output import Cell, print_json, print_table, utc_time, value_document

if TYPE_CHECKING:
    from stratalog.server.app import Server
    from stratalog.server.configuration.settings import ServerSettings

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.group()
def server() -> None:
    """Run a server, and describe one."""


def _require_data_dir(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value and not context.params.get("read_only"):
        raise click.MissingParameter(ctx=context, param=parameter)
    return require_unicode(context, parameter, value)


@server.command()
@environment_option(
    "--data-dir",
    callback=_require_data_dir,
    default="",
    metavar="DIR",
    help="The directory of local logs; created if it is missing. One process at a time uses it. Required"
    " without --read-only.",
)
@environment_option(
    "--read-only",
    is_flag=True,
    is_eager=True,
    default=False,
    help="Serve the tiered records of the store beside its owner, and change nothing. Needs --store; keeps no"
    " local logs.",
)
@environment_option(
    "--follow-interval",
    "follow_s",
    type=SECONDS,
    default=2,
    metavar="SECONDS",
    help="Seconds between looks at the store for news, with --read-only.",
)
@environment_option(
    "--log-dir",
    "log_dirs",
    envvar="STRATALOG_LOG_DIRS",
    multiple=True,
    callback=require_unicode_each,
    metavar="DIR",
    help="Another directory of local logs, on its own disk; may be repeated.",
)
@environment_option(
    "--listen",
    default="127.0.0.1:9190",
    metavar="HOST:PORT",
    help="Port 0 takes a free port and prints it.",
)
@environment_option(
    "--advertise",
    default="",
    metavar="HOST:PORT",
    help="Address where clients reach this server, if it is not the listen address. Port 0 is the port of"
    " --listen.",
)
@environment_option(
    "--metrics-listen",
    default="",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus at this address, over HTTP; off by default. With the TLS and the"
    " access file of gRPC.",
)
@environment_option(
    "--tls-cert",
    envvar="STRATALOG_SERVER_TLS_CERT",
    default="",
    metavar="FILE",
    help="Serve with TLS: the server's certificate in PEM, with --tls-key. Read again when it changes.",
)
@environment_option(
    "--tls-key",
    envvar="STRATALOG_SERVER_TLS_KEY",
    default="",
    metavar="FILE",
    help="The key of the certificate in PEM, without a password.",
)
@environment_option(
    "--tls-client-ca",
    envvar="STRATALOG_SERVER_TLS_CLIENT_CA",
    default="",
    metavar="FILE",
    help="The authorities of client certificates in PEM: every client needs a certificate of one of them.",
)
@environment_option(
    "--access-file",
    default="",
    metavar="FILE",
    help="Principals, their tokens, permissions and quotas, in TOML. Read again when it changes. Without one,"
    " every client may do everything.",
)
@environment_option(
    "--insecure",
    is_flag=True,
    default=False,
    help="Listen beyond this machine also without TLS or without authentication.",
)
@store_option
@environment_option(
    "--shards",
    "shard_count",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="COUNT",
    help="Number of shards of a new store, fixed for good: one for each server that is to share it. An"
    " existing store must have it. 0 is the store's own, and 1 for a new one.",
)
@environment_option(
    "--own-shards",
    callback=shard_numbers,
    default="",
    metavar="NUMBERS",
    help="Numbers of the shards to claim and serve, for example 0,2. Other servers of the store serve the"
    " others. Default: all.",
)
@environment_option(
    "--compaction-interval",
    "compaction_s",
    type=SECONDS_OR_NEVER,
    default=60,
    metavar="SECONDS",
    help="Seconds between looks for tiered data to compact or to merge; 0 leaves it to `compaction run`.",
)
@environment_option(
    "--upload-interval",
    "upload_s",
    type=SECONDS,
    default=5,
    metavar="SECONDS",
    help="Seconds between uploads of rolled segments.",
)
@environment_option(
    "--history-days",
    type=click.IntRange(1, 36_500),
    default=30,
    metavar="DAYS",
    help="Keep the metadata's commits in the store for this many days after they left the head.",
)
@environment_option(
    "--max-silence",
    "max_silence_s",
    type=SECONDS_OR_NEVER,
    callback=silence_seconds,
    default=60,
    metavar="SECONDS",
    help="Refuse appends with durability=disk if the store has not answered for this many seconds (at least"
    f" {LEAST_SILENCE_S}); 0 never refuses.",
)
@environment_option(
    "--max-request-memory",
    "max_request_memory_mib",
    type=MEMORY_MIB,
    default=512,
    metavar="MIB",
    help="Memory for the records of running requests. Half is for appends: above it, the server refuses more,"
    " and clients send them again. Half is for answers of fetches: near it, they get smaller. The process"
    " takes about twice as much memory, and a sixteenth for the newest records.",
)
@environment_option(
    "--max-append-calls",
    "max_append_call_count",
    type=CALL_COUNT,
    default=1000,
    metavar="COUNT",
    help="Appends and streams of appends that may be open at once; a producer has a stream for each of its"
    " partitions. One more is refused, and its client tries again.",
)
@environment_option(
    "--max-read-calls",
    "max_read_call_count",
    type=CALL_COUNT,
    default=1000,
    metavar="COUNT",
    help="Fetches and reads that may be open at once: one for each consumer.",
)
@environment_option(
    "--max-admin-calls",
    "max_admin_call_count",
    type=CALL_COUNT,
    default=200,
    metavar="COUNT",
    help="All other calls that may be open at once. Health checks have no such limit.",
)
@environment_option(
    "--metadata-cache",
    "metadata_cache_mib",
    type=MEMORY_MIB,
    default=64,
    metavar="MIB",
    help="Memory for pages of the metadata: the live slices of tiered partitions, which are read from the"
    " store when they are wanted.",
)
@environment_option(
    "--metadata-disk-cache",
    "metadata_disk_cache_mib",
    type=DISK_MIB,
    default=512,
    metavar="MIB",
    help="Space in the data directory for these pages, so that a first read after a restart asks the store"
    " for none; 0: none.",
)
@environment_option(
    "--config-file",
    default="",
    metavar="FILE",
    help="Set the server keys in this file: lines of KEY=VALUE with Kafka's names, for example"
    " log.retention.hours=48.",
)
@config_option(
    text="Set a server key (Kafka's name), for example log.cleaner.threads=2; may be repeated. Stronger than"
    " the file, and weaker than a value that `stratalog config alter --broker` has set.",
    envvar="STRATALOG_CONFIG",
)
@environment_option(
    "--log-level",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"]),
)
def start(  # noqa: PLR0913 - click passes each option by name
    data_dir: str,
    read_only: bool,
    follow_s: int,
    log_dirs: tuple[str, ...],
    store_url: str,
    own_shards: tuple[int, ...],
    compaction_s: int,
    upload_s: int,
    history_days: int,
    max_silence_s: int,
    max_request_memory_mib: int,
    metadata_cache_mib: int,
    metadata_disk_cache_mib: int,
    config_file: str,
    config: dict[str, str],
    log_level: str,
    **named: Any,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then stop cleanly. An address beyond this machine needs TLS and
    authentication.

    \b
    Examples:
      stratalog server start --data-dir /data --store s3://bucket/prefix
      stratalog server start --data-dir /data --log-dir /disk2 --log-level warning
      stratalog server start --read-only --store s3://bucket/prefix
      stratalog server start --data-dir /data --tls-cert c.pem --tls-key k.pem --access-file a.toml
    """
    from stratalog.server.app import serve
    from stratalog.server.configuration.properties_file import read_properties
    from stratalog.server.configuration.settings import ServerSettings

    if read_only and not store_url:
        raise click.UsageError("--read-only needs --store: the URL of the owner's store")
    _log_to_stderr(log_level)
    with _directory(data_dir, read_only=read_only) as directory:
        settings = ServerSettings(
            data_dir=directory,
            log_dirs=log_dirs,
            store_url=store_url,
            own_shards=own_shards,
            compaction_ms=compaction_s * 1000,
            upload_ms=upload_s * 1000,
            history_ms=history_days * 24 * 60 * 60 * 1000,
            max_silence_ms=max_silence_s * 1000,
            max_request_memory_bytes=max_request_memory_mib << 20,
            metadata_cache_bytes=metadata_cache_mib << 20,
            metadata_disk_cache_bytes=metadata_disk_cache_mib << 20,
            config={**read_properties(config_file), **config} if config_file else config,
            # These options have the names of settings.
            **named,
        )
        settings = _following(settings, follow_s) if read_only else settings
        logging.getLogger("stratalog").debug("settings: %s", dataclasses.asdict(settings))
        serve(settings, _announce)


def _following(settings: ServerSettings, follow_s: int) -> ServerSettings:
    """The settings of a read-only server."""
    return dataclasses.replace(
        settings, log_dirs=(), read_only=True, head_refresh_ms=follow_s * 1000, max_silence_ms=0
    )


@server.command()
@json_option
@server_option
def info(as_json: bool, server: str) -> None:
    """Show the version, the shards and the limits of a server.

    \b
    Example: stratalog server info --server 127.0.0.1:9190
    """
    response = with_client(server, lambda client: client.admin.server_info())
    if as_json:
        print_json(value_document(response))
        return
    limits = response.limits
    shards = (f"{one.shard} (epoch {one.epoch})" for one in response.owned_shards)
    rows: list[tuple[str, Cell]] = [
        ("version", response.version or None),
        ("commit", response.git_commit or None),
        ("python", response.python_version),
        ("platform", response.platform),
        ("kernels", "native" if response.native_kernels else "pure Python, which is slow"),
        ("started", utc_time(response.start_time_ms)),
        ("uptime", str(timedelta(seconds=response.uptime_ms // 1000))),
        ("store", response.store_url),
        ("store id", response.store_id),
        ("shards", ", ".join(shards) or "none: another server owns them"),
        ("largest append request", ByteSize(limits.max_request_bytes)),
        ("largest answer to a fetch", ByteSize(limits.max_fetch_bytes)),
        ("longest wait of a fetch, ms", limits.max_fetch_wait_ms),
        ("partitions of a topic", limits.max_partition_count),
        ("open appends", limits.max_append_call_count),
        ("open reads", limits.max_read_call_count),
        ("other open calls", limits.max_admin_call_count),
        ("memory of requests", ByteSize(limits.max_request_memory_bytes)),
    ]
    print_table(("WHAT", "VALUE"), [(name, None if cell is None else str(cell)) for name, cell in rows])


@server.group()
def token() -> None:
    """Make tokens, with which programs come in."""


@token.command()
@click.argument("principal")
@click.option(
    "--token-file",
    metavar="FILE",
    callback=require_unicode,
    default="",
    help="Write the token to this new file, which only its owner may read, and do not print it.",
)
def create(principal: str, token_file: str) -> None:
    """Make a token, and print its line for the access file.

    The token is shown once: the access file has its digest only. PRINCIPAL is the program or person that
    comes in with it.

    \b
    Example: stratalog server token create shop --token-file shop.token
    """
    from stratalog.base.randomness import SystemIdGenerator
    from stratalog.server.access.tokens import digest_of, new_token

    text = new_token(SystemIdGenerator())
    digest = digest_of(text)
    assert digest is not None, "a new token has its form"
    if token_file:
        _write_secret(token_file, text)
    else:
        click.echo(f"{text}\n")
    click.echo(f'[principals."{principal}"]\ntokens = ["{digest.entry}"]')


def _write_secret(path: str, text: str) -> None:
    """Write a new file that only its owner may read."""
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text + "\n")
    except OSError as error:
        raise click.ClickException(f"the token cannot be written to {path}: {error.strerror}") from None


def _log_to_stderr(log_level: str) -> None:
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    if log_level == "info":
        # It logs the source of its credentials again and again, which is only of interest with `debug`.
        logging.getLogger("botocore").setLevel(logging.WARNING)


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
    """Print one line once requests are answered: scripts wait for it, and learn the port from
    it.
    """
    host = server.settings.listen.rpartition(":")[0]
    click.echo(
        f"stratalog serves {host}:{server.port} from {server.settings.data_dir}"
        f" and {server.engine.tier.store.url}"
    )
