"""Tables that are refreshed often keep what their properties say, and other programs read them on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table import StaticTable

from stratalog.base.errors import InvalidConfigError, LogStoreError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.delta_log import COMMIT_KEY
from stratalog.pipeline.lake.lake_table import LakeTable, TableChangedError
from stratalog.pipeline.lake.table_format import TableFormat
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultsAt, Operation
from tests.support.lake.parquet_rows import raw_rows
from tests.support.lake.topic_table import Row, TopicTable, deletions_fail_behind_the_commit, last_rows
from tests.support.logs.sampling import Sampling
from tests.support.spark.plain_store import PlainStore

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
AGE = "history.expire.max-snapshot-age-ms"


class Site:
    """A topic and its table in a directory. Not thread-safe: one test uses it."""

    def __init__(self, directory: Path, form: TableFormat, **properties: str) -> None:
        self.topic = PlainStore()
        self.topic.create("t")
        self.directory = directory
        self.store = LocalObjectStore(PosixFileSystem(), self.topic.clock, SequentialIds(9), str(directory))
        self.form = form
        self.properties = properties
        self.table = TopicTable(Random(1), self.topic.clock, self.topic.store, "t", self.store, self._made)

    def _made(self, store: ObjectStore) -> LakeTable:
        return self.form.table(store, self.topic.clock, RawValues().arrow_type, self.properties)

    def refresh(self, *, after_ms: int = HOUR_MS, is_full: bool = False) -> None:
        """Refresh the table, once a record has come."""
        self.topic.clock.advance(after_ms)
        self.topic.upload({("t", 0): 2})
        self.table.run(is_full=is_full)
        # The files have the time of the topic's clock, and not of the disk's.
        now_s = self.topic.clock.now_ms() / 1000
        for path in self.directory.rglob("*.*"):
            if path.stat().st_mtime > now_s + 1_000_000:
                os.utime(path, (now_s, now_s))

    def there(self, prefix: str = "") -> set[str]:
        """The files of the table."""
        return {info.key for info in self.store.list(prefix)}

    def require_rows(self) -> None:
        """Check that another program reads the rows of the topic. Raises AssertionError."""
        (tip,) = self.topic.tips["t"]
        expected = sorted(last_rows(0, self.topic.tiered.records(tip)))
        assert self.rows() == expected

    def rows(self) -> list[Row]:
        """The rows as another program reads them."""
        if self.form is TableFormat.DELTA:
            found = pa.table(deltalake.DeltaTable(str(self.directory)).scan().read_all())
        else:
            found = self.iceberg().scan().to_arrow()
        return raw_rows(found.to_pylist())

    def document(self) -> dict[str, Any]:
        """The newest metadata."""
        document: dict[str, Any] = json.loads(self._newest().read_text())
        return document

    def put_document(self, document: dict[str, Any]) -> None:
        """Change the newest metadata."""
        self._newest().write_text(json.dumps(document))

    def _newest(self) -> Path:
        return max(
            self.directory.glob("metadata/v*.json"), key=lambda one: int(one.name[1:].partition(".")[0])
        )

    def iceberg(self) -> StaticTable:
        return StaticTable.from_metadata(f"file://{self.directory}")

    def named(self) -> set[str]:
        """All files that the snapshots of the table name, by pyiceberg's own reading."""
        table = self.iceberg()
        names: set[str] = set()
        for snapshot in table.metadata.snapshots:
            names.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                names.add(manifest.manifest_path)
                names |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
        return {urlsplit(name).path.removeprefix(f"{self.directory}/") for name in names}

    def require_no_orphans(self) -> None:
        """Check that snapshots name exactly the files that are there. Raises AssertionError."""
        found = {key for key in self.there("data/") | self.there("metadata/") if not _is_version(key)}
        assert found - {"metadata/version-hint.text"} == self.named()


def _is_version(key: str) -> bool:
    return key.endswith(".metadata.json")


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "table", TableFormat.ICEBERG, **{AGE: str(10 * HOUR_MS)})
    site.topic.upload({("t", 0): 40})
    site.table.run()
    yield site
    site.require_rows()


def test_snapshots_expire_with_their_files(iceberg: Site) -> None:
    for number in range(16):
        iceberg.refresh(is_full=number == 12)
        if number % 5 == 0:
            iceberg.require_no_orphans()
    iceberg.require_no_orphans()
    table = iceberg.iceberg()
    assert len(table.metadata.snapshots) == 11, "one of each of ten hours, and the newest"
    assert len(iceberg.there("metadata/v")) == 11 + 1
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0


def test_a_snapshot_stays_for_its_age_after_it_was_replaced(iceberg: Site) -> None:
    """Though it may be much older: its readers have not been able to know."""
    (before,) = iceberg.iceberg().metadata.snapshots
    iceberg.refresh(after_ms=100 * HOUR_MS)
    iceberg.refresh(after_ms=10 * HOUR_MS - 1)
    assert iceberg.iceberg().scan(snapshot_id=before.snapshot_id).to_arrow().num_rows > 0
    iceberg.refresh(after_ms=1)
    assert before.snapshot_id not in {one.snapshot_id for one in iceberg.iceberg().metadata.snapshots}
    iceberg.require_no_orphans()


def test_so_many_snapshots_stay(iceberg: Site) -> None:
    iceberg.properties["history.expire.min-snapshots-to-keep"] = "4"
    for _ in range(6):
        iceberg.refresh(after_ms=20 * HOUR_MS)
    assert len(iceberg.iceberg().metadata.snapshots) == 4
    iceberg.properties.clear()
    iceberg.refresh(after_ms=20 * HOUR_MS)
    assert len(iceberg.iceberg().metadata.snapshots) == 4, "the table keeps its properties"
    iceberg.require_no_orphans()


def test_a_table_that_another_program_keeps_whole_is_left_alone(iceberg: Site) -> None:
    iceberg.properties["gc.enabled"] = "false"
    for _ in range(3):
        iceberg.refresh(after_ms=20 * HOUR_MS)
    assert len(iceberg.iceberg().metadata.snapshots) == len(iceberg.there("metadata/v")) - 1 == 4


def test_metadata_files_stay_for_their_age_whatever_their_number(iceberg: Site) -> None:
    """The log of the metadata has room for so many; by default for a hundred."""
    document = iceberg.document()
    document["properties"]["write.metadata.previous-versions-max"] = "2"
    iceberg.put_document(document)
    for _ in range(6):
        iceberg.refresh()
    assert len(iceberg.document()["metadata-log"]) == 2
    assert len(iceberg.there("metadata/v")) == 7 + 1
    iceberg.refresh(after_ms=6 * HOUR_MS)
    assert len(iceberg.there("metadata/v")) == 7 + 1 - 1, "the first one was replaced ten hours ago"
    iceberg.refresh(after_ms=20 * HOUR_MS)
    assert len(iceberg.there("metadata/v")) == 2 + 1


def test_locations_that_another_program_spells_in_its_way(iceberg: Site) -> None:
    iceberg.refresh()
    text = json.dumps(iceberg.document())
    iceberg.put_document(json.loads(text.replace("file:///", "file:/")))
    iceberg.refresh()
    for _ in range(3):
        iceberg.refresh(after_ms=20 * HOUR_MS)
    iceberg.require_no_orphans()


def test_an_expiry_that_a_crash_has_cut_off_waits_for_snapshots_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path / "table", TableFormat.ICEBERG, **{AGE: str(10 * HOUR_MS)})
    site.topic.upload({("t", 0): 40})
    site.table.run()
    site.refresh()
    with deletions_fail_behind_the_commit(site.table):
        site.refresh(after_ms=20 * HOUR_MS)
    document = site.document()
    pending = document["properties"]["stratalog.expired"]
    assert json.loads(pending)
    # Another program begins the table anew, and keeps what was there by a tag.
    kept_id, empty = document["current-snapshot-id"], f"file://{site.directory}/metadata/empty.avro"
    output = site.iceberg().io.new_output(empty)
    with write_manifest_list(2, output, 7, None, document["last-sequence-number"], "deflate"):
        pass
    newest = {**document["snapshots"][-1], "snapshot-id": 7, "manifest-list": empty}
    document["snapshots"].append({name: newest[name] for name in newest if name != "parent-snapshot-id"})
    document["refs"]["kept"] = {"snapshot-id": kept_id, "type": "tag"}
    document["refs"]["main"]["snapshot-id"] = document["current-snapshot-id"] = 7
    site.put_document(document)
    for _ in range(2):
        site.refresh()
        (tip,) = site.topic.tips["t"]
        count = len(last_rows(0, site.topic.tiered.records(tip)))
        assert 0 < site.iceberg().scan(snapshot_id=kept_id).to_arrow().num_rows <= count
        assert site.document()["properties"]["stratalog.expired"] == pending
    assert "another program has changed the table" in caplog.text


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_tag_keeps_its_snapshot_and_a_branch_all(iceberg: Site, kind: str) -> None:
    iceberg.refresh()
    iceberg.refresh()
    document = iceberg.document()
    first, second, _ = document["snapshots"]
    document["refs"]["kept"] = {"snapshot-id": second["snapshot-id"], "type": kind}
    if kind == "branch":
        # One that goes off the row of the current snapshot.
        side = {**second, "snapshot-id": 7, "parent-snapshot-id": first["snapshot-id"]}
        document["snapshots"].append(side)
        document["refs"]["kept"]["snapshot-id"] = 7
    iceberg.put_document(document)
    for _ in range(3):
        iceberg.refresh(after_ms=20 * HOUR_MS)
    left = [one.snapshot_id for one in iceberg.iceberg().metadata.snapshots]
    assert (first["snapshot-id"] in left) == (kind == "branch")
    assert second["snapshot-id"] in left
    assert len(left) == (5 if kind == "tag" else 7)
    iceberg.require_no_orphans()


def test_one_fault_of_an_expiry_leaves_orphans_until_the_next_commit(tmp_path: Path) -> None:
    def prepared(name: str) -> Site:
        site = Site(tmp_path / name, TableFormat.ICEBERG, **{AGE: str(10 * HOUR_MS)})
        site.topic.upload({("t", 0): 40})
        site.table.run()
        site.refresh()
        site.refresh()
        site.topic.clock.advance(20 * HOUR_MS)
        site.topic.upload({("t", 0): 2})
        return site

    def run(site: Site, plan: Callable[[Operation], Fault]) -> None:
        site.table.table_store = FaultyObjectStore(site.store, Random(1), plan)
        with suppress(LogStoreError, ActorStopped):
            site.table.run()
        site.table.table_store = site.store

    operations: list[Operation] = []

    def note(operation: Operation) -> Fault:
        operations.append(operation)
        return Fault.NONE

    run(prepared("calm"), note)
    (commit,) = [one.number for one in operations if one.condition.startswith("if_")]
    behind = [one for one in operations if one.number > commit]
    assert [one.verb for one in behind].count("DELETE") > 4, "files, manifests, lists, versions and the note"
    faults = [
        (one.number, fault)
        for one in behind
        for fault in (Fault.FAILS, Fault.STOPS_BEFORE, Fault.STOPS_AFTER)
        if fault in FAULTS_OF_VERB[one.verb]
    ]
    for number, fault in Sampling().at_most(faults, 4):
        site = prepared(f"{number}-{fault.name}")
        run(site, FaultsAt({number: fault}))
        assert site.rows(), "whatever it has deleted, no version needs"
        assert site.named() <= site.there()
        site.refresh()
        site.require_no_orphans()
        site.require_rows()


def test_a_commit_behind_deleted_versions_is_no_commit(iceberg: Site) -> None:
    """A number that is free again is not one that may be taken."""
    late = iceberg.table.table()
    late.read()

    class Late:
        """The table, read long before it is committed."""

        removal = late.removal
        rows_directory = staticmethod(late.rows_directory)
        commit = staticmethod(late.commit)

        def read(self) -> Any:
            """The newest version of long ago."""
            state = late.read()
            for _ in range(3):
                iceberg.refresh(after_ms=20 * HOUR_MS)
            (iceberg.directory / "metadata/v2.metadata.json").unlink(missing_ok=True)
            return state

    iceberg.topic.upload({("t", 0): 1})
    with pytest.raises(TableChangedError):
        iceberg.table.run(table=Late())
    iceberg.refresh()


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "table", TableFormat.DELTA)
    site.properties |= {
        "delta.deletedFileRetentionDuration": "interval 12 hours",
        "delta.logRetentionDuration": "interval 1 day 12 hours",
    }
    site.topic.upload({("t", 0): 40})
    site.table.run()
    yield site
    site.require_rows()


def test_removed_files_and_old_commits_of_delta_go(delta: Site) -> None:
    counts: list[int] = []
    for number in range(50):
        delta.refresh(after_ms=2 * HOUR_MS)
        if number % 10 == 9:
            delta.require_rows()
            counts.append(len(delta.there("data/")))
    assert max(counts[3:]) <= max(counts[:3]) + 3, "it does not grow"
    commits = [int(found[1]) for key in delta.there() if (found := COMMIT_KEY.fullmatch(key)) is not None]
    assert sorted(commits) == list(range(30, 51)), "those of 36 hours, from a checkpoint on"
    former = deltalake.DeltaTable(str(delta.directory), version=48)
    assert pa.table(former.scan().read_all()).num_rows > 0
    log = "".join(path.read_text() for path in delta.directory.glob("_delta_log/*.json"))
    assert all(f'"{Path(key).parent}' in log for key in delta.there("data/")), "the log names each file"


def test_delta_keeps_its_files_for_a_week_by_default(tmp_path: Path) -> None:
    site = Site(tmp_path / "table", TableFormat.DELTA)
    site.topic.upload({("t", 0): 40})
    site.table.run()
    first = site.there("data/")
    for _ in range(10):
        site.refresh(after_ms=DAY_MS // 2, is_full=True)
    assert first <= site.there()
    for _ in range(10):
        site.refresh(after_ms=DAY_MS // 2, is_full=True)
    assert not first & site.there()
    site.require_rows()


@pytest.mark.parametrize(
    ("form", "name", "text"),
    [
        (TableFormat.PARQUET, AGE, "1"),
        (TableFormat.DELTA, AGE, "1"),
        (TableFormat.ICEBERG, AGE, "5 days"),
        (TableFormat.ICEBERG, AGE, "0"),
        (TableFormat.ICEBERG, "gc.enabled", "no"),
        (TableFormat.DELTA, "delta.logRetentionDuration", "interval 1 month"),
        (TableFormat.DELTA, "delta.logRetentionDuration", ""),
    ],
)
def test_properties_are_those_of_the_format(tmp_path: Path, form: TableFormat, name: str, text: str) -> None:
    site = Site(tmp_path / "table", form, **{name: text})
    site.topic.upload({("t", 0): 1})
    with pytest.raises(InvalidConfigError) as caught:
        site.table.run()
    assert caught.value.fields["name"] == name
