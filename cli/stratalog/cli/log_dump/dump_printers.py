"""The two printers of a dump: JSON lines for programs, and a table for people.

A file may have millions of rows, so the widths of the columns come from the first page and then only grow.
Cells hold no blanks: a row survives `awk`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import click

from stratalog.cli.json_pieces import is_long, json_pieces
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, Row
from stratalog.cli.output import Cell, print_pieces, utc_time
from stratalog.cli.records.record_json import JsonValue

_PAGE_ROW_COUNT = 200
_PAGE_CHARS = 1 << 20
"""Records of this size end the first page earlier."""
_NONE = -1
_TIMES = frozenset(
    {
        "timestamp",
        "min_timestamp",
        "max_timestamp",
        "last_timestamp",
        "delete_horizon_ms",
        "clean_due_ms",
        "time_ms",
    }
)

_Fields = dict[str, JsonValue]


class JsonDump:
    """Prints an item as one JSON object on a line."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name

    def add(self, item: DumpItem) -> None:
        fields: _Fields = item.fields if isinstance(item, Row) else {**item._asdict()}
        row_type = item.type if isinstance(item, Row) else "corrupt"
        print_pieces(json_pieces({"file": self._file_name, "type": row_type, **fields}, sort_keys=True))

    def finish(self) -> None:
        """Do nothing: rows are printed at once."""


class _Column(NamedTuple):
    title: str
    cell: Callable[[_Fields], Cell]
    is_number: bool


class TextDump:
    """Prints the rows of a file as one table, with records and corrupt places between them. Not
    thread-safe."""

    def __init__(self) -> None:
        self._type = ""
        """The type of the rows of the table that is being printed."""
        self._columns: Sequence[_Column] = ()
        self._widths: list[int] = []
        self._held: list[str | list[str]] | None = []
        """The first page; None once it is printed."""
        self._held_chars = 0

    def add(self, item: DumpItem) -> None:
        if isinstance(item, CorruptPlace):
            self._add_line(corrupt_line(item))
        elif item.type == "record":
            self._add_record(item.fields)
        elif item.type == "preallocated":
            self._add_line(
                "{size_bytes} bytes of zeros from position {position} on: preallocated".format(**item.fields)
            )
        elif item.type in _SINGLE:
            self._begin_part(item.type)
            for name, value in item.fields.items():
                self._add_line(f"{name}: {_compact(value)}")
        else:
            self._add_row(item)

    def finish(self) -> None:
        held, self._held = self._held, None
        if any(isinstance(line, list) for line in held or ()):
            self._print([column.title for column in self._columns])
        for line in held or ():
            self._print(line)

    def _add_row(self, row: Row) -> None:
        if row.type != self._type:
            self._begin_part(row.type)
            self._columns = _COLUMNS.get(row.type) or [
                _column(name, is_number=isinstance(value, int)) for name, value in row.fields.items()
            ]
            self._widths = [len(column.title) for column in self._columns]
        cells = [_text(column.cell(row.fields)) for column in self._columns]
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        self._add_line(cells)

    def _begin_part(self, row_type: str) -> None:
        """Print the rows of the former type, if there were any."""
        if self._type:
            self.finish()
            self._held, self._held_chars, self._columns = [], 0, ()
        self._type = row_type

    def _add_record(self, fields: _Fields) -> None:
        """Keys and values are printed as JSON, so that a record is one line."""
        if is_long(fields):
            # This record alone is more than a page.
            self.finish()
            print_pieces(_record_pieces(fields))
        else:
            self._add_line("".join(_record_pieces(fields)))

    def _add_line(self, line: str | list[str]) -> None:
        if self._held is None:
            self._print(line)
            return
        self._held.append(line)
        self._held_chars += len(line) if isinstance(line, str) else 0
        if len(self._held) == _PAGE_ROW_COUNT or self._held_chars > _PAGE_CHARS:
            self.finish()

    def _print(self, line: str | list[str]) -> None:
        if isinstance(line, list):
            padded = [
                cell.rjust(width) if column.is_number else cell.ljust(width)
                for cell, width, column in zip(line, self._widths, self._columns, strict=True)
            ]
            line = "  ".join(padded).rstrip()
        click.echo(line)


def corrupt_line(place: CorruptPlace) -> str:
    """The corrupt place in one line that `grep CORRUPT` finds."""
    where = "" if place.position is None else f" at position {place.position}"
    unreached = f"; {place.unreached_bytes} bytes not reached" if place.unreached_bytes else ""
    return f"CORRUPT{where}: {place.reason}{unreached}"


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _record_pieces(fields: _Fields) -> Iterator[str]:
    yield f"    {fields['offset']}  {_text(_value('timestamp')(fields))}  "
    yield from json_pieces(fields["key"])
    yield "  "
    yield from json_pieces(fields["value"])
    if fields["headers"]:
        yield "  headers "
        yield from json_pieces(fields["headers"])


def _value(name: str) -> Callable[[_Fields], Cell]:
    """The value of a field; a time in UTC, if a calendar has it; None for null and for Kafka's -1."""

    def cell(fields: _Fields) -> Cell:
        value = fields.get(name)
        if isinstance(value, list | dict | float):
            return _compact(value)
        if value is None or value == _NONE:
            return None
        return (utc_time(value) or value) if name in _TIMES and isinstance(value, int) else value

    return cell


def _compact(value: JsonValue) -> str:
    """A value as text: JSON without blanks between its parts, unless it is a text or a number."""
    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _column(name: str, title: str = "", *, is_number: bool = True) -> _Column:
    title = title or name.removesuffix("_ms").replace("_", " ").upper()
    return _Column(title, _value(name), is_number and name not in _TIMES)


def _pair(title: str, first: str, second: str, separator: str) -> _Column:
    """Two numbers that belong together; empty if the first one is."""

    def cell(fields: _Fields) -> Cell:
        return None if _value(first)(fields) is None else f"{fields[first]}{separator}{fields[second]}"

    return _Column(title, cell, is_number=True)


def _attributes(fields: _Fields) -> Cell:
    """The attributes that most batches do not have."""
    words = [name for name in ("transactional", "control") if fields[f"is_{name}"]]
    if fields["control_type"] is not None:
        words.append(str(fields["control_type"]))
    if fields["coordinator_epoch"] is not None:
        words.append(f"coordinator_epoch={fields['coordinator_epoch']}")
    horizon = _value("delete_horizon_ms")(fields)
    if horizon is not None:
        words.append(f"delete_horizon={horizon}")
    return ",".join(words) or None


def _check(fields: _Fields) -> Cell:
    return "ok" if fields["crc_matches"] else "WRONG"


_SINGLE = frozenset(
    {"identity", "head", "checkpoint", "page_file", "history", "object_header", "object_footer"}
)
"""Rows of which a file has one: each of their fields is a line."""
_COLUMNS = {
    "batch": (
        _column("position"),
        _column("size_bytes", "BYTES"),
        _column("base_offset", "BASE"),
        _column("last_offset", "LAST"),
        _column("records_count", "RECORDS"),
        _column("leader_epoch", "EPOCH"),
        _column("codec", is_number=False),
        _column("timestamp_type", is_number=False),
        _column("max_timestamp"),
        _pair("PRODUCER", "producer_id", "producer_epoch", ":"),
        _pair("SEQUENCE", "base_sequence", "last_sequence", ".."),
        _column("crc"),
        _Column("CHECK", _check, is_number=False),
        _Column("ATTRIBUTES", _attributes, is_number=False),
    ),
    "commit": (
        _column("seq"),
        _column("time_ms"),
        _column("writer", is_number=False),
        _column("uuid", is_number=False),
        _column("actions", is_number=False),
    ),
    "slice": (
        _column("topic", is_number=False),
        _column("topic_id", is_number=False),
        _column("partition"),
        _column("base_offset", "BASE"),
        _column("end_offset", "END"),
        _column("stable_end_offset", "STABLE END"),
        _column("data_position", "POSITION"),
        _column("data_bytes", "BYTES"),
        _column("record_count", "RECORDS"),
        _column("min_timestamp"),
        _column("max_timestamp"),
        _column("data_crc", "CRC"),
    ),
    "producer": (
        _pair("PRODUCER", "producer_id", "producer_epoch", ":"),
        _column("coordinator_epoch"),
        _column("current_txn_first_offset", "OPEN TRANSACTION FROM"),
        _column("last_timestamp"),
        _pair("LAST SEQUENCE", "first_sequence", "last_sequence", ".."),
        _pair("LAST OFFSETS", "first_offset", "last_offset", ".."),
    ),
}
"""The columns of these row types; any other row has a column for each field."""
