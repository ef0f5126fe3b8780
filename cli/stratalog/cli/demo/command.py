"""`stratalog demo`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stratalog.base.clock import SystemClock
from stratalog.cli.demo import flights
from stratalog.cli.demo.demo_server import DemoServer
from stratalog.cli.demo.places import DemoPlaces
from stratalog.cli.demo.report import DemoReport
from stratalog.cli.demo.story import Story, fail_unless_ok, next_commands
from stratalog.cli.interrupts import interrupt_on_signals
from stratalog.cli.options import require_unicode


@click.command()
@click.option(
    "--store",
    callback=require_unicode,
    metavar="URL",
    help="Use this store (a prefix of its own below it) instead of a directory.",
)
@click.option(
    "--keep",
    callback=require_unicode,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Put data directory and objects into this empty directory, and keep them.",
)
@click.option("--serve", is_flag=True, help="Leave the server up until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
@click.option(
    "--flights",
    "flight_count",
    type=click.IntRange(1, flights.FLIGHT_COUNT),
    default=flights.FLIGHT_COUNT,
    show_default=True,
    help="Replay only the first flights of the year.",
)
def demo(store: str | None, keep: Path | None, serve: bool, as_json: bool, flight_count: int) -> None:
    """Run the whole system on real data, and check the result.

    Appends the flights of New York City in 2013, tiers them, deletes the local copies, compacts the objects,
    loses the data directory, starts again from the bucket, and compares what comes back with a computation in
    pandas.

    \b
    Example: stratalog demo --keep /tmp/demo --serve
    """
    flights.require_installed()
    interrupt_on_signals()
    console = Console(stderr=as_json)
    report = DemoReport()
    places = DemoPlaces(keep, store)
    server = DemoServer(places.data_dir, places.store_url, places.server_log)
    try:
        with _progress() as progress:
            Story(places, server, flight_count, progress, report).run()
        report.print_to(console)
        if serve:
            console.print(next_commands(server.address, places), highlight=False)
            console.print("Ctrl-C ends it.", highlight=False)
            # Not signal.pause(), which misses an interrupt that comes just before it.
            while True:
                SystemClock().sleep(0.5)
        else:
            server.stop()
            console.print(next_commands(None, places), highlight=False)
    except KeyboardInterrupt:
        if not (serve and report.ok):
            raise
    finally:
        server.stop()
        places.clean_up(was_served=server.has_listened)
    if as_json:
        click.echo(report.to_json())
    fail_unless_ok(report)


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
