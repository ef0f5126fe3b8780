"""Random lives of a shard, held against the oracle after every compaction."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.record.native import kernels
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory

STEPS = 14


@settings(max_examples=examples_of(3))
@given(st.integers(0, 2**32))
def test_a_random_life_keeps_every_promise(seed: int) -> None:
    """And a shard that has become quiet ends without tombstones whose time is over."""
    history = CompactionHistory(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
    # Longer than every retention and lag: after one more pass that stamps, the next one removes.
    for _ in range(2):
        history.clock.advance(10_000)
        history.settle()
    for tip, oracle in history.oracles.items():
        if oracle.is_compacted:
            records = history.tiered.records(tip)
            assert not oracle.overdue_tombstones(records, history.clock.now_ms())


def life_digest(seed: int) -> str:
    """Everything that is in the store after a life."""
    history = CompactionHistory(seed)
    for _ in range(STEPS):
        history.step()
    digest = hashlib.sha256()
    for info in sorted(history.store.list("shards/0000/data/")):
        digest.update(info.key.encode())
        digest.update(history.store.get(info.key).data)
    return digest.hexdigest()


@pytest.mark.skipif(not kernels.NATIVE, reason="the kernels are not compiled here")
def test_compiled_and_plain_kernels_write_the_same_objects() -> None:
    seeds = range(10)
    environment = dict(os.environ, STRATALOG_PURE_KERNELS="1", PYTHONPATH=os.pathsep.join(sys.path))
    plain = subprocess.run(
        [sys.executable, __file__, *map(str, seeds)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert plain.stdout.split() == [life_digest(seed) for seed in seeds]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(life_digest(int(argument)))  # noqa: T201
