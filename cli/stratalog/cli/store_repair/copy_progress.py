"""The progress of a copy of objects on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.output import counted

if TYPE_CHECKING:
    from stratalog.base.clock import Clock
    from stratalog.remote.restore.store_restore import RestoreProgress

_LINE_INTERVAL_S = 10.0


@contextmanager
def copy_progress(clock: Clock, total_bytes: int) -> Generator[Callable[[RestoreProgress], None]]:
    """A function to call with each progress, one call at a time."""
    if not sys.stderr.isatty():
        yield _Lines(clock, total_bytes).show
        return
    with click.progressbar(length=total_bytes, label="copies objects", file=sys.stderr) as bar:
        yield lambda progress: bar.update(progress.done_bytes - bar.pos)


class _Lines:
    """A line each ten seconds. Guarded by its caller."""

    def __init__(self, clock: Clock, total_bytes: int) -> None:
        self._clock = clock
        self._total_bytes = total_bytes
        self._last_s = clock.monotonic_s()

    def show(self, progress: RestoreProgress) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s >= _LINE_INTERVAL_S:
            self._last_s = now_s
            count = progress.server_count + progress.through_here_count + progress.there_count
            click.echo(
                f"copied {counted(count, 'object')}, {ByteSize(progress.done_bytes)} of"
                f" {ByteSize(self._total_bytes)}",
                err=True,
            )
