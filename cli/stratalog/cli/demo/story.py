"""The steps of the demonstration, in order, each timed, each checked where there is something to check."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import click
from rich.progress import Progress

from stratalog.base.clock import SystemClock
from stratalog.base.types import Durability
from stratalog.cli.demo import flights
from stratalog.cli.demo.demo_server import DemoServer
from stratalog.cli.demo.flights import FlightRecord
from stratalog.cli.demo.oracle import (
    Check,
    compare_state,
    compare_values,
    last_value_per_destination,
    last_value_per_key,
    state_of_table,
    values_without_key,
)
from stratalog.cli.demo.places import DemoPlaces
from stratalog.cli.demo.readback import KeyedTopic, read_keyed, read_values
from stratalog.cli.demo.report import CompactionTotals, DemoReport, TierCount
from stratalog.cli.demo.spark_readback import DemoTopics, read_with_spark
from stratalog.cli.output import counted
from stratalog.client import values
from stratalog.client.client import Client

KEYED_TOPIC = "flights"
PLAIN_TOPIC = "flights-without-tail-number"
SPARK_TOPIC = "flights-by-destination"
"""The flights without a tail number once more, with keys: Spark compacts it."""
SPARK_UPLOADS = 3
PARTITION_COUNT = 12
ADVANCE_COUNT = 1000
"""The bar of progress moves after so many records."""

# The data is of 2013: Kafka's default retention of a week would delete it at once.
# And so would a compacted topic its local copies, after four hours.
KEYED_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1", "local.retention.ms": "-1"}
PLAIN_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1"}

OFFSET_NAMES = (
    "log_start_offset",
    "local_log_start_offset",
    "tiered_end_offset",
    "earliest_pending_upload_offset",
    "compacted_upto",
    "high_watermark",
    "last_stable_offset",
    "log_end_offset",
    "recovery_point",
)


class Story:
    """Runs once, over places and a server of its own. Not thread-safe."""

    def __init__(
        self,
        places: DemoPlaces,
        server: DemoServer,
        flight_count: int,
        progress: Progress,
        report: DemoReport,
    ) -> None:
        self._clock = SystemClock()
        self._places = places
        self._server = server
        self._flight_count = flight_count
        self._progress = progress
        self._report = report

    def run(self) -> None:
        """Run all steps. Raises their errors; failed checks are in the report."""
        # First, because that is where a wrong store fails. Uploads are the story's: their number is the same
        # each time.
        with self._step("start the server"):
            self._server.start("--upload-interval", "3600")
        with self._step("read the data set"):
            self._flights = flights.load(self._flight_count)
            self._expected_state = last_value_per_key(self._flights.table)
            self._expected_values = values_without_key(self._flights.table)
        asyncio.run(self._fill_tier_compact())
        with self._step("wipe the data directory and start again from the bucket"):
            self._server.stop()
            self._places.wipe_data_dir()
            self._server.start()
        asyncio.run(self._read_back())
        self._read_with_spark()

    async def _fill_tier_compact(self) -> None:
        async with Client(self._server.address) as client:
            record_count = len(self._flights.records)
            with self._step("append and tier, month by month", record_count) as advance:
                await client.admin.create_topic(KEYED_TOPIC, PARTITION_COUNT, KEYED_CONFIG)
                await client.admin.create_topic(PLAIN_TOPIC, PARTITION_COUNT, PLAIN_CONFIG)
                for _, records in self._flights.months():
                    await self._append(client, records, advance)
                    await client.admin.upload()
            await self._check_tiered(client)
            with self._step("delete the local copies"):
                deleted = await client.admin.upload(delete_local=True)
            await self._check_local_deletion(client, deleted.deleted_segment_count)
            keyed_count = record_count - self._expected_values.total()
            with self._step("read everything from the bucket, before compaction", keyed_count) as advance:
                before = await read_keyed(client, KEYED_TOPIC, advance)
            self._add_state_check("before compaction, through gRPC", before)
            self._report.before = await self._tier_count(client, before)
            with self._step("compact the objects"):
                jobs = await client.admin.run_compaction()
            await self._check_compaction(client, jobs)

    async def _append(
        self, client: Client, records: Sequence[FlightRecord], advance: Callable[[int], None]
    ) -> None:
        """One month's records, acknowledged at `disk`: nothing of it may be lost from here on."""
        async with client.producer(durability=Durability.DISK, compression="zstd", linger_ms=20) as producer:
            for count, (key, value, timestamp_ms) in enumerate(records, 1):
                topic = KEYED_TOPIC if key is not None else PLAIN_TOPIC
                producer.send(topic, key, value, timestamp_ms=timestamp_ms)
                if count % ADVANCE_COUNT == 0:
                    await producer.ready()
                    advance(ADVANCE_COUNT)
        advance(len(records) % ADVANCE_COUNT)
        self._report.records += len(records)

    async def _check_tiered(self, client: Client) -> None:
        logs = await self._logs(client)
        self._add_check(
            "everything appended is tiered, and still on local disk",
            all(
                log.tiered_end_offset == log.log_end_offset and log.local_log_start_offset == 0
                for log in logs
            ),
            f"{counted(sum(log.tiered_end_offset for log in logs), 'offset')}, local log starts at 0",
        )

    async def _check_local_deletion(self, client: Client, deleted: int) -> None:
        logs = await self._logs(client)
        self._add_check(
            "local log starts moved, global ones did not",
            deleted > 0
            and all(
                log.local_log_start_offset == log.tiered_end_offset and log.log_start_offset == 0
                for log in logs
            ),
            f"{counted(deleted, 'local segment')} deleted; flights-0: "
            f"log start {logs[0].log_start_offset:,}, local log start {logs[0].local_log_start_offset:,}",
        )

    async def _check_compaction(self, client: Client, jobs: Sequence[values.CompactionJob]) -> None:
        totals = CompactionTotals(
            inputs=sum(job.input_count for job in jobs),
            get_requests=sum(job.get_request_count for job in jobs),
            input_bytes=sum(job.input_bytes for job in jobs),
            bytes_read=sum(job.read_bytes for job in jobs),
            records_in=sum(job.input_record_count for job in jobs),
            records_out=sum(job.output_record_count for job in jobs),
        )
        self._report.compaction = totals
        refused = [job.reason for job in jobs if job.outcome is not values.CompactionOutcome.COMMITTED]
        self._add_check(
            "compaction committed, with at most two GETs a file",
            not refused and totals.inputs > 0 and totals.get_requests <= 2 * totals.inputs,
            f"{counted(totals.get_requests, 'GET')} for {counted(totals.inputs, 'file')}, "
            f"{counted(totals.records_in, 'record')} in, "
            f"{totals.records_out:,} out" + (f"; refused: {refused[0]}" if refused else ""),
        )
        logs = [log for log in await self._logs(client) if log.topic == KEYED_TOPIC]
        self._add_check(
            "the guarantee covers everything",
            all(log.compacted_upto == log.log_end_offset for log in logs),
            f"compacted_upto is the log end on {len(logs)} partitions",
        )

    async def _read_back(self) -> None:
        async with Client(self._server.address) as client:
            offset_count = len(self._flights.records)
            with self._step("read everything through gRPC, from the bucket alone", offset_count) as advance:
                after = await read_keyed(client, KEYED_TOPIC, advance)
                values = await read_values(client, PLAIN_TOPIC, advance)
            self._report.after = await self._tier_count(client, after)
            for log in await self._logs(client):
                self._report.offsets[f"{log.topic}-{log.partition}"] = {
                    name: getattr(log, name) for name in OFFSET_NAMES
                }
        self._add_state_check("from the bucket alone, through gRPC", after)
        self._add_check(
            "one record a key, in the order of offsets",
            after.records == len(after.state) and after.disorder == 0,
            f"{counted(after.records, 'record')} of {counted(len(after.state), 'key')}",
        )
        self._report.checks.append(
            compare_values("flights without a tail number, through gRPC", self._expected_values, values)
        )

    def _read_with_spark(self) -> None:
        from stratalog.pipeline.local_session import why_spark_cannot_run

        missing = why_spark_cannot_run()
        if missing:
            self._report.skipped.append(f"the check in Spark: {missing}")
            return
        with self._step("append and tier a topic for Spark"):
            asyncio.run(self._fill_for_spark())
        name = "compact it with Spark, make a table, and read, without the service"
        with self._step(name):
            topics = DemoTopics(KEYED_TOPIC, PLAIN_TOPIC, SPARK_TOPIC)
            found = read_with_spark(self._places.store_url, topics, self._places.spark_scratch)
        self._report.seconds[name] -= found.start_s
        self._report.seconds["start Spark"] = found.start_s
        destinations = last_value_per_destination(self._flights.table)
        living = {key: value for key, value in self._expected_state.items() if value is not None}
        compacted = found.compacted
        self._report.checks.append(
            compare_state("flights by destination, compacted with Spark", destinations, dict(compacted))
        )
        self._add_check(
            "one record a key, after the compaction with Spark",
            len(compacted) == len(destinations),
            f"{counted(len(compacted), 'record')} of {counted(len(destinations), 'key')}",
        )
        self._report.checks.append(
            compare_state("the table of the latest state, made by Spark", living, state_of_table(found.table))
        )
        self._report.checks.append(
            compare_values("flights without a tail number, in Spark", self._expected_values, found.values)
        )

    async def _fill_for_spark(self) -> None:
        records = [
            (json.loads(one.value)["dest"].encode(), one.value, one.timestamp_ms)
            for one in self._flights.records
            if one.key is None and one.value is not None
        ]
        async with Client(self._server.address) as client:
            await client.admin.create_topic(SPARK_TOPIC, PARTITION_COUNT, KEYED_CONFIG)
            bounds = [number * len(records) // SPARK_UPLOADS for number in range(SPARK_UPLOADS + 1)]
            for begin, end in itertools.pairwise(bounds):
                async with client.producer(durability=Durability.DISK, linger_ms=20) as producer:
                    for key, value, timestamp_ms in records[begin:end]:
                        producer.send(SPARK_TOPIC, key, value, timestamp_ms=timestamp_ms)
                        await producer.ready()
                await client.admin.upload()

    async def _tier_count(self, client: Client, found: KeyedTopic) -> TierCount:
        [shard] = (await client.admin.tier_status()).shards
        plain = self._expected_values.total()
        return TierCount(shard.live_object_count, shard.live_bytes, found.records + plain, len(found.state))

    async def _logs(self, client: Client) -> list[values.PartitionLog]:
        return [log for topic in (KEYED_TOPIC, PLAIN_TOPIC) for log in await client.admin.describe_log(topic)]

    def _add_state_check(self, name: str, found: KeyedTopic) -> None:
        self._report.checks.append(compare_state(name, self._expected_state, found.state))

    def _add_check(self, name: str, ok: bool, detail: str) -> None:
        self._report.checks.append(Check(name, ok, detail))

    @contextmanager
    def _step(self, name: str, total: int | None = None) -> Generator[Callable[[int], None]]:
        """Show the step with a bar, and remember how long it took. Yields a function that moves the bar on by
        some of the `total` steps; without `total` the bar has no end.
        """
        bar = self._progress.add_task(name, total=total)
        begin_s = self._clock.monotonic_s()
        yield lambda count: self._progress.advance(bar, count)
        self._report.seconds[name] = self._clock.monotonic_s() - begin_s
        self._progress.update(bar, total=total or 1, completed=total or 1)


def next_commands(address: str | None, places: DemoPlaces) -> str:
    """Commands to try next."""
    if address is not None:
        return "\n".join(
            (
                "The server is up. In another terminal:",
                f"  export STRATALOG_SERVER={address}",
                "  stratalog topic list",
                f"  stratalog log describe {KEYED_TOPIC}",
                f"  stratalog consume {KEYED_TOPIC} --from earliest --max 3",
                "  stratalog tier status",
            )
        )
    if places.is_kept:
        return "\n".join(
            (
                f"Kept in {places.root}. Start a server on it:",
                f"  stratalog server start --data-dir {places.data_dir} --store '{places.store_url}'",
                f"  stratalog consume {KEYED_TOPIC} --from earliest --max 3",
            )
        )
    return """Next:
  stratalog demo --serve             leave the server up to look around
  stratalog demo --keep DIR          keep the data directory and the objects
  stratalog server start --data-dir DIR    a server of your own"""


def fail_unless_ok(report: DemoReport) -> None:
    """Raise click.ClickException, which names the failed checks, if a check of the report failed."""
    if not report.ok:
        failed = [check.name for check in report.checks if not check.ok] or ["no check was made"]
        raise click.ClickException("the demonstration found what it should not: " + "; ".join(failed))
