"""One configuration key: its name, what it allows, and how its text becomes a value."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from stratalog.base.errors import InvalidConfigError

Value = TypeVar("Value")

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
FLOAT_MAX = sys.float_info.max
"""Java's Double.MAX_VALUE: Kafka's word for no limit."""

MAX_VALUE_LENGTH = 4_096
"""The longest text of a value. A number may have any number of zeros and spaces around it, and a text that is
taken stays in the memory and the metadata of all servers of a store."""

_MAX_NEAR_COUNT = 3
_MAX_NEAR_LENGTH = 100
"""The longest name whose neighbours are looked for: a search takes as long as the name is."""
_DECIMAL_CHARACTERS = frozenset("0123456789+-.eE")


def unknown_key(
    name: str, text: str | None, reason: str, known: Iterable[str], *, remedy: str
) -> InvalidConfigError:
    """The error for a key that is not known. It names the known keys whose names are near, or the remedy."""
    fields = {"name": name} if text is None else {"name": name, "value": text}
    is_short = len(name) <= _MAX_NEAR_LENGTH
    near = difflib.get_close_matches(name, list(known), _MAX_NEAR_COUNT) if is_short else []
    if not near:
        return InvalidConfigError(f"`{name}` {reason}; {remedy}", **fields)
    suggestion = " or ".join(f"`{key}`" for key in near)
    return InvalidConfigError(f"`{name}` {reason}; did you mean {suggestion}?", **fields, near=",".join(near))


class ConfigKey(Generic[Value]):
    """A key of Kafka's topic configuration, or one of ours. Immutable, hence thread-safe.

    `allowed` describes the texts that `parse` takes; for all others `parse` raises ValueError.
    """

    __slots__ = ("_format", "_parse", "allowed", "name")

    def __init__(
        self, name: str, allowed: str, parse: Callable[[str], Value], format_: Callable[[Value], str] = str
    ) -> None:
        self.name = name
        self.allowed = allowed
        self._parse = parse
        self._format = format_

    @property
    def field_name(self) -> str:
        """The field of `LogConfig`."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Value:
        """Parse a value. Raises InvalidConfigError with name, value and what is allowed."""
        if len(text) > MAX_VALUE_LENGTH:
            raise InvalidConfigError(
                f"{self.name} takes no text as long as this one; give it {self.allowed}",
                name=self.name,
                value=text[:_MAX_NEAR_LENGTH],
                allowed=f"at most {MAX_VALUE_LENGTH} characters: {self.allowed}",
            )
        try:
            return self._parse(text.strip())
        except ValueError:
            raise InvalidConfigError(
                f"{self.name} does not take this value; give it {self.allowed}",
                name=self.name,
                value=text,
                allowed=self.allowed,
            ) from None

    def format(self, value: Value) -> str:
        return self._format(value)

    def renamed(self, name: str) -> ConfigKey[Value]:
        """A key of another name that takes the same."""
        return ConfigKey(name, self.allowed, self._parse, self._format)


def number_key(name: str, minimum: int, maximum: int = LONG_MAX) -> ConfigKey[int]:
    """A whole number in [minimum, maximum]."""

    def parse(text: str) -> int:
        # int() would also take "1_000" and other scripts' digits, which other tools do not read.
        if not text.isascii() or "_" in text:
            raise ValueError(text)
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError(text)
        return value

    return ConfigKey(name, f"a whole number of at least {minimum} and at most {maximum}", parse)


def ratio_key(name: str) -> ConfigKey[float]:
    """A decimal number in [0, 1]."""
    return decimal_key(name, 0.0, 1.0)


def decimal_key(name: str, minimum: float, maximum: float | None = None) -> ConfigKey[float]:
    """A decimal number in [minimum, maximum]."""

    def parse(text: str) -> float:
        # float() would also take "nan", "inf", "1_0" and other scripts' digits.
        if not set(text) <= _DECIMAL_CHARACTERS:
            raise ValueError(text)
        value = float(text)
        # Too many digits make an infinity.
        if not (minimum <= value <= (FLOAT_MAX if maximum is None else maximum)):
            raise ValueError(text)
        return value

    upper = "" if maximum is None else f" and at most {maximum:g}"
    return ConfigKey(name, f"a decimal number of at least {minimum:g}{upper}", parse)


def flag_key(name: str) -> ConfigKey[bool]:
    """true or false, in any case."""

    def parse(text: str) -> bool:
        return choice_of({"true": True, "false": False}, text.lower())

    return ConfigKey(name, "true or false", parse, lambda value: "true" if value else "false")


def choice_of(choices: dict[str, Value], text: str) -> Value:
    """The choice of that name. Raises ValueError."""
    if text not in choices:
        raise ValueError(text)
    return choices[text]
