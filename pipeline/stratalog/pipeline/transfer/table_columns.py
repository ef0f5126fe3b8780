"""Finds the columns of a table that are the columns of records, by the names that Spark would find.

Spark finds a name in any case unless `spark.sql.caseSensitive` is set. What it would not find, or would find
twice, is refused if it looks like a column of a record: a table with `Key` must not lose its keys in silence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from stratalog.base.errors import InvalidRequestError

COLUMNS = ("key", "value", "timestamp", "headers", "partition")
"""The columns of a record that a table may have."""
_WHOLE_TYPES = frozenset({"byte", "short", "integer", "long"})
_TIME_TYPES = frozenset({"timestamp", "timestamp_ntz", "date"})


def named_columns(
    names: Sequence[str], expressions: Collection[str], *, is_case_sensitive: bool
) -> Mapping[str, str]:
    """The column of the table for each column of a record that has one and no expression.

    Raises InvalidRequestError for two columns whose names differ by case only, and for a name that Spark does
    not find because of its case.
    """
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spelled[name.lower()].append(name)
    found: dict[str, str] = {}
    for column in COLUMNS:
        alike = spelled[column]
        if column in expressions or not alike:
            continue
        if len(alike) > 1:
            raise InvalidRequestError(
                "the table has two columns of that name, or they differ by case only; say which one is meant,"
                f" such as --column '{column}=NAME', or rename one with --query",
                column=column,
                columns=", ".join(alike),
            )
        if is_case_sensitive and alike[0] != column:
            raise InvalidRequestError(
                "the name of a column differs from that of a record's column by case only, and"
                f" spark.sql.caseSensitive is set; add --column '{column}={alike[0]}'",
                column=column,
                found=alike[0],
            )
        found[column] = alike[0]
    return found


def require_time_type(kind: str, scale: int = 0) -> bool:
    """True if values of the type (by its name in Spark, a decimal's `scale` beside it) are milliseconds,
    false if they are times of Spark. Raises InvalidRequestError for any other type."""
    if kind in _WHOLE_TYPES or (kind == "decimal" and scale == 0):
        return True
    if kind in _TIME_TYPES or kind == "void":
        return False
    raise InvalidRequestError(
        "the timestamp is neither a time nor a whole number of milliseconds; make it one by an expression,"
        " such as --column 'timestamp=to_timestamp(NAME)', or 'timestamp=cast(1000 * NAME as bigint)' for"
        " seconds",
        type=kind if kind != "decimal" else f"decimal with scale {scale}",
    )
