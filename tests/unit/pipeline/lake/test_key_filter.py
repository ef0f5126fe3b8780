"""A filter finds each hash that was added, and few others."""

from __future__ import annotations

import numpy as np
import pytest

from stratalog.pipeline.lake import key_filter
from stratalog.pipeline.lake.key_filter import KeyFilter


@pytest.mark.parametrize("count", [0, 1, 2, 1_000, 60_000])
def test_added_hashes_are_found_and_few_others(count: int) -> None:
    random = np.random.default_rng(count)
    added, others = (random.integers(0, 1 << 64, size, np.uint64) for size in (count, 50_000))
    found = KeyFilter(count)
    for part in np.array_split(np.sort(added), 3):
        found.add(part)
    assert found.candidates(added).tolist() == list(range(count))
    assert len(found.candidates(others)) <= len(others) / 50


def test_the_ends_of_all_hashes_are_apart() -> None:
    found = KeyFilter(2)
    found.add(np.array([0], np.uint64))
    ends = np.array([0, (1 << 64) - 1], np.uint64)
    assert found.candidates(ends).tolist() == [0]
    found.add(ends)
    assert found.candidates(ends).tolist() == [0, 1]


def test_a_filter_that_is_too_small_passes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "_MAX_BITS", 13)
    hashes = np.sort(np.random.default_rng(1).integers(0, 1 << 64, 20_000, np.uint64))
    found = KeyFilter(len(hashes))
    found.add(hashes[::2])
    assert len(found.candidates(hashes[::2])) == 10_000
    assert 5_000 < len(found.candidates(hashes[1::2])) < 10_000
