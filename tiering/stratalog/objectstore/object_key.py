"""The alphabet of object keys.

A key is one or more segments between single slashes. A segment has 1 to 255 characters of `A-Z a-z 0-9 _ = .
-` and begins with a letter, a digit or an underscore. A key has at most 900 characters, so that S3's 1,024
bytes leave room for the store's own prefix. So a key means the same on every store: nothing needs escaping in
a URL, nothing leaves the root of a local directory, no store renames it, and names that begin with a dot are
free for the local store's own files. Keys from metadata are checked here too, so a forged one is refused.
"""

from __future__ import annotations

import re

from stratalog.base.errors import InvalidRequestError

MAX_KEY_CHARACTERS = 900
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_=.-]{0,254}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


def is_key(name: str) -> bool:
    """Whether this can name an object."""
    return len(name) <= MAX_KEY_CHARACTERS and _KEY.fullmatch(name) is not None


def is_prefix(name: str) -> bool:
    """Whether some key begins like this."""
    return len(name) <= MAX_KEY_CHARACTERS and _PREFIX.fullmatch(name) is not None


def check_key(key: str) -> str:
    """The key itself. Raises InvalidRequestError if it is outside the alphabet."""
    if not is_key(key):
        raise InvalidRequestError(
            "this is not an object key; use A-Z a-z 0-9 _ = . - and single slashes", key=key[:100]
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, which may be empty. Raises InvalidRequestError if no key can begin with it."""
    if not is_prefix(prefix):
        raise InvalidRequestError(
            "no object key begins like this; use A-Z a-z 0-9 _ = . - and single slashes", prefix=prefix[:100]
        )
    return prefix


def directory_of(key_or_prefix: str) -> str:
    """The part before the last segment, with its slash; empty at the top."""
    return key_or_prefix[: key_or_prefix.rfind("/") + 1]
