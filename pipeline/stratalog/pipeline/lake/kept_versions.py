"""How long a table keeps what only its former versions have.

Properties of the table say it, under the names that other programs for its format know:

    iceberg   history.expire.max-snapshot-age-ms     5 days    a snapshot stays so long after the next one
              history.expire.min-snapshots-to-keep   1         and while there are no more than these
              gc.enabled                             true      false: nothing is deleted
    delta     delta.deletedFileRetentionDuration     7 days    a removed file stays so long
              delta.logRetentionDuration             30 days   so do commits before a checkpoint
              delta.enableExpiredLogCleanup          true      false: commits stay

A plain Parquet table has no such properties: it keeps its newest version and the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from stratalog.base.errors import InvalidConfigError

SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
LEAST_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
SNAPSHOTS_EXPIRE = "gc.enabled"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"
LOG_EXPIRES = "delta.enableExpiredLogCleanup"

_DAY_MS = 24 * 3600 * 1000
_UNITS_MS = {
    "week": 7 * _DAY_MS,
    "day": _DAY_MS,
    "hour": 3600 * 1000,
    "minute": 60 * 1000,
    "second": 1000,
    "millisecond": 1,
}
_INTERVAL = re.compile(rf"\s*(?:interval\s+)?((?:\d+\s+(?:{'|'.join(_UNITS_MS)})s?\s*)+)", re.IGNORECASE)
_PART = re.compile(r"(\d+)\s+([a-z]+?)s?\b", re.IGNORECASE)


def number(properties: Mapping[str, str], name: str) -> int:
    """A property that is a number above 0, or its default. Raises InvalidConfigError."""
    text = properties.get(name, "")
    if not text:
        return _NUMBERS[name]
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise _wrong(name, text, "a whole number above 0")
    return int(text)


def interval_ms(properties: Mapping[str, str], name: str) -> int:
    """A property that is an interval such as `interval 7 days`, or its default, in milliseconds. Raises
    InvalidConfigError."""
    text = properties.get(name, "")
    if not text:
        return _INTERVALS[name]
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise _wrong(name, text, "interval NUMBER weeks, days, hours, minutes or seconds")
    return sum(int(count) * _UNITS_MS[unit.lower()] for count, unit in _PART.findall(found[1]))


def flag(properties: Mapping[str, str], name: str) -> bool:
    """A property that is true or false; true by default. Raises InvalidConfigError."""
    text = properties.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise _wrong(name, text, "true or false")
    return text != "false"


def require_properties(format_name: str, given: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for a property that a table of this format lacks, or for a malformed value."""
    known = _PROPERTIES.get(format_name, {})
    for name, text in given.items():
        parse = known.get(name)
        if parse is None:
            allowed = ", ".join(known) or f"none for a table of {format_name}"
            raise InvalidConfigError(
                "a table of this format has no such property; correct or omit it",
                name=name,
                value=text,
                allowed=allowed,
            )
        if not text:
            raise _wrong(name, text, "a value")
        _ = parse(given, name)


def require_sound(format_name: str, properties: Mapping[str, str]) -> None:
    """Raise InvalidConfigError if one of these properties of a table, which other programs may have set, is
    malformed."""
    for name, parse in _PROPERTIES[format_name].items():
        _ = parse(properties, name)


_NUMBERS = {SNAPSHOT_AGE: 5 * _DAY_MS, LEAST_SNAPSHOTS: 1}
_INTERVALS = {FILE_RETENTION: 7 * _DAY_MS, LOG_RETENTION: 30 * _DAY_MS}
_PROPERTIES: Mapping[str, Mapping[str, Callable[[Mapping[str, str], str], object]]] = {
    "iceberg": {**dict.fromkeys(_NUMBERS, number), SNAPSHOTS_EXPIRE: flag},
    "delta": {**dict.fromkeys(_INTERVALS, interval_ms), LOG_EXPIRES: flag},
}


def _wrong(name: str, value: str, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(
        "a property of the table is malformed; set another value with --property",
        name=name,
        value=value,
        allowed=allowed,
    )
