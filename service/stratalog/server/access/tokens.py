"""Bearer tokens: long random texts, of which the server knows only digests.

A token is `stratalog_ID_SECRET`. The id is no secret: it finds the digest, stands in log lines, and says
which line of the access file a token belongs to. The secret has 256 bits of chance, so a plain SHA-256 keeps
it: a slow hash protects secrets that can be guessed. The digest is that of the whole token.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NamedTuple

from stratalog.base.randomness import IdGenerator

PREFIX = "stratalog"
_ID_BYTES = 6
ID_LENGTH = 2 * _ID_BYTES
"""Characters of the id."""
_SECRET_BYTES = 32

_TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{{ID_LENGTH}}})_[A-Za-z0-9_-]{{43}}")
_ENTRY = re.compile(rf"([0-9a-f]{{{ID_LENGTH}}}):([0-9a-f]{{64}})")


class TokenDigest(NamedTuple):
    """The part of a token that the server keeps."""

    token_id: str
    digest: bytes

    @property
    def entry(self) -> str:
        """Its text in the access file."""
        return f"{self.token_id}:{self.digest.hex()}"


def new_token(ids: IdGenerator) -> str:
    """A token that no other one equals."""
    secret = base64.urlsafe_b64encode(ids.secret(_SECRET_BYTES)).decode().rstrip("=")
    return f"{PREFIX}_{ids.secret(_ID_BYTES).hex()}_{secret}"


def digest_of(token: str) -> TokenDigest | None:
    """The digest of a token; None for a text that is none."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    return TokenDigest(match[1], hashlib.sha256(token.encode()).digest())


def digest_of_entry(entry: str) -> TokenDigest | None:
    """The digest in an entry of the access file; None for a text that is no entry."""
    match = _ENTRY.fullmatch(entry)
    return None if match is None else TokenDigest(match[1], bytes.fromhex(match[2]))
