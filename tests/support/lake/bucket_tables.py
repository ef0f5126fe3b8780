"""Tables in a bucket, as other programs read them there."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import deltalake
import pyarrow as pa
from pyiceberg.table import StaticTable

from tests.support.lake.parquet_rows import parquet_rows
from tests.support.lake.table_formats import Rows
from tests.support.tiered.s3_servers import S3Server


def _delta_rows(server: S3Server, prefix: str) -> Rows:
    options = {
        "AWS_ENDPOINT_URL": server.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "AWS_REGION": server.region,
    }
    table = deltalake.DeltaTable(f"s3://{server.bucket}/{prefix}", storage_options=options)
    rows: Rows = pa.table(table.scan().read_all()).to_pylist()
    return rows


def _iceberg_rows(server: S3Server, prefix: str) -> Rows:
    properties = {
        "s3.endpoint": server.endpoint_url,
        "s3.access-key-id": server.access_key_id,
        "s3.secret-access-key": server.secret_access_key,
        "s3.region": server.region,
    }
    table = StaticTable.from_metadata(f"s3://{server.bucket}/{prefix}", properties)
    rows: Rows = table.scan().to_arrow().to_pylist()
    return rows


def _parquet_rows(server: S3Server, prefix: str) -> Rows:
    return parquet_rows(server.open_store(prefix))


BUCKET_READERS: Final[Mapping[str, Callable[[S3Server, str], Rows]]] = {
    "delta": _delta_rows,
    "iceberg": _iceberg_rows,
    "parquet": _parquet_rows,
}
"""The rows of a table below a prefix, by the name of its format. A server of Delta tables must be a process
of its own: deltalake may hold the interpreter while it waits for an answer."""
