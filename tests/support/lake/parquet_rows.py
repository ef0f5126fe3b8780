"""Reads a table of plain Parquet files by its documentation alone."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.objectstore.protocol import ObjectStore
from tests.support.lake.topic_table import Row


def listed_files(data: bytes) -> list[str]:
    """The files that the list of a table names."""
    return [file["path"] for file in json.loads(data)["files"]]


def parquet_rows(store: ObjectStore) -> list[dict[str, Any]]:
    """All rows of the newest version."""
    document = json.loads(store.get("_latest.json").data)
    rows: list[dict[str, Any]] = []
    for file in document["files"]:
        data = store.get(file["path"]).data
        assert len(data) == file["size_bytes"]
        found = pq.read_table(pa.BufferReader(data)).to_pylist()
        assert len(found) == file["row_count"]
        rows += found
    return rows


def raw_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """Rows of raw values, sorted."""
    return sorted(Row(row["partition"], row["key"], row["offset"], row["value"]) for row in rows)
