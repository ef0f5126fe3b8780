"""What a clean has written, when it begins to take the place of what was there."""

from __future__ import annotations

import random

import pytest

from stratalog.segment.file_names import CLEANED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SWAP_SUFFIX
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.cleaning_history import CleaningHistory


def to_clean(disk: FaultyFileSystem) -> CleaningHistory:
    history = CleaningHistory(random.Random(5), disk)
    for number in range(30):
        history.write()
        history.write_as(1)
        history.end_transaction(1, committed=number % 3 == 0)
    history.log.roll()
    history.write()
    return history


def test_every_file_is_durable_before_it_takes_the_place_of_another() -> None:
    disk = FaultyFileSystem()
    assert to_clean(disk).clean(1000) is not None
    renames = [
        number
        for number, operation in enumerate(disk.trace, start=1)
        if operation.startswith("rename") and operation.endswith(LOG_SUFFIX + SWAP_SUFFIX)
    ]
    assert len(renames) > 2
    suffixes: set[str] = set()
    for number in renames:
        disk = FaultyFileSystem()
        history = to_clean(disk)
        disk.crash_at(number)
        with pytest.raises(SimulatedCrash):
            history.clean(1000)
        written = disk.inner.contents()
        left = disk.reopened(Survival(Kept.NONE, Kept.ALL)).inner.contents()
        for path in written:
            if path.endswith(CLEANED_SUFFIX):
                assert left[path] == written[path], path
                suffixes.add("." + path.removesuffix(CLEANED_SUFFIX).rpartition(".")[2])
    assert suffixes >= {LOG_SUFFIX, *INDEX_SUFFIXES}
