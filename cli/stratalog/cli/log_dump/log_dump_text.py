"""A dump for people: one table for each file, with corrupt places and records between its rows.

A file may have millions of rows, so the widths of the columns come from the first page of them and only ever
grow. Cells hold no blanks: a row survives `awk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from stratalog.cli.json_pieces import is_long, json_pieces
from stratalog.cli.log_dump.log_dump_entries import CorruptPlace, DumpEntry, DumpItem
from stratalog.cli.output import Cell, print_pieces, utc_time
from stratalog.cli.record_json import JsonValue

_PAGE_ROW_COUNT = 200
_PAGE_CHARS = 1 << 20
"""So many of records end the first page earlier."""
_NONE = -1

_Fields = dict[str, JsonValue]


class _Column(NamedTuple):
    title: str
    cell: Callable[[_Fields], Cell]
    is_number: bool = True


class TextDump:
    """Prints the items of one file. One task's; `finish` it."""

    def __init__(self) -> None:
        self._columns: tuple[_Column, ...] = ()
        self._widths: list[int] = []
        self._held: list[str | list[str]] = []
        self._held_chars = 0
        self._is_flowing = False

    def add(self, item: DumpItem) -> None:
        """Print it, or hold it until there is a page."""
        if isinstance(item, CorruptPlace):
            self._add_line(corrupt_line(item))
        elif item.type == "record" and is_long(item.fields):
            # With this there is more than a page.
            self.finish()
            print_pieces(_record_pieces(item.fields))
        elif item.type in _LINES:
            self._add_line(_LINES[item.type](item.fields))
        else:
            self._add_row(item)

    def finish(self) -> None:
        """Print what is held."""
        if self._is_flowing:
            return
        self._is_flowing = True
        rows = [line for line in self._held if not isinstance(line, str)]
        if rows:
            self._print_row([column.title for column in self._columns])
        for line in self._held:
            if isinstance(line, str):
                click.echo(line)
            else:
                self._print_row(line)
        self._held.clear()

    def _add_row(self, entry: DumpEntry) -> None:
        if not self._columns:
            self._columns = _TABLES[entry.type]
            self._widths = [len(column.title) for column in self._columns]
        cells = [_text(column.cell(entry.fields)) for column in self._columns]
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        if self._is_flowing:
            self._print_row(cells)
        else:
            self._hold(cells)

    def _add_line(self, line: str) -> None:
        if self._is_flowing:
            click.echo(line)
        else:
            self._hold(line)

    def _hold(self, line: str | list[str]) -> None:
        self._held.append(line)
        self._held_chars += len(line) if isinstance(line, str) else 0
        if len(self._held) == _PAGE_ROW_COUNT or self._held_chars > _PAGE_CHARS:
            self.finish()

    def _print_row(self, cells: list[str]) -> None:
        padded = [
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(cells, self._widths, self._columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def corrupt_line(place: CorruptPlace) -> str:
    """A corrupt place in one line that `grep CORRUPT` finds."""
    where = "" if place.position is None else f" at position {place.position}"
    unreached = f"; {place.unreached_bytes} bytes not reached" if place.unreached_bytes else ""
    return f"CORRUPT{where}: {place.reason}{unreached}"


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _field(name: str) -> Callable[[_Fields], Cell]:
    """The field as it is; nothing where it is null or Kafka's -1 for none."""

    def cell(fields: _Fields) -> Cell:
        value = fields[name]
        assert value is None or isinstance(value, int | str)
        return None if value == _NONE else value

    return cell


def _time(name: str) -> Callable[[_Fields], Cell]:
    """A time as people read it, or the number where it is none that they could."""
    number = _field(name)

    def cell(fields: _Fields) -> Cell:
        value = number(fields)
        return (utc_time(value) or value) if isinstance(value, int) else None

    return cell


def _pair(first: str, second: str, separator: str) -> Callable[[_Fields], Cell]:
    """Two numbers that belong together; nothing where the first is none."""
    number = _field(first)

    def cell(fields: _Fields) -> Cell:
        return None if number(fields) is None else f"{fields[first]}{separator}{fields[second]}"

    return cell


def _attributes(fields: _Fields) -> Cell:
    """What is not the same for nearly every batch."""
    words = [name for name in ("transactional", "control") if fields[f"is_{name}"]]
    if fields["control_type"] is not None:
        words.append(str(fields["control_type"]))
    if fields["coordinator_epoch"] is not None:
        words.append(f"coordinator_epoch={fields['coordinator_epoch']}")
    horizon = _time("delete_horizon_ms")(fields)
    if horizon is not None:
        words.append(f"delete_horizon={horizon}")
    return ",".join(words) or None


def _crc(fields: _Fields) -> Cell:
    return "ok" if fields["crc_matches"] else "WRONG"


def _record_line(fields: _Fields) -> str:
    return "".join(_record_pieces(fields))


def _record_pieces(fields: _Fields) -> Iterator[str]:
    """Keys and values as JSON has them: whatever is in them, it is one line."""
    yield f"    {fields['offset']}  {_text(_time('timestamp')(fields))}  "
    yield from json_pieces(fields["key"])
    yield "  "
    yield from json_pieces(fields["value"])
    if fields["headers"]:
        yield "  headers "
        yield from json_pieces(fields["headers"])


def _preallocated_line(fields: _Fields) -> str:
    return f"{fields['size_bytes']} bytes of zeros from position {fields['position']} on: preallocated"


def _numbers(*names: str) -> tuple[_Column, ...]:
    return tuple(_Column(name.replace("_", " ").upper(), _field(name)) for name in names)


def _words(*names: str) -> tuple[_Column, ...]:
    return tuple(column._replace(is_number=False) for column in _numbers(*names))


_TABLES: dict[str, tuple[_Column, ...]] = {
    "batch": (
        _Column("POSITION", _field("position")),
        _Column("BYTES", _field("size_bytes")),
        _Column("BASE", _field("base_offset")),
        _Column("LAST", _field("last_offset")),
        _Column("RECORDS", _field("records_count")),
        _Column("EPOCH", _field("leader_epoch")),
        _Column("CODEC", _field("codec"), is_number=False),
        _Column("TIMESTAMP TYPE", _field("timestamp_type"), is_number=False),
        _Column("MAX TIMESTAMP", _time("max_timestamp"), is_number=False),
        _Column("PRODUCER", _pair("producer_id", "producer_epoch", ":")),
        _Column("SEQUENCE", _pair("base_sequence", "last_sequence", "..")),
        _Column("CRC", _field("crc")),
        _Column("CHECK", _crc, is_number=False),
        _Column("ATTRIBUTES", _attributes, is_number=False),
    ),
    "offset_index_entry": _numbers("offset", "position"),
    "time_index_entry": (*_numbers("offset"), _Column("TIMESTAMP", _time("timestamp"), is_number=False)),
    "aborted_transaction": _numbers("producer_id", "first_offset", "last_offset", "last_stable_offset"),
    "producer": (
        _Column("PRODUCER", _pair("producer_id", "producer_epoch", ":")),
        _Column("COORDINATOR EPOCH", _field("coordinator_epoch")),
        _Column("OPEN TRANSACTION FROM", _field("current_txn_first_offset")),
        _Column("LAST TIMESTAMP", _time("last_timestamp"), is_number=False),
        _Column("LAST SEQUENCE", _pair("first_sequence", "last_sequence", "..")),
        _Column("LAST OFFSETS", _pair("first_offset", "last_offset", "..")),
    ),
    "leader_epoch": _numbers("leader_epoch", "start_offset"),
    "checkpoint_offset": (*_words("topic"), *_numbers("partition", "offset")),
    "clean_due": (
        *_words("topic"),
        *_numbers("partition"),
        _Column("DUE", _time("due_ms"), is_number=False),
    ),
    "seal": _numbers(
        "log_size_bytes", "end_offset", "offset_index_bytes", "time_index_bytes", "aborted_bytes"
    ),
    "partition_metadata": _words("topic_id"),
    "import_mark": _numbers("epoch"),
    "quorum_state": _words("name", "value"),
    "property": _words("name", "value"),
    "claim": _words("claim"),
}
_LINES: dict[str, Callable[[_Fields], str]] = {"record": _record_line, "preallocated": _preallocated_line}
