"""`stratalog spark staging` beside a running service."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result

from stratalog.base.errors import InvalidRequestError, UnknownTopicOrPartitionError
from stratalog.cli.main import stratalog
from stratalog.client.append_record import AppendRecord
from stratalog.pipeline.sink.staging_topic import DECISIONS
from tests.support.service.service_bench import ServiceBench
from tests.support.spark.sink_world import Accident, SinkWorld, table


async def run(bench: ServiceBench, *words: str) -> Result:
    arguments = ["spark", "staging", *words, "--server", bench.client.address]
    return await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)


async def test_staging_topics_are_listed_and_deleted_unless_they_are_needed(bench: ServiceBench) -> None:
    # One of another program has other partitions.
    for topic in ("t", "spark-sink-of-mine"):
        await bench.client.topics.create(topic, partitions=1)
    worlds = {query: SinkWorld(bench, query, topic="t") for query in ("begun", "done", "newer", "pending")}
    tasks = {query: await world.stage([table([("a", b"1")])]) for query, world in worlds.items()}
    assert await worlds["pending"].dies(7, [tasks["pending"]], Accident(1))
    await worlds["done"].commit(3, [tasks["done"]])
    decision = AppendRecord(None, b'{"version": 2}')
    await bench.client.append(worlds["newer"].staging_topic, DECISIONS, [decision])

    listed = await run(bench, "list", "--json")
    found = {one["query"]: one for one in json.loads(listed.stdout)}
    assert {query: (one["decision"], one["batch"]) for query, one in found.items()} == {
        "begun": ("none", None),
        "done": ("applied", 3),
        "newer": ("unreadable", None),
        "pending": ("pending", 7),
    }
    assert all(one["size_bytes"] > 0 and one["written_ms"] is not None for one in found.values())
    shown = (await run(bench, "list")).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["QUERY", *found]

    for query in ("pending", "newer"):
        refused = await run(bench, "delete", query)
        assert isinstance(refused.exception, InvalidRequestError)
        assert refused.exception.fields["topic"] == f"spark-sink-{query}"
    for words in (["begun", "spark-sink-done"], ["pending", "newer", "--force"]):
        deleted = await run(bench, "delete", *words)
        assert deleted.exit_code == 0, repr(deleted.exception)
    assert json.loads((await run(bench, "list", "--json")).stdout) == []
    gone = await run(bench, "delete", "done")
    assert isinstance(gone.exception, UnknownTopicOrPartitionError)
    assert await bench.topic_names() == ["spark-sink-of-mine", "t"]
