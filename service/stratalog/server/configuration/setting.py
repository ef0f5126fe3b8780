"""One setting of a server's start: its names, the values that it takes, and its field of `ServerSettings`.

A setting has one name in all its forms: the key `max-silence` of the configuration file, the option
`--max-silence`, and the variable `STRATALOG_MAX_SILENCE`. The unit is the same in all of them; the field of
`ServerSettings` may have a finer one. Settings that few servers need have no option, so that `--help` stays
short; the names of these end with their unit, as the names of the fields do.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import decimal_key, number_key
from stratalog.server.configuration.settings import ServerSettings

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
"""A value in the unit of its setting."""

_FIELDS = {field.name: field for field in dataclasses.fields(ServerSettings)}
_REDACTED = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKind:
    """The values that a setting takes. Immutable, hence thread-safe."""

    metavar: str
    """The value in a help; empty for an option without a value."""
    allowed: str
    """The values in words."""
    from_texts: Callable[[Sequence[str]], Value]
    """The value of an option or a variable. Raises ValueError."""
    checked: Callable[[Any], Value]
    """The value of a key in a file. Raises ValueError."""
    is_repeatable: bool = False
    """Whether the option may be repeated; spaces separate the parts in the environment."""
    factor: int = 1
    """The unit of the setting in units of the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting. Immutable, hence thread-safe."""

    name: str
    """The key in the file."""
    field_name: str
    """The field of `ServerSettings`."""
    kind: SettingKind
    help: str
    """One to four sentences for people, without the default."""
    option: str = ""
    """The option of the command line; empty without one."""
    example: str = ""
    """A value for the example file, if there is no default."""
    is_secret: bool = False
    """Whether the value stays out of what is shown and logged."""
    is_clients_too: bool = False
    """Whether commands that connect to a server have a variable of this name."""

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        prefix = "STRATALOG_SERVER_" if self.is_clients_too else "STRATALOG_"
        return prefix + self.name.replace("-", "_").upper()

    @property
    def default(self) -> Value:
        """The default in the unit of the setting; empty for a required one."""
        field = _FIELDS[self.field_name]
        if field.default is dataclasses.MISSING:
            return ""
        value: Value = field.default
        return value // self.kind.factor if isinstance(value, int) and self.kind.factor > 1 else value

    def field_value(self, value: Value) -> Value:
        """The value in the unit of the field."""
        return value * self.kind.factor if isinstance(value, int) and self.kind.factor > 1 else value

    def of_texts(self, texts: Sequence[str], source: str) -> Value:
        """The value of an option or a variable; `source` is its name. Raises InvalidConfigError."""
        try:
            return self.kind.from_texts(texts)
        except ValueError:
            raise self._refusal(" ".join(texts), source) from None

    def of_file(self, value: object, path: str) -> Value:
        """The value of a key in the file `path`. Raises InvalidConfigError."""
        try:
            return self.kind.checked(value)
        except ValueError:
            raise self._refusal(toml_text(value), path) from None

    def shown(self, value: Value) -> Value:
        """The value for people and programs: a secret is hidden, and so is the user in a URL."""
        if self.is_secret and value:
            return _REDACTED
        return _without_user(value) if isinstance(value, str) else value

    def _refusal(self, text: str, source: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"`{self.name}` does not take this value; give it {self.kind.allowed}",
            name=self.name,
            value=self.shown(text[:200]),
            allowed=self.kind.allowed,
            source=source,
        )


def _without_user(text: str) -> str:
    """The text with the users and passwords of its URLs hidden, also of mistyped ones."""
    return re.sub(r"(?<!file:)(?<!/)//[^?@\s]+@", f"//{_REDACTED}@", text)


def toml_text(value: object) -> str:
    """The value in TOML, of a type that settings have. Values of other types are as Python shows them."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # The escapes of JSON are those of TOML.
            return json.dumps(value, ensure_ascii=False)
        case tuple() | list():
            return "[" + ", ".join(map(toml_text, cast("Sequence[object]", value))) + "]"
        case _:
            return str(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    # Names of places appear in messages and URLs. UnicodeEncodeError is a ValueError.
    value.encode()
    return value


def _list_of(value: object, part: Callable[[object], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(value)
    return tuple(map(part, cast("list[object]", value)))


def text_kind(metavar: str, allowed: str) -> SettingKind:
    """Text in UTF-8."""
    return SettingKind(
        metavar=metavar, allowed=allowed, from_texts=lambda texts: _text(texts[-1]), checked=_text
    )


def text_list_kind(metavar: str, allowed: str) -> SettingKind:
    """Texts in UTF-8: an option that may be repeated."""
    return SettingKind(
        metavar=metavar,
        allowed=allowed,
        from_texts=lambda texts: tuple(map(_text, texts)),
        checked=lambda value: _list_of(value, _text),
        is_repeatable=True,
    )


def choice_kind(choices: Sequence[str]) -> SettingKind:
    """One of these words."""

    def checked(value: object) -> str:
        if value not in choices:
            raise ValueError(value)
        return _text(value)

    return SettingKind(
        metavar="|".join(choices),
        allowed="one of " + ", ".join(choices),
        from_texts=lambda texts: checked(texts[-1]),
        checked=checked,
    )


_FLAG_BY_WORD: Mapping[str, bool] = {
    "1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False
}  # fmt: skip


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _flag_of_texts(texts: Sequence[str]) -> bool:
    word = texts[-1].strip().lower()
    if word not in _FLAG_BY_WORD:
        raise ValueError(word)
    return _FLAG_BY_WORD[word]


FLAG = SettingKind(metavar="", allowed="true or false", from_texts=_flag_of_texts, checked=_flag)


def number_kind(metavar: str, minimum: int, maximum: int, factor: int = 1) -> SettingKind:
    """A whole number in [minimum, maximum], as keys of topics take it."""
    key = number_key("", minimum, maximum)

    def checked(value: object) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(value)
        return value

    return SettingKind(
        metavar=metavar,
        allowed=key.allowed,
        from_texts=lambda texts: _parsed(key.parse, texts[-1]),
        checked=checked,
        factor=factor,
    )


def decimal_kind(metavar: str, minimum: float, maximum: float) -> SettingKind:
    """A decimal number in [minimum, maximum]."""
    key = decimal_key("", minimum, maximum)

    def checked(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise ValueError(value)
        return float(value)

    return SettingKind(
        metavar=metavar,
        allowed=key.allowed,
        from_texts=lambda texts: _parsed(key.parse, texts[-1]),
        checked=checked,
    )


def number_list_kind(metavar: str, allowed: str, maximum: int) -> SettingKind:
    """Whole numbers in [0, maximum], with commas between them in an option."""
    key = number_key("", 0, maximum)

    def number(value: object) -> int:
        if type(value) is not int or not 0 <= value <= maximum:
            raise ValueError(value)
        return value

    def from_texts(texts: Sequence[str]) -> tuple[int, ...]:
        return tuple(_parsed(key.parse, text) for text in texts[-1].split(",")) if texts[-1].strip() else ()

    return SettingKind(
        metavar=metavar,
        allowed=allowed,
        from_texts=from_texts,
        checked=lambda value: _list_of(value, number),
    )


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except InvalidConfigError:
        raise ValueError(text) from None
