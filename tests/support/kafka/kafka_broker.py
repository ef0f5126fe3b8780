"""A real Kafka broker on the loopback interface: one process that is its own controller.

Example::

    broker = KafkaBroker(KafkaDistribution.fetched(cache), tmp_path)
    with broker.running():
        topic_id = broker.create_topic("orders", 3)
    ...                                     # it is stopped: its log directory is nobody's
    with broker.running():
        KafkaConsumer("orders", bootstrap_servers=broker.address)
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from stratalog.base.clock import SystemClock
from stratalog.log.checkpoint import HIGH_WATERMARK_FILE
from stratalog.manager.partitions.partition_metadata import (
    PARTITION_METADATA_FILE,
    format_topic_id,
    parse_partition_metadata,
)
from tests.support.kafka.kafka_distribution import KafkaDistribution

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
_CONSUME_TIMEOUT_MS: Final = 15_000
_NODE_ID: Final = 1
_FOLLOWER_ID: Final = 2
_IN_SYNC: Final = re.compile(r"Isr: (\S+)")
_CLUSTER_ID: Final = UUID(int=1)


class KafkaBroker:
    """Starts and stops one broker over its log directories. Not thread-safe."""

    def __init__(
        self,
        kafka: KafkaDistribution,
        folder: Path,
        *,
        log_dir_count: int = 1,
        properties: Sequence[str] = (),
    ) -> None:
        """Prepares log directories in `folder`. `properties`: more lines of its configuration."""
        self._kafka = kafka
        self._folder = folder
        self.log_dir = folder / "kafka-logs"
        self.log_dirs = [self.log_dir, *(folder / f"kafka-logs{n}" for n in range(2, log_dir_count + 1))]
        port, controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._voters = f"{_NODE_ID}@127.0.0.1:{controller_port}"
        self._properties = folder / "server.properties"
        self._properties.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller",
                    f"node.id={_NODE_ID}",
                    f"controller.quorum.voters={self._voters}",
                    f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
                    "controller.listener.names=CONTROLLER",
                    f"log.dirs={','.join(map(str, self.log_dirs))}",
                    "offsets.topic.replication.factor=1",
                    "group.initial.rebalance.delay.ms=0",
                    # Nothing is to change what a test has put there.
                    "log.cleaner.enable=false",
                    "log.retention.ms=-1",
                    *properties,
                    "",
                ]
            )
        )
        cluster_id = format_topic_id(_CLUSTER_ID)
        kafka.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties))

    @contextmanager
    def running(self, *, is_killed: bool = False) -> Generator[None]:
        """Start it, and stop it in order at the end, or kill it."""
        log_path = self._folder / "broker.log"
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                self._kafka.command("kafka.Kafka", str(self._properties), heap_mib=384),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_until_it_answers(self.address, process, log_path)
            yield
            if is_killed:
                process.kill()
            else:
                process.terminate()
            process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    @contextmanager
    def follower_running(self, folder: Path) -> Generator[None]:
        """Run a second broker, of node id 2, that has its logs in `folder`, which is new."""
        folder.mkdir()
        properties, log_path = folder / "server.properties", folder / "broker.log"
        port, _ = _free_ports()
        properties.write_text(
            "\n".join(
                [
                    "process.roles=broker",
                    f"node.id={_FOLLOWER_ID}",
                    f"controller.quorum.voters={self._voters}",
                    f"listeners=PLAINTEXT://127.0.0.1:{port}",
                    "controller.listener.names=CONTROLLER",
                    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    f"log.dirs={folder}/logs",
                    "log.retention.ms=-1",
                    "",
                ]
            )
        )
        cluster_id = format_topic_id(_CLUSTER_ID)
        self._kafka.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                self._kafka.command("kafka.Kafka", str(properties), heap_mib=384),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_until_it_answers(f"127.0.0.1:{port}", process, log_path)
            yield
        finally:
            process.kill()
            process.wait()

    def let_follow(self, topic: str, plan: Path) -> None:
        """Let the second broker follow partition 0, and wait until it is in sync. `plan`: a file that is
        written."""
        partition = {"topic": topic, "partition": 0, "replicas": [_NODE_ID, _FOLLOWER_ID]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        self._kafka.run(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", self.address, "--reassignment-json-file", str(plan), "--execute"),
        )
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        description = ""
        while clock.monotonic_s() < deadline_s:
            description = self._kafka.run(
                "org.apache.kafka.tools.TopicCommand",
                *("--bootstrap-server", self.address, "--topic", topic, "--describe"),
            )
            in_sync = _IN_SYNC.search(description)
            if in_sync is not None and len(in_sync[1].split(",")) == 2:
                return
            clock.sleep(1)
        raise AssertionError(description)

    def wait_for_high_watermarks(self) -> None:
        """Until it has written some down, which it does every five seconds."""
        clock, path = SystemClock(), self.log_dir / HIGH_WATERMARK_FILE
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        while not path.read_bytes():
            assert clock.monotonic_s() < deadline_s, path
            clock.sleep(0.1)

    def create_topic(self, name: str, partition_count: int) -> UUID:
        """Create a topic; returns the id that the broker has written into the directory of partition 0."""
        command = ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, "--topic", name]
        self._kafka.run(*command, "--create", "--partitions", str(partition_count))
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        while clock.monotonic_s() < deadline_s:
            for log_dir in self.log_dirs:
                with suppress(FileNotFoundError):
                    metadata = log_dir / f"{name}-0" / PARTITION_METADATA_FILE
                    return parse_partition_metadata(metadata.read_text())
            clock.sleep(0.05)
        raise AssertionError(f"the broker has not created {name}")

    def produce(self, topic: str, values: Sequence[str]) -> None:
        """Let Kafka's own producer, which is idempotent, write records; it is a new producer each time."""
        self._kafka.run(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", self.address, "--topic", topic),
            standard_input="".join(f"{value}\n" for value in values),
        )

    def delete_records(self, offsets: Mapping[str, int], plan: Path) -> None:
        """Delete what lies below the offset in partition 0 of each topic. `plan`: a file that is written."""
        partitions = [{"topic": topic, "partition": 0, "offset": offset} for topic, offset in offsets.items()]
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        self._kafka.run(
            "org.apache.kafka.tools.DeleteRecordsCommand",
            *("--bootstrap-server", self.address, "--offset-json-file", str(plan)),
        )

    def consume(self, topic: str, group: str, max_count: int) -> list[str]:
        """What Kafka's own consumer gets as a member of that group, from where the group has stopped."""
        output = self._kafka.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.address, "--topic", topic, "--group", group),
            *("--max-messages", str(max_count), "--timeout-ms", str(_CONSUME_TIMEOUT_MS)),
            *("--consumer-property", "auto.offset.reset=earliest"),
        )
        return [line for line in output.splitlines() if line.isalnum()]


def _wait_until_it_answers(address: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + START_TIMEOUT_S
    host, _, port = address.partition(":")
    while clock.monotonic_s() < deadline_s:
        assert process.poll() is None, log_path.read_text(errors="replace")[-2000:]
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            clock.sleep(0.1)
        else:
            return
    raise AssertionError(log_path.read_text(errors="replace")[-2000:])


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
