"""The files of a Parquet table have its rows, and programs that list its folders find no dead ones."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake.formats.parquet_table import ParquetTable
from stratalog.pipeline.table_files import parquet_files
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.lake.topic_table import TopicTable
from tests.support.spark.plain_store import PlainStore


def test_the_list_is_that_of_the_newest_version(tmp_path: Path) -> None:
    topic, place = PlainStore(), tmp_path / "a table"
    topic.create("t")
    store = LocalObjectStore(PosixFileSystem(), topic.clock, SequentialIds(4), str(place))
    table = TopicTable(Random(3), topic.clock, topic.store, "t", store, ParquetTable)
    with pytest.raises(InvalidRequestError):
        parquet_files(str(place))
    for count in (7, 3):
        topic.upload({("t", 0): count})
        table.run()
    expected = [(b"k%d" % (offset % 7), offset) for offset in range(3, 10)]
    for given in (str(place), store.url.replace(" ", "%20")):
        rows = [row for file in parquet_files(given) for row in pq.read_table(file).to_pylist()]
        assert sorted((row["key"], row["offset"]) for row in rows) == sorted(expected)
    every = [row for file in place.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(every) > len(expected), "dead rows stay in files for a while"
    # A reader that lists the folders finds no rows rather than dead ones.
    assert pq.read_table(place).num_rows == 0
