"""A server in a process of its own that random inputs are sent to, and all that must be right of it."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.client.values.admin_values import LogDirState
from stratalog.record.record import Record
from stratalog.server.metrics.health_probes import READY_PATH
from tests.support.fuzz.fuzz_tls import FuzzTls
from tests.support.fuzz.http2_connection import call_of_path, send_bytes
from tests.support.fuzz.random_requests import TOPICS
from tests.support.service.server_process import ServerProcess
from tests.support.torture.process_use import ProcessUse

CONTROL = "control"
"""A topic that no input is about."""
OPTIONS = (
    *("--metrics-listen", "127.0.0.1:0", "--max-request-memory", "64", "--upload-interval", "1"),
    *("--config", "remote.append.commit.interval.ms=20", "--config", "log.segment.delete.delay.ms=100"),
)
PARTITION_COUNT = 3
HEALTH_S = 10.0
SETTLE_S = 60.0
_CONTROL_CONFIG = {"retention.ms": "-1", "min.durability": "disk", "segment.bytes": "100000"}
_COUNT = re.compile(r"^stratalog_(\w+?)(?:\{(.*)\})? ([0-9.e+]+)$", re.MULTILINE)
_FAULTS_IN_LOG = re.compile(
    r"^.*(?:Traceback| ERROR | CRITICAL |failed unexpectedly|Segmentation).*$", re.MULTILINE
)


class FuzzedServer:
    """One server. Belongs to the event loop."""

    def __init__(self, process: ServerProcess, client: Client, tls: FuzzTls) -> None:
        self._process = process
        self._client = client
        self._tls = tls
        self._controls: list[bytes] = []
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Create the control topic."""
        await self._client.admin.create_topic(CONTROL, 1, _CONTROL_CONFIG)

    async def tend(self) -> None:
        """Create the topics that the inputs have deleted, or else most inputs would be about none."""
        admin = self._client.admin
        for log_dir in (await admin.describe_log_dirs()).log_dirs:
            if log_dir.state is LogDirState.CORDONED:
                with suppress(LogStoreError):
                    await admin.cordon_log_dir(log_dir.path, is_cordoned=False)
        for topic in {*TOPICS} - {one.name for one in await admin.list_topics()}:
            # Inputs may be quicker.
            with suppress(LogStoreError):
                await admin.create_topic(topic, PARTITION_COUNT)

    async def check(self) -> None:
        """The server is healthy, and takes a record of the control topic."""
        async with self._lock:
            async with self._tls.channel(self._client.address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            value = b"%d" % len(self._controls)
            ack = await self._client.append(CONTROL, 0, [Record(0, 0, None, value)])
            assert (ack.base_offset, ack.durability) == (len(self._controls), Durability.DISK)
            self._controls.append(value)

    async def settled_use(self) -> ProcessUse:
        """The use of the process once no call is open, and no topic is left but the control topic, which has
        what was acknowledged."""
        async with asyncio.timeout(SETTLE_S):
            while await self.open_calls():
                await asyncio.sleep(0.1)
        for topic in await self._client.admin.list_topics():
            if topic.name != CONTROL:
                with suppress(LogStoreError):
                    await self._client.admin.delete_topic(topic.name)
        assert [one.name for one in await self._client.admin.list_topics()] == [CONTROL]
        assert [one.value async for one in self._client.consume(CONTROL, until="latest")] == self._controls
        # Files of deleted topics are kept for a moment.
        await asyncio.sleep(0.5)
        return ProcessUse.of(self._process.pid)

    async def open_calls(self) -> float:
        """The number of calls that are open, of those that count."""
        return sum(count for name, _, count in await self._counts() if name == "server_open_calls")

    async def faults(self) -> list[str]:
        """Errors that the server has counted or logged and that no input may cause."""
        counted = [
            f"{name}{{{labels}}} is {count:g}"
            for name, labels, count in await self._counts()
            if count and name in ("server_errors_total", "server_method_ends_total")
            if re.search(r'code="(INTERNAL|UNKNOWN|DATA_LOSS)"', labels) and "RECORDS_LOST" not in labels
        ]
        return counted + _FAULTS_IN_LOG.findall(self._process.said)

    async def survives_a_path_without_unicode(self) -> None:
        """A stranger's call with a path that is no UTF-8 ends gRPC's server; ready and healthy means that
        another one listens."""
        again = "listens on"
        count = self._process.said.count(again)
        await send_bytes(self._client.address, call_of_path("/\udce9"), 0.1, self._tls.context)
        async with asyncio.timeout(SETTLE_S):
            while self._process.said.count(again) == count:
                assert "cannot listen" not in self._process.said, self.last_words()
                await asyncio.sleep(0.05)
        assert (await self._get(READY_PATH))[0] == HTTPStatus.OK
        await self.check()

    def last_words(self) -> str:
        """The exit code of the process, and the end of its log."""
        lines = [line for line in self._process.said.splitlines() if "hpack_parser" not in line]
        return f"exit code {self._process.exit_code}, its log ends with {lines[-10:]}"

    async def _counts(self) -> list[tuple[str, str, float]]:
        text = (await self._get("/metrics"))[1]
        return [(name, labels, float(count)) for name, labels, count in _COUNT.findall(text)]

    async def _get(self, path: str) -> tuple[int, str]:
        """The answer of the endpoint of metrics."""
        port = int(re.findall(r"metrics are at port (\d+)", self._process.said)[-1])

        def read() -> tuple[int, str]:
            url = self._tls.http_url(port, path)
            with urllib.request.urlopen(url, context=self._tls.context) as answer:
                return answer.status, str(answer.read(), "utf-8")

        return await asyncio.to_thread(read)
