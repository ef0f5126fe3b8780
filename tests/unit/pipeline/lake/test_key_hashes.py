"""Hashes of keys tell keys apart, are spread evenly, and are those of the bytes alone."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stratalog.pipeline.lake import key_hashes as key_hashes_module
from stratalog.pipeline.lake import pure_key_hashes
from stratalog.pipeline.lake.key_hashes import key_hashes, range_numbers
from tests.support.kernels import both_kinds, each_kind, native, needs_native
from tests.support.logs.sampling import SEED

KINDS = both_kinds(pure_key_hashes)
HASHES = ["daa66d2c7ddf743f", "ee65c60beb535097", "72020f9290f861f8", "6b584a348c34d4d2", "8e8cbe0d438eb749"]


def rows(keys: Sequence[bytes], kind: Any = None, partition: int = 3) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([partition] * len(keys), pa.int32()),
            "key": pa.array(keys, kind or pa.binary()),
        }
    )


@each_kind(pure_key_hashes)
def test_a_hash_is_that_of_the_bytes_of_its_key(monkeypatch: pytest.MonkeyPatch, kernels: Any) -> None:
    """However the keys lie in memory, and whatever keys lie beside them."""
    monkeypatch.setattr(key_hashes_module, "hash_key_column", kernels.hash_key_column)
    random = Random(SEED)
    keys = [random.randbytes(random.choice((0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 257))) for _ in range(200)]
    found = key_hashes(rows(keys))
    alone = [int(key_hashes(rows([key]))[0]) for key in keys]
    assert found.tolist() == alone
    assert key_hashes(rows(keys, pa.large_binary())).tolist() == alone
    assert key_hashes(rows(keys).slice(50, 100)).tolist() == alone[50:150]
    parts = pa.concat_tables([rows(keys[:70]), rows([]), rows(keys[70:])])
    assert key_hashes(parts).tolist() == alone
    assert key_hashes(rows(keys).to_batches()[0]).tolist() == alone
    assert key_hashes(rows([])).tolist() == []


def test_other_keys_have_other_hashes() -> None:
    tails = [b"x" * size + bytes(zeros) for size in (0, 1, 8, 300) for zeros in range(20)]
    places = [bytes(place) + b"\1" + bytes(40 - place) for place in range(40)]
    keys = sorted({*tails, *places})
    found = {int(one) for partition in range(3) for one in key_hashes(rows(keys, partition=partition))}
    assert len(found) == 3 * len(keys)


@pytest.mark.parametrize("form", ["%d", "%016d", "user-%08x-end", "%064d"])
def test_keys_that_are_alike_are_spread_evenly(form: str) -> None:
    hashes = key_hashes(rows([(form % number).encode() for number in range(20_000)]))
    assert len(np.unique(hashes)) == 20_000
    counts = np.bincount(range_numbers(hashes, 20), minlength=20)
    assert counts.min() > 850
    assert counts.max() < 1_150


def test_tasks_with_and_without_compiled_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(SEED)
    sizes = [*range(20), 255, 256, 257, 1_000]
    keys = [random.randbytes(random.choice(sizes)) for _ in range(20_000)]
    partitions = pa.array([random.choice((0, 1, (1 << 31) - 1)) for _ in keys], pa.int32())
    table = rows(keys).set_column(0, "partition", partitions)
    chunks = pa.concat_tables([table.slice(0, 9_000), table.slice(9_000)])
    parts = [table, chunks, table.slice(9_000), rows(keys, pa.large_binary()), rows([b"", b""]), rows([])]
    found: list[list[list[int]]] = []
    for kernels in KINDS:
        monkeypatch.setattr(key_hashes_module, "hash_key_column", kernels.hash_key_column)
        found.append([key_hashes(part).tolist() for part in parts])
    assert all(one == found[0] for one in found)
    assert found[0][1] == found[0][0]
    assert found[0][2] == found[0][0][9_000:]


def test_hashes_stay_as_they_are() -> None:
    """Executors of two releases may work on one refresh while a cluster is upgraded."""
    keys = [b"", b"key", b"12345678", b"123456789", b"x" * 257]
    assert [f"{one:016x}" for one in key_hashes(rows(keys)).tolist()] == HASHES


@needs_native
@pytest.mark.parametrize("bounds", [[-1, 1], [1, 0], [0, 4], [0, 1 << 30]])
def test_a_kernel_reads_nothing_outside_of_the_keys(bounds: list[int]) -> None:
    for is_wide, kind in enumerate((np.int32, np.int64)):
        with pytest.raises(AssertionError):
            native.hash_key_column(
                np.array(bounds, kind), is_wide, b"abc", np.zeros(1, np.int32), 256, np.zeros(1, np.uint64)
            )
    for bounds_count, partition_count in ((3, 1), (1, 1), (2, 2)):
        with pytest.raises(AssertionError):
            native.hash_key_column(
                np.zeros(bounds_count, np.int32),
                False,
                b"abc",
                np.zeros(partition_count, np.int32),
                256,
                np.zeros(1, np.uint64),
            )
