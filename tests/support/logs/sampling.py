"""How much of an exhaustive test runs: all of it by `make simulate`, the same part each time by `make test`.

`STRATALOG_SIMULATION_FIRST_SEED` chooses another part; each run shows the seed in its first lines.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pytest
from hypothesis import settings

Item = TypeVar("Item")

IS_WHOLE = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", "0"))


def examples_of(one_in: int) -> int:
    """How many examples a heavy test of Hypothesis tries: of those of the profile one in so many."""
    count = settings().max_examples
    return count if IS_WHOLE else max(1, count // one_in)


def some_seeds(count: int) -> range:
    """The seeds of a test that is repeated with `count` of them: all, or the first of every eight."""
    return range(count if IS_WHOLE else max(2, count // 8))


whole_only = pytest.mark.skipif(not IS_WHOLE, reason="make simulate runs it")
"""For a test that takes long and finds little which a shorter one beside it does not."""


class Sampling:
    """One for each test. Used by one thread."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)

    def one_in(self, count: int) -> bool:
        """True about once in `count` times."""
        return IS_WHOLE or self._random.randrange(count) == 0

    def some(self, items: Iterable[Item], count: int) -> Iterator[Item]:
        """About one in `count` of them, in order."""
        return (item for item in items if self.one_in(count))

    def at_most(self, items: Sequence[Item], count: int) -> list[Item]:
        """So many of them, in order, however many there are: the time of the test stays as it is when they
        become more."""
        if IS_WHOLE or len(items) <= count:
            return list(items)
        return [items[at] for at in sorted(self._random.sample(range(len(items)), count))]
