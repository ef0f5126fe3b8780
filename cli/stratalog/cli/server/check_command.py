"""`stratalog server check`: try the settings of a start, and change nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.cli.options import json_option
from stratalog.cli.output import print_json, print_table
from stratalog.cli.server.settings_options import given_settings, settings_options
from stratalog.server.checks.all_checks import findings_of
from stratalog.server.checks.machine import this_machine
from stratalog.server.checks.start_check import CheckedStart, CheckSeams, Finding, Verdict
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.start_settings import StartSettings

EXIT_ERROR = 1


@click.command()
@settings_options
@click.option(
    "--probe-store",
    is_flag=True,
    help="Also try the store's conditional writes, with four small writes of an object below scratch/ that is"
    " deleted again. A bucket with versions keeps these.",
)
@json_option
def check(probe_store: bool, as_json: bool, **given: Any) -> None:
    """Try the settings of a start, and change nothing.

    It takes the options of `stratalog server start`, and tries what a start needs: addresses are free, log
    directories may be written and are not in use, the store answers and is theirs, clocks agree, and files
    and memory suffice. It serves nothing, claims nothing and makes no file, so it may run beside a server,
    whose directories and addresses are in use then. The store is only read, unless --probe-store is given.

    One line for each check: ok; skipped; warning, if a server starts and something should be changed; error.
    Exit code: 0 no error, 1 an error.

    \b
    Example: stratalog server check --config-file /etc/stratalog/stratalog.toml
    """
    findings = list(_findings(given_settings(given), probes_store=probe_store))
    if as_json:
        print_json([{**finding._asdict(), "verdict": finding.verdict.value} for finding in findings])
    else:
        rows = [(one.verdict.value, one.check, " ".join(one.text.split())) for one in findings]
        print_table(("VERDICT", "CHECK", "FOUND"), rows)
    if any(finding.verdict is Verdict.ERROR for finding in findings):
        raise click.exceptions.Exit(EXIT_ERROR)


def _findings(resolved: StartSettings, *, probes_store: bool) -> Iterator[Finding]:
    """The faults of the settings, or else what the checks find."""
    for fault in resolved.faults:
        # A value that is refused for not being UTF-8 is shown with escapes.
        text = str(fault.error).encode(errors="backslashreplace").decode()
        yield Finding("settings", Verdict.ERROR, text)
    if resolved.settings is None:
        return
    yield Finding("settings", Verdict.OK, f"{resolved.config_file or 'the options'} can be understood")
    yield from findings_of(
        CheckedStart(
            settings=resolved.settings,
            config=BrokerConfig.from_overrides(resolved.config_texts),
            seams=CheckSeams(PosixFileSystem(), SystemClock(), SystemIdGenerator()),
            machine=this_machine(),
            environment=os.environ,
            probes_store=probes_store,
        )
    )
