"""The progress of work on a store on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize

if TYPE_CHECKING:
    from stratalog.base.clock import Clock

_LINE_INTERVAL_S = 10.0


@contextmanager
def byte_progress(clock: Clock, total_bytes: int, label: str) -> Generator[Callable[[str, int], None]]:
    """A function to call with what is done, such as "copied 3 objects", and its bytes, one call at a time.
    A bar has the label instead."""
    if not sys.stderr.isatty():
        yield _Lines(clock, total_bytes).show
        return
    with click.progressbar(length=total_bytes, label=label, file=sys.stderr) as bar:
        yield lambda _, done_bytes: bar.update(done_bytes - bar.pos)


class _Lines:
    """A line each ten seconds. Guarded by its caller."""

    def __init__(self, clock: Clock, total_bytes: int) -> None:
        self._clock = clock
        self._total_bytes = total_bytes
        self._last_s = clock.monotonic_s()

    def show(self, done: str, done_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s >= _LINE_INTERVAL_S:
            self._last_s = now_s
            click.echo(f"{done}, {ByteSize(done_bytes)} of {ByteSize(self._total_bytes)}", err=True)
