"""A search finds the dead rows that a dictionary finds, whatever the hashes and the bounds of memory."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import pyarrow as pa
import pytest
from pyroaring import BitMap

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake import dead_row_search, row_files
from stratalog.pipeline.lake.changed_keys import ChangedKeys, KeyWriter
from stratalog.pipeline.lake.dead_row_search import (
    TASK_BYTES,
    TASK_ROWS,
    DeadRowSearch,
    search_dead_rows,
)
from stratalog.pipeline.lake.formats.parquet_table import RewritingRemoval
from stratalog.pipeline.lake.lake_table import ChangedFile, DeadRows, TableFile
from stratalog.pipeline.lake.row_files import RowFiles
from stratalog.testing.manual_clock import ManualClock
from tests.support.compaction.inline_cluster import InlineCluster
from tests.support.lake.coarse_hashes import coarse_hashes

_FIELDS: list[Any] = [
    pa.field("key", pa.binary()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
]
SCHEMA = pa.schema(_FIELDS)
Key = tuple[int, bytes]


class NotedRemoval:
    """Implements `RowRemoval` by a number beside the file: its rows are those of a bitmap. Immutable."""

    writes_rows = False

    def dead_rows(self, store: ObjectStore, file: TableFile) -> BitMap:
        """The rows of the bitmap."""
        return BitMap() if file.dead is None else BitMap.deserialize(store.get(file.dead.path).data)

    def remove(self, store: ObjectStore, file: TableFile, dead: BitMap, refresh_id: str) -> ChangedFile:
        """Write the bitmap."""
        path = f"dead/{refresh_id}/{file.path}"
        data = dead.serialize()
        store.put(path, data)
        return ChangedFile(file, marked=file._replace(dead=DeadRows(path, 0, len(data), len(dead))))


class Sought:
    """A table and its changed keys. Not thread-safe: one test uses it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.store = MemoryObjectStore(ManualClock())
        self.keys = [(random.randrange(3), random.randbytes(random.randrange(9))) for _ in range(600)]
        self.rows: dict[str, list[Key]] = {}
        self.files: list[TableFile] = []
        for number in range(random.randrange(1, 5)):
            self._write_file(number)
        self.dead: set[tuple[str, int]] = set()
        """The file and the number of each row that the table must have lost."""

    def step(self) -> None:
        """Change some keys, move some log starts, and search."""
        changed = sorted(set(self.random.sample(self.keys, self.random.choice((0, 5, 100)))))
        starts: dict[int, int] = self.random.choice(({}, {1: 40}, {0: 20, 2: 200}))
        refresh_id = str(UUID(int=self.random.getrandbits(128)))
        keys = self._written(changed, refresh_id)
        search = DeadRowSearch(lambda: self.store, NotedRemoval(), refresh_id, keys, starts)
        found = search_dead_rows(InlineCluster(self.random), search, self.files)
        # Offsets are the numbers of rows.
        new = {
            (path, number)
            for path, keys in self.rows.items()
            for number, key in enumerate(keys)
            if key in changed or number < starts.get(key[0], 0)
        } - self.dead
        assert {one.before.path for one in found} == {path for path, _ in new}
        self.dead |= new
        marked = {one.before: one.marked for one in found}
        self.files = [marked.get(file) or file for file in self.files]
        dead = {file.path: NotedRemoval().dead_rows(self.store, file) for file in self.files}
        assert {(path, number) for path, numbers in dead.items() for number in numbers} == self.dead

    def _written(self, changed: Sequence[Key], refresh_id: str) -> ChangedKeys:
        if not changed:
            return ChangedKeys()
        fields: dict[str, Any] = {
            "partition": pa.array([number for number, _ in changed], pa.int32()),
            "key": pa.array([key for _, key in changed], pa.binary()),
        }
        return ChangedKeys((KeyWriter(lambda: self.store, refresh_id).write(pa.table(fields)),))

    def _write_file(self, number: int) -> None:
        keys = self.random.choices(self.keys, k=self.random.randrange(1, 400))
        output = RowFiles(self.store, SCHEMA, f"rows-{number}")
        for first in range(0, len(keys), 64):
            part = keys[first : first + 64]
            columns: list[Any] = [
                pa.array([key for _, key in part], pa.binary()),
                pa.array([partition for partition, _ in part], pa.int32()),
                pa.array(range(first, first + len(part)), pa.int64()),
            ]
            output.add(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        (written,) = output.close()
        self.files.append(written.file)
        self.rows[written.file.path] = keys


@pytest.mark.parametrize("hash_count", [1, 3, None])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_finds_what_a_dictionary_finds(
    monkeypatch: pytest.MonkeyPatch, seed: int, hash_count: int | None
) -> None:
    monkeypatch.setattr(row_files, "_GROUP_ROWS", 50)
    monkeypatch.setattr("stratalog.pipeline.lake.changed_keys._ROWS_A_BATCH", 50)
    monkeypatch.setattr(dead_row_search, "CANDIDATE_BYTES", 1_000)
    monkeypatch.setattr(dead_row_search, "TASK_ROWS", 300)
    settled: list[int] = []
    have = ChangedKeys.have

    def measured(keys: ChangedKeys, store: ObjectStore, rows: pa.Table) -> Any:
        settled.append(rows.nbytes)
        return have(keys, store, rows)

    monkeypatch.setattr(ChangedKeys, "have", measured)
    sought = Sought(seed)
    with coarse_hashes(hash_count):
        for _ in range(3):
            sought.step()
    assert max(settled, default=0) < 5_000, "the bound, and the candidates of a group of rows"


def test_a_search_for_nothing_reads_nothing() -> None:
    sought = Sought(1)
    sought.store.delete_many([file.path for file in sought.files])
    search = DeadRowSearch(lambda: sought.store, NotedRemoval(), "none", ChangedKeys(), {})
    assert search_dead_rows(InlineCluster(sought.random), search, sought.files) == []


@pytest.mark.parametrize(
    ("row_count", "file_bytes", "lane_count", "task_count"),
    [
        (1, 1, 2, 1),
        (TASK_ROWS // 40, 1, 8, 1),
        (TASK_ROWS // 40 + 1, 1, 8, 2),
        (TASK_ROWS // 20, 1, 8, 2),
        (TASK_ROWS // 20 + 1, 1, 8, 3),
        # No lane waits for another one.
        (TASK_ROWS // 20 + 1, 1, 2, 4),
        (TASK_ROWS, 1, 2, 8),
        (TASK_ROWS, 1, 100, 40),
        (1, TASK_BYTES // 4, 2, 8),
    ],
)
def test_few_rows_are_few_tasks(row_count: int, file_bytes: int, lane_count: int, task_count: int) -> None:
    """Each task costs Spark as much as the keys of half a million rows."""
    files = [TableFile(f"rows-{number}", file_bytes, row_count) for number in range(40)]
    cluster = InlineCluster(Random(1))
    search = DeadRowSearch(
        lambda: MemoryObjectStore(ManualClock()), NotedRemoval(), "none", ChangedKeys(), {}
    )
    with mock.patch.object(InlineCluster, "lane_count", lane_count):
        parts = search.divided(cluster, files)
        assert len(parts) == task_count
        assert sorted(file for part in parts for file in part) == sorted(files)
        all_lanes = replace(search, removal=RewritingRemoval()).divided(cluster, files)
        assert len(all_lanes) == min(40, 4 * lane_count), "files that are written again are work for all"
