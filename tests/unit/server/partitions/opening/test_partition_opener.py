"""Partitions that are opened together: which of them are created, and with how many writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.base.errors import DataDirectoryError
from tests.support.partition_opening import A, B, Opening, states, wanted


@pytest.fixture
def opening() -> Iterator[Opening]:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as executor:
        yield Opening(executor, loop)
    loop.close()


def test_a_start_creates_what_a_crash_has_kept_from_being_created_with_one_write(opening: Opening) -> None:
    since = opening.disk.operation_count
    assert states(opening.opener.open_what_can_be(wanted(*range(6)))) == [True] * 6
    assert opening.manifest_writes(since) == [A, B]


def test_new_partitions_open_beside_others_while_a_directory_is_missing(opening: Opening) -> None:
    opening.opener.open(wanted(0, is_new=True))
    opener = opening.start(A)
    group = [*wanted(0), *wanted(1, is_new=True)]
    assert [one.topic_partition.partition for one in opener.open(group)] == [0, 1]
    with pytest.raises(DataDirectoryError) as failure:
        opener.open([*wanted(0, 1), *wanted(2, is_new=True), *wanted(3)])
    assert failure.value.fields["path"] == f"{B}/orders-3"
    assert states(opener.open_what_can_be([*wanted(2, is_new=True), *wanted(3)])) == [True, False]


def test_appends_and_flushes_have_the_threads_of_the_directory_of_their_log(opening: Opening) -> None:
    used: set[str] = set()
    for partition in opening.opener.open(wanted(0, 1, is_new=True)):
        directory = partition.log.local_log.log_dir
        assert opening.append(partition).base_offset == 0
        # The leader epoch of the first append is made durable before its turn.
        assert opening.asked == [("append", directory), ("flush", directory)] * 2
        opening.asked.clear()
        used.add(directory)
    assert used == {A, B}
