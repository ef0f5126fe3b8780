"""The logs of several topics are described at once: a plan over hundreds of topics does not wait for each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.client.values.admin_values import PartitionLog
from stratalog.pipeline.source.served_log import ServedLogs
from stratalog.pipeline.source.store_view import run_together

STORE_ID = UUID(int=9)
TIPS = {f"t{number}": [TopicIdPartition(UUID(int=number), 0)] for number in range(4)}


class Servers:
    """A client whose descriptions wait for each other. Thread-safe."""

    address = "server:1"

    def __init__(self) -> None:
        self._all_asked = Barrier(len(TIPS), timeout=20)
        self.admin = self

    def metadata(self, topics: Sequence[str]) -> Any:
        found = [
            SimpleNamespace(topic=name, topic_id=str(TIPS[name][0].topic_id), error=None) for name in topics
        ]
        return SimpleNamespace(store_id=str(STORE_ID), topics=found)

    def describe_log(self, topic: str) -> list[PartitionLog]:
        self._all_asked.wait()
        offset = TIPS[topic][0].topic_id.int
        log = SimpleNamespace(
            partition=0,
            offline=None,
            log_start_offset=offset,
            local_log_start_offset=offset,
            log_end_offset=offset,
            high_watermark=offset,
            last_stable_offset=offset,
            leader_epoch=1,
            local_size_bytes=0,
        )
        return [cast("PartitionLog", log)]


def test_logs_of_several_topics_are_described_at_once() -> None:
    with ThreadPoolExecutor(len(TIPS)) as threads:
        logs = ServedLogs(cast("Any", Servers()), STORE_ID, partial(run_together, threads)).logs_of(TIPS)
    assert {tip: log.end_offset for tip, log in logs.items()} == {
        tip: tip.topic_id.int for (tip,) in TIPS.values()
    }
