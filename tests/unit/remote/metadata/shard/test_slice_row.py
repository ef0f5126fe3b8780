"""Rows of a checkpoint page are the slices that they were made from."""

from __future__ import annotations

import json

from stratalog.remote.json_document import JsonFields, format_json
from stratalog.remote.metadata.head.checkpoint import read_checkpoint
from stratalog.remote.metadata.shard.shard_checkpoint import shard_from_parts
from stratalog.remote.metadata.shard.slice_row import SLICE_COLUMNS, format_slice, parse_slice
from stratalog.remote.metadata.shard.tiered_partition import LiveSlice
from tests.support.tiered.metadata_example import example_store


def some_slice() -> LiveSlice:
    store = example_store()
    checkpoint = store.head().checkpoint
    assert checkpoint is not None
    state = shard_from_parts(read_checkpoint(store.store, store.layout, checkpoint))
    return next(live for partition in state.partitions.values() for live in partition.slices)


def test_a_slice_is_read_as_it_was_written() -> None:
    live = some_slice()
    row: dict[str, object] = dict(
        zip(SLICE_COLUMNS, json.loads(format_json(format_slice(live))), strict=True)
    )
    assert parse_slice(JsonFields(row, "row")) == (live.entry.topic_id_partition, live)
