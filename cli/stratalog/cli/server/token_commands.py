"""`stratalog server token`: tokens of principals, and their lines for the access file."""

from __future__ import annotations

import os

import click

from stratalog.cli.options import require_unicode


@click.group()
def token() -> None:
    """Make tokens, with which programs come in."""


@token.command()
@click.argument("principal", callback=require_unicode)
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
