"""Passes of the uploader while the store is away: they ask it first, and build nothing for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import TopicIdPartition
from stratalog.record.record import Record
from stratalog.remote.tier.object_builder import ObjectBuilder
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

BATCH_COUNT = 20


class Silence:
    """The requests that a store fails. Not thread-safe."""

    def __init__(self) -> None:
        self.is_away = False
        self.verbs: tuple[str, ...] = ()

    def fault(self, operation: Operation) -> Fault:
        return Fault.FAILS if self.is_away or operation.verb in self.verbs else Fault.NONE


@pytest.fixture(name="builds")
def count_builds() -> Iterator[list[int]]:
    builds: list[int] = []
    build: Callable[..., Any] = ObjectBuilder.build

    def counted(*arguments: Any, **options: Any) -> Any:
        builds.append(1)
        return build(*arguments, **options)

    with patch.object(ObjectBuilder, "build", counted):
        yield builds


def site_of(silence: Silence) -> TieredLogs:
    site = TieredSite(max_object_bytes=300)
    site.store = FaultyObjectStore(site.bucket, Random(0), silence.fault)
    logs = site.start(uploader_settings={"put_count": 3})
    logs.create_topic("t", 1)
    for log in logs.logs.values():
        for number in range(BATCH_COUNT):
            logs.append(log, [Record(0, 1000 + number, b"k", bytes(60))])
    logs.seal()
    return logs


def test_a_pass_builds_nothing_before_a_silent_store_answers(builds: list[int]) -> None:
    silence = Silence()
    logs = site_of(silence)
    [log] = logs.logs.values()
    tip = TopicIdPartition(log.topic_id, 0)
    assert logs.uploader.failure_of(tip) is None
    silence.is_away = True
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    built_count = len(builds)
    assert built_count > 0, "the first pass cannot know"
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            logs.upload()
        assert logs.uploader.failure_of(tip) is not None
    assert len(builds) == built_count
    silence.is_away = False
    assert logs.upload().object_count > 3
    assert logs.uploader.failure_of(tip) is None
    assert logs.metadata.state().partition(tip).tiered_end_offset == BATCH_COUNT


def test_a_store_that_answers_reads_alone_gets_one_object_at_a_time(builds: list[int]) -> None:
    silence = Silence()
    logs = site_of(silence)
    [log] = logs.logs.values()
    tip = TopicIdPartition(log.topic_id, 0)
    silence.verbs = ("PUT",)
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    builds.clear()
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    assert len(builds) == 1
    assert logs.uploader.failure_of(tip) is not None
    silence.verbs = ()
    logs.upload()
    assert logs.metadata.state().partition(tip).tiered_end_offset == BATCH_COUNT
