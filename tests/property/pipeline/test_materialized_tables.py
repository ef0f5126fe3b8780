"""A table is the latest state of its topic after each refresh, full or not, in random lives of shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.lake.formats.parquet_table import ParquetTable
from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.record.record import Record
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.transactional_history import TransactionalHistory
from tests.support.lake.coarse_hashes import coarse_hashes
from tests.support.lake.parquet_rows import parquet_rows, raw_rows
from tests.support.lake.table_formats import FORMATS, TableFormat
from tests.support.lake.topic_table import Row, TopicTable, last_rows, pandas_rows
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory

STEPS = 12


def _expected(
    history: CompactionHistory, topic: str, rows_of: Callable[[int, list[Record]], list[Row]] = last_rows
) -> list[Row]:
    expected: list[Row] = []
    for tip, oracle in history.oracles.items():
        if history.tiered.topic(tip).name == topic:
            log_start_offset = history.tiered.partition(tip).log_start_offset
            expected += rows_of(tip.partition, oracle.readable(log_start_offset))
    return sorted(expected)


@settings(max_examples=examples_of(25))
@given(st.integers(0, 2**32))
def test_a_random_life_with_tombstones_trims_and_compactions(seed: int) -> None:
    history = CompactionHistory(seed)
    random = Random(seed)
    topic = history.tiered.topic(min(history.oracles)).name
    table = TopicTable(
        random, history.clock, history.store, topic, MemoryObjectStore(history.clock), ParquetTable
    )
    hash_count = random.choice((2, None))
    for _ in range(STEPS):
        history.step()
        if random.random() < 0.5:
            with coarse_hashes(hash_count):
                report = table.run(is_full=random.random() < 0.1)
            expected = _expected(history, topic)
            assert raw_rows(parquet_rows(table.table_store)) == expected
            assert report.row_count == len(expected)


@settings(max_examples=examples_of(25))
@given(st.integers(0, 2**32))
def test_a_random_life_with_transactions(seed: int) -> None:
    history = TransactionalHistory(seed)
    random = Random(seed)
    table = TopicTable(
        random, history.clock, history.store, "t", MemoryObjectStore(history.clock), ParquetTable
    )
    for _ in range(STEPS):
        history.step()
        if random.random() < 0.5:
            table.run(is_full=random.random() < 0.1)
            expected: list[Row] = []
            for tip, written in history.written.items():
                partition = history.tiered.partition(tip)
                newest = written.newest(partition.log_start_offset, partition.stable_end_offset)
                expected += last_rows(tip.partition, [written.records[one] for one in newest.values()])
            assert raw_rows(parquet_rows(table.table_store)) == sorted(expected)


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", [1])
def test_other_readers_see_the_rows_of_each_format(form: TableFormat, seed: int) -> None:
    history = CompactionHistory(seed, max_keys=40)
    topic = history.tiered.topic(min(history.oracles)).name
    with TemporaryDirectory() as name:
        store = LocalObjectStore(PosixFileSystem(), history.clock, SequentialIds(9), name)
        table = TopicTable(
            Random(seed),
            history.clock,
            history.store,
            topic,
            store,
            lambda store: form.make(store, history.clock, table_schema(RawValues().arrow_type)),
        )
        for _ in range(4):
            history.step()
            history.upload()
            report = table.run()
            expected = _expected(history, topic, pandas_rows)
            assert raw_rows(form.read(Path(name))) == expected
            assert report.row_count == len(expected)
