"""The text of `tier collect`: its counts are those of its tables."""

from __future__ import annotations

import pytest

from stratalog.cli.commands.tier_commands import print_collection
from stratalog.client import values

NOTHING = values.CollectionResult(
    dry_run=True,
    deleted_count=0,
    deleted_bytes=0,
    waiting_count=0,
    waiting_bytes=0,
    reason="",
    deleted_files=(),
    waiting_files=(),
    pinned_count=0,
    orphans=(),
    orphan_files=(),
    waiting_orphan_files=(),
    trimmed_history_count=0,
    expired_pin_count=0,
    problems=(),
    left_out_shards=(),
)


def orphan(number: int) -> values.OrphanFile:
    return values.OrphanFile(
        name=f"shards/0000/data/{number}",
        kind=values.OrphanKind.DATA,
        size_bytes=1,
        write_time_ms=0,
        due_time_ms=0,
    )


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (0, ""),
        (1, "1 orphan stays for now"),
        (2, "2 orphans stay for now"),
        (1000, "1000 orphans or more stay for now"),
    ],
)
def test_orphans_that_stay_are_counted(count: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_collection(NOTHING._replace(waiting_orphan_files=tuple(map(orphan, range(count)))))
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "would delete 0 dropped files, 0B; 0 dropped files, 0B, stay for now"
    assert [one for one in others if "for now" in one] == ([line] if line else [])
    assert sum(one.split()[-1:] == ["stays"] for one in others) == count
