"""The results of the demonstration, as a table for people and as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from stratalog.cli.demo.oracle import Check


@dataclass(frozen=True, slots=True)
class TierCount:
    """The contents of the object store, and the records that a reader from offset 0 finds."""

    objects: int
    bytes: int
    records: int
    keys: int


@dataclass(frozen=True, slots=True)
class CompactionTotals:
    """The sums over all jobs of the compaction. `get_requests` are counted at the object store."""

    inputs: int
    get_requests: int
    input_bytes: int
    bytes_read: int
    records_in: int
    records_out: int


@dataclass(slots=True)
class DemoReport:
    """Filled step by step. Not thread-safe."""

    records: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    checks: list[Check] = field(default_factory=list[Check])
    skipped: list[str] = field(default_factory=list[str])
    compaction: CompactionTotals | None = None
    before: TierCount | None = None
    after: TierCount | None = None
    offsets: dict[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    def to_json(self) -> str:
        """One line. Keys of `offsets` are `TOPIC-PARTITION`, the names within are those of DescribeLog."""
        return json.dumps(
            {
                "records": self.records,
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "checks": [check._asdict() for check in self.checks],
                "skipped": self.skipped,
                "compaction": asdict(self.compaction) if self.compaction else None,
                "objects": {
                    "before": asdict(self.before) if self.before else None,
                    "after": asdict(self.after) if self.after else None,
                },
                "offsets": self.offsets,
            },
            default=dict,
        )

    def print_to(self, console: Console) -> None:
        """The tables: before and after compaction, what it read, seconds by step, checks."""
        console.print(self._objects_table())
        console.print(self._compaction_table())
        console.print(self._seconds_table())
        console.print(self._checks_table())
        for reason in self.skipped:
            console.print(f"skipped: {reason}", style="yellow", highlight=False)

    def _objects_table(self) -> Table:
        table = _table("In the object store", ("", "before compaction", "after compaction"))
        if self.before and self.after:
            for name in ("objects", "bytes", "records", "keys"):
                table.add_row(name, f"{getattr(self.before, name):,}", f"{getattr(self.after, name):,}")
        return table

    def _compaction_table(self) -> Table:
        table = _table("Read by the compaction", ("", "in all", "a file"))
        if self.compaction:
            files = self.compaction.inputs
            table.add_row("files", f"{files:,}", "")
            for name, count in (
                ("GET requests", self.compaction.get_requests),
                ("bytes", self.compaction.bytes_read),
                ("records", self.compaction.records_in),
            ):
                table.add_row(name, f"{count:,}", f"{count / max(files, 1):,.1f}")
        return table

    def _seconds_table(self) -> Table:
        table = _table("Time", ("step", "seconds"))
        for name, seconds in self.seconds.items():
            table.add_row(name, f"{seconds:.2f}")
        return table

    def _checks_table(self) -> Table:
        table = _table("Checks", ("check", "", "what was compared"))
        for check in self.checks:
            table.add_row(check.name, "[green]ok[/]" if check.ok else "[bold red]FAILED[/]", check.detail)
        return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or title == "Checks" else "right")
    return table
