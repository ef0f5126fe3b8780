"""The files of a table of plain Parquet, for programs that read lists of files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import quote


def parquet_files(table: str) -> list[str]:
    """The files of the newest version of a table of `stratalog spark materialize --to parquet`, sorted.

    `table` is its place, a path, `file:///dir` or `s3://bucket/prefix`. The files of a directory are absolute
    paths, those of a bucket are URLs, without endpoint and credentials. They stay until the second refresh
    from now. Raises InvalidConfigError, InvalidRequestError if there is no such table, StoreError.
    """
    from stratalog.base.errors import InvalidRequestError
    from stratalog.objectstore.open_store import open_store
    from stratalog.pipeline.lake.formats.parquet_table import ParquetTable

    url = table if "://" in table else f"file://{quote(str(Path(table).absolute()))}"
    with closing(open_store(url)) as store:
        state = ParquetTable(store).read()
        if not state.exists:
            raise InvalidRequestError("there is no table of Parquet files here; correct the place", table=url)
        location = store.url.partition("?")[0].rstrip("/").removeprefix("file://")
        return [f"{location}/{file.path}" for file in state.files]
