"""A place has one table, of one format."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake.table_format import TableFormat
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.lake.topic_table import TopicTable
from tests.support.spark.plain_store import PlainStore


@pytest.mark.parametrize("form", TableFormat)
def test_the_place_of_another_table_is_refused(form: TableFormat, tmp_path: Path) -> None:
    topic = PlainStore()
    topic.create("t")
    topic.upload({("t", 0): 3})
    kind = RawValues().arrow_type
    store = LocalObjectStore(PosixFileSystem(), topic.clock, SequentialIds(9), str(tmp_path / "table"))
    table = TopicTable(
        Random(1), topic.clock, topic.store, "t", store, lambda store: form.table(store, topic.clock, kind)
    )
    assert table.run().mode == "full"
    assert table.run(is_full=True).row_count == 3
    for other in set(TableFormat) - {form}:
        with pytest.raises(InvalidRequestError) as refused:
            other.table(store, topic.clock, kind)
        assert refused.value.fields["format"] == form.value


def test_a_store_of_topics_is_no_place_for_a_table() -> None:
    topic = PlainStore()
    with pytest.raises(InvalidRequestError) as refused:
        TableFormat.DELTA.table(topic.store, topic.clock, RawValues().arrow_type)
    assert refused.value.fields["table"] == topic.store.url
