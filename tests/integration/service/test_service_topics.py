"""Topics, trims and descriptions over a loopback connection; health and reflection."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from stratalog.base.errors import (
    DataDirectoryError,
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidRequestError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.manager.directories.partition_metadata import read_partition_metadata, write_partition_metadata
from tests.support.service.service_bench import ServiceBench, service_bench


async def test_a_topic_is_created_listed_described_and_deleted(bench: ServiceBench) -> None:
    admin = bench.client.admin
    created = await admin.create_topic("b", 3, {"retention.ms": "-1"})
    await admin.create_topic("a")
    assert [topic.name for topic in await admin.list_topics()] == ["a", "b"]
    assert (await admin.describe_topics(["b"]))[0] == created
    assert (created.partition_count, dict(created.config_overrides)) == (3, {"retention.ms": "-1"})
    assert created.config["retention.ms"] == "-1"
    assert created.config["cleanup.policy"] == "delete"
    await bench.append("b", [b"x"], partition=2)
    await admin.delete_topic("b")
    assert [topic.name for topic in await admin.list_topics()] == ["a"]
    for gone in (admin.describe_topics(["b"]), admin.delete_topic("b"), bench.append("b", [b"x"])):
        with pytest.raises(UnknownTopicOrPartitionError):
            await gone


async def test_a_change_that_means_a_former_topic_is_refused(bench: ServiceBench) -> None:
    topics = bench.client.topics
    former = await topics.create("t")
    await topics.delete("t", topic_id=former.topic_id)
    topic = await topics.create("t")
    for refused in (
        topics.alter("t", {"retention.ms": 1}, topic_id=former.topic_id),
        topics.add_partitions("t", 3, topic_id=former.topic_id),
        topics.delete("t", topic_id=former.topic_id),
    ):
        with pytest.raises(InconsistentTopicIdError):
            await refused
    assert await topics.describe("t") == topic, "nothing has changed"
    await topics.alter("t", {"retention.ms": 1}, topic_id=topic.topic_id)
    changed = await topics.add_partitions("t", 3, topic_id=topic.topic_id)
    assert (dict(changed.config_overrides), changed.partition_count) == ({"retention.ms": "1"}, 3)
    await topics.delete("t", topic_id=topic.topic_id)
    assert await topics.list() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "-2"),
        ("min.durability", "bucket"),
        ("max.message.bytes", str(1 << 30)),
    ],
)
async def test_a_bad_configuration_is_refused_by_key(bench: ServiceBench, key: str, value: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        await bench.client.admin.create_topic("t", config={key: value})
    assert caught.value.fields["name"] == key
    assert caught.value.fields["allowed"]
    assert await bench.client.admin.list_topics() == []


async def test_a_bad_creation_is_refused(bench: ServiceBench) -> None:
    for name, count in (("a/b", 1), ("x" * 250, 1), ("t", -1), ("t", 10_001), ("t", 2_000_000_000)):
        with pytest.raises(InvalidRequestError):
            await bench.client.admin.create_topic(name, count)
    assert await bench.client.admin.list_topics() == []
    await bench.client.admin.create_topic("t")
    with pytest.raises(TopicAlreadyExistsError):
        await bench.client.admin.create_topic("t", 5)
    assert len(await bench.client.admin.describe_topics(["t"])) == 1


async def test_a_description_shows_segments_slices_and_offsets(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    await bench.append("t", [b"x"] * 3)
    await admin.upload(delete_local=True)
    await bench.append("t", [b"y"] * 2)
    first, second = await admin.describe_log("t")
    assert (first.partition, second.partition) == (0, 1)
    [entry] = await admin.list_slices("t", 0)
    assert (entry.base_offset, entry.end_offset, entry.record_count) == (0, 3, 3)
    assert entry.size_bytes == first.tiered_size_bytes > 0
    [segment] = await admin.list_segments("t", 0)
    assert (segment.base_offset, segment.end_offset, segment.active) == (3, 5, True)
    assert segment.size_bytes == first.local_size_bytes > 0
    assert (first.high_watermark, first.log_end_offset, first.leader_epoch) == (5, 5, 1)
    assert (first.segment_count, first.slice_count) == (1, 1)
    assert (first.pending_upload_record_count, first.pending_upload_bytes) == (2, segment.size_bytes)
    assert (second.log_end_offset, second.segment_count, second.slice_count) == (0, 1, 0)
    assert (second.pending_upload_record_count, second.pending_upload_bytes) == (0, 0)
    assert [log.partition for log in await admin.describe_log("t", [1])] == [1]
    for unknown in (admin.describe_log("nope"), admin.describe_log("t", [2])):
        with pytest.raises(UnknownTopicOrPartitionError):
            await unknown


async def test_health_is_served_for_the_server_and_each_service(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path) as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
    ):
        check: grpc.aio.UnaryUnaryMultiCallable[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ] = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", "stratalog.v1.LogService", "stratalog.v1.AdminService"):
            answer = await check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_names_the_services(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path) as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
    ):
        reflect: grpc.aio.StreamStreamMultiCallable[
            reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        ] = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = reflect()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        assert isinstance(answer, reflection_pb2.ServerReflectionResponse)
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}
        assert {"stratalog.v1.LogService", "stratalog.v1.AdminService", "grpc.health.v1.Health"} <= names


async def test_taking_a_failed_creation_back_leaves_older_directories_alone(tmp_path: Path) -> None:
    filesystem = PosixFileSystem()
    async with service_bench(tmp_path) as bench:
        # An operator's copy of something of that name, of a topic that the server does not know.
        older = tmp_path / "data" / "t-2"
        older.mkdir()
        write_partition_metadata(filesystem, str(older), UUID(int=7))
        (tmp_path / "data" / "t-1").touch()
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.create_topic("t", 3)
        # If its turn came before the failure, it was set aside as for a creation; it is never deleted.
        kept = [path for path in older.parent.glob("t-2*") if not path.name.endswith("-delete")]
        assert [read_partition_metadata(filesystem, str(path)) for path in kept] == [UUID(int=7)]
        assert not (tmp_path / "data" / "t-0").exists()
