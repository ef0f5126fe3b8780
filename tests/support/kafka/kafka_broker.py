"""A real Kafka broker on the loopback interface: one process that is its own controller.

Example::

    broker = KafkaBroker(kafka, tmp_path)
    with broker.running():
        topic_id = broker.create_topic("orders", 3)
        broker.produce("orders", ["a", "b"])
    ...                                     # the broker is stopped: its log directory is free

The client is kafka-python, in this process: a program of Kafka's own takes a second to start.
"""

from __future__ import annotations

import base64
import itertools
import socket
import subprocess
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from stratalog.base.clock import SystemClock
from stratalog.log.checkpoint import HIGH_WATERMARK_FILE
from stratalog.manager.directories.partition_metadata import (
    PARTITION_METADATA_FILE,
    format_topic_id,
    parse_partition_metadata,
)
from tests.support.kafka.kafka_distribution import KafkaDistribution

with warnings.catch_warnings():
    # The library uses functions of Python that are deprecated.
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]  # has no types
    import kafka.admin  # type: ignore[import-untyped]  # has no types

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
_NODE_ID: Final = 1
_FOLLOWER_ID: Final = 2
_CLUSTER_ID: Final = UUID(int=1)
_KAFKA: Final[Any] = kafka


class KafkaBroker:
    """Starts and stops one broker over its log directories. Not thread-safe."""

    def __init__(
        self,
        kafka: KafkaDistribution,
        folder: Path,
        *,
        log_dir_count: int = 1,
        properties: Sequence[str] = (),
        is_measured: bool = False,
    ) -> None:
        """Prepares log directories in `folder`. `properties`: more lines of the broker's configuration. A
        measured broker has the memory and the options of Kafka's own scripts.
        """
        self._kafka = kafka
        self._is_measured = is_measured
        self._folder = folder
        self.log_dir = folder / "kafka-logs"
        self.log_dirs = [self.log_dir, *(folder / f"kafka-logs{n}" for n in range(2, log_dir_count + 1))]
        port, controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._voters = f"{_NODE_ID}@127.0.0.1:{controller_port}"
        self._properties = self._formatted(
            folder,
            "process.roles=broker,controller",
            f"node.id={_NODE_ID}",
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
            f"log.dirs={','.join(map(str, self.log_dirs))}",
            "offsets.topic.num.partitions=1",
            "offsets.topic.replication.factor=1",
            "group.initial.rebalance.delay.ms=0",
            # A broker that was killed comes back at once.
            "broker.heartbeat.interval.ms=500",
            "broker.session.timeout.ms=2000",
            "replica.high.watermark.checkpoint.interval.ms=500",
            # The broker must not change the logs that a test has put there.
            "log.cleaner.enable=false",
            *properties,
        )

    @contextmanager
    def running(self, *, is_killed: bool = False) -> Generator[int]:
        """Start it, and stop it in order at the end, or kill it. Yields the process id."""
        with self._process(self._properties, self.address) as process:
            yield process.pid
            if is_killed:
                process.kill()
            else:
                process.terminate()
            process.wait(STOP_TIMEOUT_S)

    @contextmanager
    def follower_running(self, folder: Path) -> Generator[None]:
        """Run a second broker, of node id 2, that has its logs in `folder`, which is new."""
        folder.mkdir()
        port, _ = _free_ports()
        properties = self._formatted(
            folder,
            "process.roles=broker",
            f"node.id={_FOLLOWER_ID}",
            f"listeners=PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={folder}/logs",
        )
        with self._process(properties, f"127.0.0.1:{port}"):
            yield

    def _formatted(self, folder: Path, *lines: str) -> Path:
        """The properties of a broker, whose log directories are formatted for the cluster."""
        common = [f"controller.quorum.voters={self._voters}", "controller.listener.names=CONTROLLER"]
        path = folder / "server.properties"
        path.write_text("\n".join([*common, "log.retention.ms=-1", *lines, ""]))
        cluster_id = format_topic_id(_CLUSTER_ID)
        self._kafka.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(path))
        return path

    @contextmanager
    def _process(self, properties: Path, address: str) -> Generator[subprocess.Popen[bytes]]:
        """Run a broker until the end of the block, which may stop it itself."""
        log_path = properties.with_name("broker.log")
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                self._kafka.command(
                    "kafka.Kafka",
                    str(properties),
                    heap_mib=1024 if self._is_measured else 384,
                    is_measured=self._is_measured,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

        def answers() -> bool:
            assert process.poll() is None, log_path.read_text(errors="replace")[-2000:]
            host, _, port = address.partition(":")
            with socket.socket() as attempt:
                return attempt.connect_ex((host, int(port))) == 0

        try:
            _wait_until(answers, str(log_path))
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def let_follow(self, topic: str) -> None:
        """Let the second broker follow partition 0, and wait until it is in sync."""
        with closing(_KAFKA.KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            partition = _KAFKA.TopicPartition(topic, 0)
            admin.alter_partition_reassignments({partition: [_NODE_ID, _FOLLOWER_ID]})

            def is_in_sync() -> bool:
                [described] = admin.describe_topics([topic])
                return len(described["partitions"][0]["isr_nodes"]) == 2

            _wait_until(is_in_sync, topic)

    def wait_for_high_watermarks(self) -> None:
        """Wait until the broker has written its high watermarks, which it does twice a second."""
        path = self.log_dir / HIGH_WATERMARK_FILE
        _wait_until(lambda: bool(path.read_bytes()), str(path))

    def wait_for_leader(self, topic: str) -> None:
        """Wait until the broker serves partition 0: it accepts connections before it has opened its logs."""
        with closing(_KAFKA.KafkaAdminClient(bootstrap_servers=self.address)) as admin:

            def has_leader() -> bool:
                [described] = admin.describe_topics([topic])
                return any(one["leader_id"] == _NODE_ID for one in described["partitions"])

            _wait_until(has_leader, topic)

    def create_topic(self, name: str, partition_count: int = 1) -> UUID:
        """Create a topic; returns the id that the broker has written into the directory of partition 0."""
        topic = _KAFKA.admin.NewTopic(name, partition_count, 1)
        with closing(_KAFKA.KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            admin.create_topics([topic])
        paths = [log_dir / f"{name}-0" / PARTITION_METADATA_FILE for log_dir in self.log_dirs]
        _wait_until(lambda: any(path.exists() for path in paths), name)
        [path] = filter(Path.exists, paths)
        return parse_partition_metadata(path.read_text())

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files go a moment later."""
        with closing(_KAFKA.KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            admin.delete_topics([name])

    def produce(self, topic: str, values: Sequence[str]) -> None:
        """Write records with a new idempotent producer, all in one batch if they fit."""
        producer = _KAFKA.KafkaProducer(
            bootstrap_servers=self.address, enable_idempotence=True, linger_ms=1000, batch_size=1 << 19
        )
        with closing(producer):
            for value in values:
                producer.send(topic, value.encode(), partition=0)
            producer.flush()

    def delete_records(self, offsets: Mapping[str, int]) -> None:
        """Delete the records below the offset in partition 0 of each topic."""
        with closing(_KAFKA.KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            admin.delete_records({_KAFKA.TopicPartition(topic, 0): end for topic, end in offsets.items()})

    def consume(self, topic: str, group: str, count: int) -> list[str]:
        """The next `count` values that a member of that group reads; they are committed."""
        consumer = _KAFKA.KafkaConsumer(
            topic,
            bootstrap_servers=self.address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=START_TIMEOUT_S * 1000,
        )
        with closing(consumer):
            values = [record.value.decode() for record in itertools.islice(consumer, count)]
            consumer.commit()
            return values

    def records(self, topic: str, isolation_level: str) -> list[dict[str, Any]]:
        """The records from the log start to the current end, as lines of the golden data."""
        consumer = _KAFKA.KafkaConsumer(
            bootstrap_servers=self.address,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            group_id=None,
        )
        partition = _KAFKA.TopicPartition(topic, 0)
        found: list[dict[str, Any]] = []
        with closing(consumer):
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end_offset = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end_offset:
                for records in consumer.poll(timeout_ms=1000).values():
                    found += map(_golden_line, records)
        return found


def _golden_line(record: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        # The golden data counts as librdkafka does, from 1.
        "timestamp_type": record.timestamp_type + 1,
        "timestamp": record.timestamp,
        "key": encoded(record.key),
        "value": encoded(record.value),
        "headers": [[key, encoded(value)] for key, value in record.headers],
    }


def encoded(data: bytes | None) -> str | None:
    """Bytes as the golden data has them."""
    return None if data is None else base64.b64encode(data).decode()


def _wait_until(is_so: Callable[[], bool], about: str) -> None:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + START_TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < deadline_s, about
        clock.sleep(0.05)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
