"""Large records go out of a dump one by one, however much their JSON is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from stratalog.cli.commands.log_commands import log
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record

MIB = 1 << 20
VALUE_BYTES = 4 * MIB
"""Each of them becomes six as JSON, which escapes it."""
BATCH_COUNT = 12
LIMIT_BYTES = 48 * MIB


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_dump_of_large_records_holds_one_at_a_time(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{0:020}.log"
    record = Record(0, 5, b"k", b"\x01" * VALUE_BYTES)
    path.write_bytes(
        b"".join(
            encode_batch([record], base_offset=offset, codec=Codec.ZSTD) for offset in range(BATCH_COUNT)
        )
    )
    escape_count = 0

    def count(text: Any = None, *_: object, **options: object) -> None:
        nonlocal escape_count
        escape_count += str(text).count("\\u0001")

    monkeypatch.setattr(click, "echo", count)
    arguments = ["dump", "--records", *options, str(path)]
    assert peak_bytes(lambda: log.main(arguments, standalone_mode=False)) < LIMIT_BYTES
    assert escape_count == BATCH_COUNT * VALUE_BYTES
