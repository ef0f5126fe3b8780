"""An error as people see it on standard error."""

from __future__ import annotations

import click


def print_error(text: str) -> None:
    """Print the error as one line on standard error."""
    click.echo("error: " + " ".join(text.split()), err=True)
