"""Files that a clean has written are durable when they take the place of others."""

from __future__ import annotations

import random

from stratalog.segment.file_names import CLEANED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SWAP_SUFFIX
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.cleaning_history import CleaningHistory
from tests.support.logs.crash_sweep import CrashSweep, Death


class Clean:
    """A clean of a log with transactions."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.history = CleaningHistory(random.Random(5), self.disk)
        for number in range(30):
            self.history.write()
            self.history.write_as(1)
            self.history.end_transaction(1, committed=number % 3 == 0)
        self.history.log.roll()
        self.history.write()

    def run(self) -> None:
        assert self.history.clean(1000) is not None


def is_swap(operation: str) -> bool:
    return operation.startswith("rename") and operation.endswith(LOG_SUFFIX + SWAP_SUFFIX)


def test_every_file_is_durable_before_it_takes_the_place_of_another() -> None:
    suffixes: set[str] = set()

    def verify(death: Death[Clean]) -> None:
        disk = death.subject.disk
        if not is_swap(disk.trace[-1]):
            return
        written = disk.inner.contents()
        left = disk.reopened(Survival(Kept.NONE, Kept.ALL)).inner.contents()
        for path in written:
            if path.endswith(CLEANED_SUFFIX):
                assert left[path] == written[path], path
                suffixes.add("." + path.removesuffix(CLEANED_SUFFIX).rpartition(".")[2])

    sweep = CrashSweep(Clean, Clean.run, count=0)
    assert len(list(filter(is_swap, sweep.trace))) > 2
    sweep.at_deaths(verify, always=is_swap)
    assert suffixes >= {LOG_SUFFIX, *INDEX_SUFFIXES}
