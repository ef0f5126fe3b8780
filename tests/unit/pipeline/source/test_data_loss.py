"""Records that are lost fail each reader that should read them, or leave a warning: batches, streams, tables
and exports. Holes that compaction has made are no loss."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.jobs.key_statistics import key_statistics
from stratalog.pipeline.jobs.store_audit import audit_store
from stratalog.pipeline.lake.formats.parquet_table import ParquetTable
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.transfer.topic_export import export_topics
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.lake.parquet_rows import parquet_rows, raw_rows
from tests.support.lake.topic_table import TopicTable
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.topic_scan import topic_spans

KEPT = [0, 1, 2, 6, 7, 8]


@pytest.fixture
def found() -> PlainStore:
    """A topic t of nine records, of which 3, 4 and 5 never reached the store."""
    built = PlainStore()
    built.create("t")
    built.upload({("t", 0): 3})
    built.lose("t", 0, 3)
    built.upload({("t", 0): 3})
    return built


def place_of(found: PlainStore) -> InlinePlace:
    return InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(7), found.store)


def scanned(found: PlainStore, fails: bool, **options: str) -> list[int]:
    spans = topic_spans(found.store, topic="t", failOnDataLoss=str(fails), **options)
    rows = [row for batch in scan(found.store, spans, ("offset",)) for row in batch.to_pylist()]
    return sorted(row["offset"] for row in rows)


def exported(found: PlainStore, fails: bool) -> list[int]:
    target = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(8), MemoryObjectStore(found.clock))
    options = parse_options(
        {"store": "memory://", "topic": "t", "failOnDataLoss": str(fails)}, is_stream=False
    )
    report = export_topics(InlineCluster(Random(1)), place_of(found), target, options)
    files = [file for topic in report.manifest.topics for file in topic.files]
    assert sum(file.record_count for file in files) == len(KEPT)
    return KEPT


def materialized(found: PlainStore, fails: bool) -> list[int]:
    store = MemoryObjectStore(found.clock)
    table = TopicTable(Random(3), found.clock, found.store, "t", store, ParquetTable)
    table.run(fails_on_data_loss=fails)
    # Keys repeat after seven records.
    assert sorted(row.offset for row in raw_rows(parquet_rows(store))) == [2, 6, 7, 8]
    assert table.run().mode == "none", "what is lost lies behind the table"
    found.upload({("t", 0): 1})
    assert table.run().mode == "incremental"
    return KEPT


@pytest.mark.parametrize("read", [scanned, exported, materialized])
def test_each_reader_fails_or_says_what_it_leaves_out(
    found: PlainStore, read: Callable[[PlainStore, bool], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OffsetOutOfRangeError) as error:
        read(found, True)
    place = {"topic": "t", "partition": 0, "offset": 3, "end_offset": 6}
    assert error.value.fields == {**place, "reason": GapReason.MISSING_ON_LOCAL_DISK.value}
    assert not caplog.records
    assert read(found, False) == KEPT
    (warning,) = caplog.records
    said = warning.getMessage()
    assert all(f"{name}=`{value}`" in said for name, value in error.value.fields.items())


@pytest.mark.parametrize(
    ("first_offset", "end_offset", "lost"),
    [(0, 3, None), (0, 4, (3, 4)), (4, 9, (4, 6)), (5, 6, (5, 6)), (6, 9, None), (4, 4, None)],
)
def test_only_lost_offsets_of_the_range_count(
    found: PlainStore, first_offset: int, end_offset: int, lost: tuple[int, int] | None
) -> None:
    bounds = {
        "startingOffsets": f'{{"t": {{"0": {first_offset}}}}}',
        "endingOffsets": f'{{"t": {{"0": {end_offset}}}}}',
    }
    expected = [offset for offset in KEPT if first_offset <= offset < end_offset]
    assert scanned(found, False, **bounds) == expected
    if lost is None:
        assert scanned(found, True, **bounds) == expected
        return
    with pytest.raises(OffsetOutOfRangeError) as error:
        scanned(found, True, **bounds)
    assert (error.value.fields["offset"], error.value.fields["end_offset"]) == lost


def test_each_of_several_losses_is_named(found: PlainStore, caplog: pytest.LogCaptureFixture) -> None:
    found.lose("t", 0, 2)
    found.upload({("t", 0): 1})
    with pytest.raises(OffsetOutOfRangeError) as error:
        scanned(found, True)
    assert (error.value.fields["offset"], error.value.fields["gap_count"]) == (3, 2)
    assert scanned(found, False) == [*KEPT, 11]
    said = [record.getMessage() for record in caplog.records]
    assert ["offset=`3` end_offset=`6`" in one for one in said] == [True, False]
    assert ["offset=`9` end_offset=`11`" in one for one in said] == [False, True]


def test_what_retention_has_deleted_in_an_outage_is_no_loss(
    found: PlainStore, caplog: pytest.LogCaptureFixture
) -> None:
    found.lose("t", 0, 2, GapReason.EXPIRED)
    found.upload({("t", 0): 1})
    bounds = {"startingOffsets": '{"t": {"0": 6}}'}
    assert scanned(found, True, **bounds) == [6, 7, 8, 11]
    with pytest.raises(OffsetOutOfRangeError) as error:
        scanned(found, True)
    assert "gap_count" not in error.value.fields
    assert not caplog.records


def test_a_bound_outside_of_the_log_leaves_a_warning(
    found: PlainStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert scanned(found, False, startingOffsets='{"t": {"0": 7}}', endingOffsets='{"t": {"0": 20}}') == [
        7,
        8,
    ]
    (warning,) = caplog.records
    assert "offset=`20`" in warning.getMessage()


def test_holes_of_a_compaction_are_no_loss() -> None:
    found = PlainStore()
    found.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    for _ in range(3):
        found.upload({("t", 0): 10})
    while found.tiered.compactor().run(["t"]):
        pass
    # The last one of the seven keys, and the last record of the log.
    assert scanned(found, True) == list(range(23, 30))


def test_audits_and_statistics_go_on_and_report_a_loss(found: PlainStore) -> None:
    cluster, place = InlineCluster(Random(1)), place_of(found)
    audit = audit_store(cluster, place, ())
    assert audit.finding_count == 0
    assert [(live.base_offset, live.end_offset) for live in audit.verification.gaps] == [(3, 6)]
    (statistics,) = key_statistics(cluster, place, ())
    assert (statistics.record_count, statistics.lost_offset_count) == (6, 3)
