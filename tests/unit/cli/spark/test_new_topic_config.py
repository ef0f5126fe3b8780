"""The codec of a topic that a job creates."""

from __future__ import annotations

import pytest

from stratalog.cli.spark.new_topic_config import accept_config
from stratalog.record.codecs.compression import Codec


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("producer", Codec.ZSTD), ("uncompressed", Codec.NONE), ("lz4", Codec.LZ4), ("gzip", Codec.GZIP)],
)
def test_batches_are_compressed_where_producers_would_choose(kind: str, codec: Codec) -> None:
    assert accept_config({"compression.type": kind}) is codec
    assert accept_config({}) is Codec.ZSTD
