"""`stratalog server`: run a server, show and try its settings, and describe a running one."""

from __future__ import annotations

from datetime import timedelta

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import Cell, print_json, print_table, utc_time, value_document

COMMANDS = {
    "start": ("server.start_command:start", "Serve until SIGTERM or Ctrl-C, then stop cleanly."),
    "config": ("server.config_command:config", "Show the settings of a start, and their sources."),
    "check": ("server.check_command:check", "Try the settings of a start, and change nothing."),
    "token": ("server.token_commands:token", "Make tokens, with which programs come in."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def server() -> None:
    """Run a server, and describe one."""


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
