"""A server under everything for as long as one likes: producers at each durability, readers of the tail and
of old records, restarts, a slow disk, and a store that fails and comes back.

Time goes in rounds; in each the disk is slow once, and the store fails once. In the first fifth of the time
and in the third one each round has a restart, so that one process lives through the second fifth, and another
one through the last two: the memory and the descriptors of the two are compared. Latencies are compared where
the weather was calm from the begin of an append to its end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles

from stratalog.base.types import Durability
from stratalog.client.client import Client
from tests.support.torture.numbered_topic import PARTITION_COUNT, PATIENT, NumberedTopic
from tests.support.torture.process_use import ProcessUse
from tests.support.torture.weathered_server import Weather, WeatheredProcess

FIFTH_COUNT = 5
ROUND_S = 60.0
BURST_COUNT = 20
PAUSE_S = 0.05
# Small segments, so that records leave the local disk and come from the object store.
CONFIG = {"segment.bytes": "1000000", "local.retention.ms": "1", "remote.storage.enable": "true"}
OPTIONS = (
    *("--upload-interval", "1", "--max-request-memory", "64"),
    # A larger cache of tiered data would not be full after minutes, and its growth look like a leak.
    *("--config", "remote.read.cache.bytes=16777216"),
    *("--config", "remote.append.commit.interval.ms=50", "--config", "log.retention.check.interval.ms=1000"),
)
_SCRATCH = bytes(BURST_COUNT * 100)
SETTLE_S = 3.0
"""A spell or a restart still counts as bad weather for so long, because records have waited."""


class Fifth:
    """The measures of one fifth of the time. Belongs to the event loop."""

    def __init__(self) -> None:
        self.latencies_ms: dict[Durability, list[float]] = {one: [] for one in Durability}
        """Times of appends in calm weather."""
        self.reference_ms: list[float] = []
        """Times of fsyncs by this process alone, which show how busy the machine is."""
        self.uses: list[ProcessUse] = []

    def percentile_ms(self, durability: Durability, percent: int) -> float:
        """A percentile of the latencies; 0 where there are too few."""
        return _percentile(self.latencies_ms[durability], percent)

    def slowness(self, earlier: Fifth) -> float:
        """How many times as slow as in an earlier fifth the machine is, without the server; at least 1."""
        return max(
            1.0,
            *(_percentile(self.reference_ms, at) / _percentile(earlier.reference_ms, at) for at in (50, 90)),
        )

    @property
    def use(self) -> ProcessUse:
        """The middle of what the process took."""
        return ProcessUse(*(round(median(values)) for values in zip(*self.uses, strict=True)))

    def __str__(self) -> str:
        latencies = ", ".join(
            f"{one.config_value} {self.percentile_ms(one, 50):.1f} / {self.percentile_ms(one, 99):.1f} ms"
            for one in Durability
        )
        reference = f"{_percentile(self.reference_ms, 50):.1f} / {_percentile(self.reference_ms, 99):.1f} ms"
        use = self.use if self.uses else "not measured"
        return f"p50 / p99 of appends: {latencies}, of a bare fsync {reference}; {use}"


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else 0.0


@dataclass(slots=True)
class SoakReport:
    """The counts and measures of a soak. Belongs to the event loop."""

    fifths: Sequence[Fifth] = field(default_factory=lambda: [Fifth() for _ in range(FIFTH_COUNT)])
    kill_count: int = 0
    stop_count: int = 0
    slow_disk_count: int = 0
    failing_store_count: int = 0
    topics: Sequence[NumberedTopic] = ()

    def __str__(self) -> str:
        lines = [
            f"{one.name}: {one.acknowledged_count} of {one.sent_count} records acknowledged,"
            f" {one.tailed_count} followed, {one.cold_count} read from old places"
            for one in self.topics
        ]
        lines += [f"fifth {number}: {one}" for number, one in enumerate(self.fifths, 1)]
        lines.append(
            f"{self.kill_count} kills, {self.stop_count} stops, {self.slow_disk_count} spells of a slow disk,"
            f" {self.failing_store_count} of a store that fails"
        )
        return "\n".join(lines)


class Soak:
    """One soak. Belongs to the event loop."""

    def __init__(self, directory: Path, seed: int, duration_s: float) -> None:
        self._random = Random(seed)
        self._duration_s = duration_s
        self._round_s = min(ROUND_S, duration_s / FIFTH_COUNT)
        self._weather = Weather(directory)
        self._server = WeatheredProcess(directory, self._weather, options=OPTIONS)
        self._topics = [
            *(NumberedTopic(one.config_value, one) for one in Durability),
            NumberedTopic("plain", Durability.DISK, is_idempotent=False),
        ]
        self._report = SoakReport(topics=self._topics)
        self._is_enough = asyncio.Event()
        self._scratch = directory / "scratch"
        self._begin_s = 0.0
        self._bad_until_s = 0.0
        """The end of the last bad weather, or of its aftermath."""

    async def run(self) -> SoakReport:
        """Run for the whole time; raises where a record is lost, doubled or out of order."""
        with self._server as server:
            server.add_options("--listen", server.address)
            async with Client(server.address, retry=PATIENT) as client:
                for topic in self._topics:
                    await client.admin.create_topic(topic.name, PARTITION_COUNT, CONFIG)
                self._begin_s = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    for topic in self._topics:
                        tasks.create_task(self._produce(client, topic))
                        tasks.create_task(topic.tail(client))
                    tasks.create_task(self._read_cold(client))
                    tasks.create_task(self._measure())
                    tasks.create_task(self._measure_machine())
                    await self._change_weather()
                    self._is_enough.set()
            assert await asyncio.to_thread(server.stop) == 0
        return self._report

    async def _produce(self, client: Client, topic: NumberedTopic) -> None:
        def note(begin_s: float, end_s: float) -> None:
            if topic.is_idempotent and self._weather.is_calm and begin_s > self._bad_until_s:
                fifth = self._fifth(begin_s)
                fifth.latencies_ms[topic.durability].append((end_s - begin_s) * 1000)

        await topic.produce(client, self._is_enough, burst_count=BURST_COUNT, pause_s=PAUSE_S, note=note)

    async def _read_cold(self, client: Client) -> None:
        while not self._is_enough.is_set():
            await self._random.choice(self._topics).read_cold(client, self._random)
            await asyncio.sleep(0.2)

    async def _measure(self) -> None:
        while not self._is_enough.is_set():
            await asyncio.sleep(min(1.0, self._round_s / 10))
            now_s = time.monotonic()
            if self._weather.is_calm and now_s > self._bad_until_s:
                self._fifth(now_s).uses.append(ProcessUse.of(self._server.pid))

    async def _measure_machine(self) -> None:
        def fsync() -> None:
            with self._scratch.open("wb") as file:
                file.write(_SCRATCH)
                file.flush()
                os.fsync(file.fileno())

        while not self._is_enough.is_set():
            begin_s = time.monotonic()
            await asyncio.to_thread(fsync)
            end_s = time.monotonic()
            self._fifth(begin_s).reference_ms.append((end_s - begin_s) * 1000)
            await asyncio.sleep(PAUSE_S)

    def _fifth(self, now_s: float) -> Fifth:
        part = (now_s - self._begin_s) / self._duration_s
        return self._report.fifths[min(FIFTH_COUNT - 1, int(part * FIFTH_COUNT))]

    async def _change_weather(self) -> None:
        """Rounds, until time is up."""
        report = self._report
        while time.monotonic() - self._begin_s < self._duration_s - self._round_s / 2:
            begin_s = time.monotonic()
            fifth = report.fifths.index(self._fifth(begin_s))
            await self._calm()
            await self._spell(self._weather.slow_disk)
            report.slow_disk_count += 1
            await self._calm()
            await self._spell(self._weather.failing_store)
            report.failing_store_count += 1
            if fifth in (0, 2):
                await self._calm()
                await self._restart()
            await asyncio.sleep(max(0.0, begin_s + self._round_s - time.monotonic()))

    async def _calm(self) -> None:
        await asyncio.sleep(self._round_s * self._random.uniform(0.15, 0.25))

    async def _spell(self, sign: Path) -> None:
        sign.touch()
        try:
            await asyncio.sleep(self._round_s * self._random.uniform(0.05, 0.15))
        finally:
            sign.unlink()
            self._end_spell()

    async def _restart(self) -> None:
        self._bad_until_s = float("inf")
        if self._report.kill_count <= self._report.stop_count:
            self._server.kill()
            self._report.kill_count += 1
        else:
            await asyncio.to_thread(self._server.stop)
            self._report.stop_count += 1
        await asyncio.to_thread(self._server.start)
        self._end_spell()

    def _end_spell(self) -> None:
        self._bad_until_s = time.monotonic() + min(SETTLE_S, self._round_s / 10)
