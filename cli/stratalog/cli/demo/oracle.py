"""The expected result of the demonstration, computed by pandas from the table alone.

Nothing of Stratalog takes part: the last row of each plane in the order of the table is the plane's state, a
cancelled last flight means that the plane is deleted. What came back through the service or through Spark is
compared with that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratalog.cli.output import counted

if TYPE_CHECKING:
    import pandas as pd


class Check(NamedTuple):
    """One comparison: its name, whether it held, and the numbers."""

    name: str
    ok: bool
    detail: str


def last_value_per_key(table: pd.DataFrame) -> dict[bytes, bytes | None]:
    """Tail number to the JSON of its last flight, None if that one was cancelled."""
    last = table.dropna(subset=["tailnum"]).groupby("tailnum", sort=False).tail(1)
    values = _json_lines(last)
    cancelled = last["dep_time"].isna()
    return {
        str(tail).encode(): None if gone else value.encode()
        for tail, value, gone in zip(last["tailnum"], values, cancelled, strict=True)
    }


def values_without_key(table: pd.DataFrame) -> Counter[bytes]:
    """The JSON of every flight without a tail number, as often as it occurs."""
    return Counter(line.encode() for line in _json_lines(table[table["tailnum"].isna()]))


def last_value_per_destination(table: pd.DataFrame) -> dict[bytes, bytes | None]:
    """Destination to the JSON of the last flight there without a tail number."""
    last = table[table["tailnum"].isna()].groupby("dest", sort=False).tail(1)
    return {
        str(destination).encode(): value.encode()
        for destination, value in zip(last["dest"], _json_lines(last), strict=True)
    }


def state_of_table(files: Iterable[Path]) -> dict[bytes, bytes | None]:
    """Key to value by the Parquet files of a table of the latest state."""
    import pandas as pd

    rows = pd.concat([pd.read_parquet(file, columns=["key", "value"]) for file in files])
    assert rows["key"].is_unique, "a table of the latest state has one row a key"
    return dict(zip(rows["key"], rows["value"], strict=True))


def compare_state(
    name: str, expected: Mapping[bytes, bytes | None], found: Mapping[bytes, bytes | None]
) -> Check:
    """Every key's last value, key by key. A deleted key may be absent: its tombstone may have gone."""
    wrong = [key for key, value in expected.items() if found.get(key) != value]
    strange = [key for key in found if key not in expected]
    live = sum(value is not None for value in expected.values())
    detail = f"{counted(len(expected), 'key')}, {live:,} of them live"
    if wrong or strange:
        detail = (
            f"{len(wrong):,} of {counted(len(expected), 'key')} differ (first: {wrong[:3]}), "
            f"{counted(len(strange), 'key')} that were never written (first: {strange[:3]})"
        )
    return Check(name, not wrong and not strange, detail)


def compare_values(name: str, expected: Counter[bytes], found: Iterable[bytes]) -> Check:
    """Every value as often as it was written, in any order."""
    times = Counter(found)
    missing, extra = expected - times, times - expected
    detail = counted(expected.total(), "record")
    if missing or extra:
        detail = (
            f"{missing.total():,} of {counted(expected.total(), 'record')} missing, {extra.total():,} strange"
        )
    return Check(name, not missing and not extra, detail)


def _json_lines(flights: pd.DataFrame) -> list[str]:
    if flights.empty:
        # Of no rows pandas makes an empty line.
        return []
    return flights.drop(columns=["time_hour"]).to_json(orient="records", lines=True).splitlines()
