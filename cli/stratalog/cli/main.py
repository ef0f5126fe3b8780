"""The `stratalog` command: imports subcommands when they run and prints every failure as one line.

``stratalog --help`` imports nothing but click. A group finds its commands in a table of module paths, so that
``stratalog topic list`` never imports the server, nor the server the demo.

Exit codes: 0 done; 1 the work failed, with one line on standard error that says what to do; 2 the command
line is wrong; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import cast

import click

from stratalog.base.errors import LogStoreError
from stratalog.cli.error_line import print_error
from stratalog.cli.lazy_group import EXIT_INTERRUPTED, LazyGroup
from stratalog.cli.log_lines import LOG_FORMAT_HELP, LOG_FORMATS, log_to_stderr

EXIT_FAILED = 1

COMMANDS = {
    "server": ("commands.server_commands:server", "Run a server, and describe one."),
    "topic": ("commands.topic_commands:topic", "Create, list, describe, alter and delete topics."),
    "config": (
        "commands.config_commands:config",
        "Show configurations, and alter the server's.",
    ),
    "records": ("commands.records_commands:records", "Delete records from the start of partitions."),
    "produce": (
        "commands.produce_command:produce",
        "Append records to TOPIC: lines of a file, or one value.",
    ),
    "consume": ("commands.consume_command:consume", "Print the records of TOPIC."),
    "log": ("commands.log_commands:log", "Show partitions and their files, and roll and flush them."),
    "producers": ("commands.producers_commands:producers", "Show the producers of partitions."),
    "tier": ("commands.tier_commands:tier", "Show the object store; upload, verify, collect, pause."),
    "verify": (
        "store_repair.verify_command:verify",
        "Prove from the objects alone what is compacted.",
    ),
    "log-dirs": (
        "commands.log_dirs_commands:log_dirs",
        "Show the directories of local logs, and move partitions.",
    ),
    "cleaner": ("commands.cleaner_commands:cleaner", "Show the cleaner of local logs."),
    "compaction": ("commands.compaction_commands:compaction", "Compact tiered data now."),
    "spark": ("spark.command:spark", "Run jobs over a whole store on Spark."),
    "retention": (
        "commands.retention_commands:retention",
        "Apply the retention of topics now, or explain it.",
    ),
    "operation": (
        "commands.operation_commands:operation",
        "Show, watch and cancel the long work of a server.",
    ),
    "import": ("commands.import_command:import_", "Import topics from a stopped Kafka broker."),
    "export": ("commands.export_command:export", "Export topics as the log directory of a Kafka broker."),
    "dev": ("dev.command:dev", "Serve a local store for trials and tests."),
    "demo": ("demo.command:demo", "Run the whole system on real data, and check the result."),
}


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib import metadata

        click.echo(f"stratalog {metadata.version('stratalog')}")
        context.exit()


@click.group(
    cls=LazyGroup, commands_by_name=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    envvar="STRATALOG_LOG_FORMAT",
    show_default=True,
    show_envvar=True,
    help=LOG_FORMAT_HELP,
)
def stratalog(log_format: str) -> None:
    """A log-storage service: Kafka's log format behind gRPC, tiered to a bucket and compacted there."""
    if log_format != "text":
        log_to_stderr("warning", log_format)


def main() -> None:
    """The console script. Prints a traceback only for defects."""
    stdout = cast(TextIOWrapper | None, sys.stdout)
    if stdout is not None:
        # A path may have bytes that are not UTF-8: print them unchanged.
        stdout.reconfigure(errors="surrogateescape")
    try:
        code = stratalog.main(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        print_error(error.format_message())
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): stop quietly, and keep Python from a warning at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except LogStoreError as error:
        print_error(str(error))
        sys.exit(EXIT_FAILED)
    sys.exit(code if isinstance(code, int) else 0)
