"""Every call of the contract, with no credentials, wrong ones, those of another tenant and the right ones.

The calls come from the descriptors, so a new one fails here until `CALL_PERMISSIONS` has it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status

from stratalog.base.clock import SystemClock
from stratalog.base.randomness import SystemIdGenerator
from stratalog.client.client import Client
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.record import Record
from stratalog.server.access.permissions import Operation as PermittedOperation
from stratalog.server.access.tokens import new_token
from stratalog.server.operations.operation import Operation, OperationKind
from stratalog.server.rpc.access.call_permissions import CALL_PERMISSIONS, Scope, named_topics
from stratalog.server.rpc.admin.operation_convert import REASON_OF_OTHERS
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2
from tests.support.access.guarded_site import EVERYTHING, OURS, THEIRS, GuardedSite
from tests.support.fuzz.fuzzed_calls import WROTE_TOO_LATE

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
NAMES_OF_TOPICS = {"CreateTopicRequest", "DeleteTopicRequest", "DescribeTopicsRequest"}
"""The requests whose names are those of topics."""


class Answer(NamedTuple):
    code: grpc.StatusCode
    response: Any = None
    details: str = ""


def methods() -> Iterator[MethodDescriptor]:
    for file in (admin_pb2, log_pb2, operation_pb2, tier_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


METHODS = {path(method): method for method in methods()}
METADATA = METHODS["/stratalog.v1.LogService/Metadata"]


def request_about(method: MethodDescriptor, topic: str) -> Any:
    """A request that names the topic wherever one can be named."""
    request = GetMessageClass(method.input_type)()
    fill(request, topic)
    return request


def fill(message: Any, topic: str, depth: int = 0) -> None:
    fields = ["topic", "topics"]
    if message.DESCRIPTOR.name in NAMES_OF_TOPICS:
        fields += ["name", "names"]
    for field in message.DESCRIPTOR.fields:
        if field.name in fields and field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                getattr(message, field.name).append(topic)
            else:
                setattr(message, field.name, topic)
        elif field.message_type is not None and depth < 3 and not field.message_type.GetOptions().map_entry:
            inner = GetMessageClass(field.message_type)()
            fill(inner, topic, depth + 1)
            if not inner.ListFields():
                continue
            if field.is_repeated:
                getattr(message, field.name).append(inner)
            elif field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) is None:
                getattr(message, field.name).CopyFrom(inner)


async def answer(channel: Any, method: MethodDescriptor, request: Any, token: str | None) -> Answer:
    """The end of a call; for one that goes on its begin. One whose end gRPC's client has lost is repeated."""
    found = await first_answer(channel, method, request, token)
    while method.client_streaming and WROTE_TOO_LATE in found.details:
        found = await first_answer(channel, method, request, token)
    return found


async def first_answer(channel: Any, method: MethodDescriptor, request: Any, token: str | None) -> Answer:
    name = path(method)
    codec: Any = (
        GetMessageClass(method.input_type).SerializeToString,
        GetMessageClass(method.output_type).FromString,
    )
    headers = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        if method.client_streaming:
            call = channel.stream_stream(name, *codec)(iter([request]), metadata=headers, timeout=30)
            return Answer(grpc.StatusCode.OK, await first(call))
        if method.server_streaming:
            call = channel.unary_stream(name, *codec)(request, metadata=headers, timeout=30)
            return Answer(grpc.StatusCode.OK, await first(call))
        response = await channel.unary_unary(name, *codec)(request, metadata=headers, timeout=30)
    except grpc.aio.AioRpcError as error:
        return Answer(error.code(), details=f"{error.details()} {error.trailing_metadata()}")
    return Answer(grpc.StatusCode.OK, response)


async def first(call: Any) -> Any:
    """The first response of a stream, which is left then."""
    try:
        async for response in call:
            return response
        return None
    finally:
        call.cancel()


@asynccontextmanager
async def guarded(folder: Path, store: ObjectStore | None = None) -> AsyncGenerator[tuple[GuardedSite, Any]]:
    """A server with a topic of each tenant, and a channel to it without credentials of its own."""
    reader = '{ topics = ["ours.*"], operations = ["read", "describe"] }'
    site = GuardedSite(folder, ours=OURS, theirs=THEIRS, admin=EVERYTHING, reader=reader)
    async with site.running(store=store):
        async with site.client("admin") as admin:
            for topic in ("ours.t", "theirs.t"):
                await admin.admin.create_topic(topic)
        trust = grpc.ssl_channel_credentials(Path(site.authority.path).read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{site.server.port}", trust) as channel:
            yield site, channel


def test_every_call_has_a_permission() -> None:
    reflection = {name for name in CALL_PERMISSIONS if name.startswith("/grpc.reflection.")}
    assert set(CALL_PERMISSIONS) - reflection == set(METHODS)
    assert len(METHODS) > 40


@pytest.mark.parametrize("name", METHODS)
def test_the_topics_of_a_request_are_found(name: str) -> None:
    request = request_about(METHODS[name], "ours.t")
    names_one = b"ours.t" in request.SerializeToString()
    if CALL_PERMISSIONS[name].scope in (Scope.TOPICS, Scope.TOPICS_OR_ALL):
        assert set(named_topics(request)) == {"ours.t"}
    elif CALL_PERMISSIONS[name].scope is not Scope.CLUSTER:
        assert not names_one or CALL_PERMISSIONS[name].scope is Scope.SHOWN


async def test_strangers_and_other_tenants_stay_out(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (site, channel):
        unknown = new_token(SystemIdGenerator())
        changed = site.tokens["ours"][:-1] + ("A" if site.tokens["ours"][-1] != "A" else "B")
        for name, method in METHODS.items():
            request = request_about(method, "ours.t")
            for token in (None, unknown, changed, "no token"):
                assert (await answer(channel, method, request, token)).code is UNAUTHENTICATED, name
            if CALL_PERMISSIONS[name].scope not in (Scope.SHOWN, Scope.OPERATION, Scope.SOME_TOPIC):
                for topic in ("ours.t", "ours.absent"):
                    refused = await answer(
                        channel, method, request_about(method, topic), site.tokens["theirs"]
                    )
                    assert refused.code is PERMISSION_DENIED, (name, refused)
        refusals = site.refusals()
        assert refusals["AUTHENTICATION_FAILED"] == 4 * len(METHODS)
        assert refusals["AUTHORIZATION_FAILED"] > len(METHODS)


@contextmanager
def running_operation(site: GuardedSite, *topics: str) -> Generator[Operation]:
    """Long work over these topics that runs until it is cancelled."""
    may_end = threading.Event()

    def work(operation: Operation) -> None:
        while not operation.stop.is_set and not may_end.is_set():
            may_end.wait(0.01)

    operations = site.server.engine.operations
    try:
        yield operations.start(OperationKind.VERIFICATION, topics, work, lane=topics)
    finally:
        may_end.set()


async def test_long_work_of_another_tenant_looks_as_if_it_were_not_there(tmp_path: Path) -> None:
    methods = {name: one for name, one in METHODS.items() if CALL_PERMISSIONS[name].scope is Scope.OPERATION}
    assert {name.rpartition("/")[2] for name in methods} == {
        "GetOperation",
        "WatchOperation",
        "CancelOperation",
    }
    async with guarded(tmp_path) as (site, channel):
        with running_operation(site, "ours.t") as of_topic, running_operation(site) as of_all:
            for name, method in methods.items():

                async def ask(
                    operation_id: str, principal: str, method: MethodDescriptor = method
                ) -> tuple[grpc.StatusCode, str]:
                    request = GetMessageClass(method.input_type)(operation_id=operation_id)
                    found = await answer(channel, method, request, site.tokens[principal])
                    return found.code, found.details.replace(operation_id, "ID")

                unknown = await ask(str(UUID(int=1)), "theirs")
                assert unknown[0] is grpc.StatusCode.NOT_FOUND, name
                for principal, foreign in (("theirs", of_topic), ("theirs", of_all), ("ours", of_all)):
                    assert await ask(str(foreign.view.operation_id), principal) == unknown, (name, principal)
                # One who sees it may not cancel it for that.
                code, _ = await ask(str(of_topic.view.operation_id), "reader")
                is_cancel = CALL_PERMISSIONS[name].operation is PermittedOperation.ALTER
                assert code is (PERMISSION_DENIED if is_cancel else grpc.StatusCode.OK), name
                assert not of_topic.stop.is_set
                assert not of_all.stop.is_set
                assert (await ask(str(of_topic.view.operation_id), "ours"))[0] is grpc.StatusCode.OK, name
            assert of_topic.stop.is_set, "its tenant has cancelled it"


async def test_what_is_shown_to_all_has_nothing_of_another_tenant(tmp_path: Path) -> None:
    methods = {name: one for name, one in METHODS.items() if CALL_PERMISSIONS[name].scope is Scope.SHOWN}
    async with guarded(tmp_path) as (site, channel):
        with running_operation(site, "ours.t"), running_operation(site):
            for name, method in methods.items():
                request = GetMessageClass(method.input_type)()
                seen = {
                    principal: (await answer(channel, method, request, site.tokens[principal])).response
                    for principal in ("ours", "theirs")
                }
                assert b"ours" in seen["ours"].SerializeToString(), name
                assert b"ours" not in seen["theirs"].SerializeToString(), name


async def test_a_producer_id_is_for_those_who_may_write_somewhere(tmp_path: Path) -> None:
    [(name, method)] = (
        (name, one) for name, one in METHODS.items() if CALL_PERMISSIONS[name].scope is Scope.SOME_TOPIC
    )
    async with guarded(tmp_path) as (site, channel):
        request = GetMessageClass(method.input_type)()
        codes = {
            principal: (await answer(channel, method, request, site.tokens[principal])).code
            for principal in ("theirs", "reader")
        }
        assert codes == {"theirs": grpc.StatusCode.OK, "reader": PERMISSION_DENIED}, name


async def test_the_right_ones_come_in(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (site, channel):
        for name, method in METHODS.items():
            is_of_cluster = CALL_PERMISSIONS[name].scope is Scope.CLUSTER
            token = site.tokens["admin" if is_of_cluster else "ours"]
            request = request_about(method, "ours.t")
            if name.endswith(("/Append", "/AppendStream")):
                request.partition = 0
                request.records.records.add(value=b"x")
            if name.endswith("/FetchStream"):
                request.max_wait_ms = 1
            if name.endswith("/Read"):
                request.max_record_count = 1
            came_in = await answer(channel, method, request, token)
            denials = (UNAUTHENTICATED, PERMISSION_DENIED, grpc.StatusCode.INTERNAL)
            assert came_in.code not in denials, (name, came_in)
        assert site.refusals() == {}


async def test_lists_show_what_the_principal_may_describe(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (site, channel), site.client("ours") as ours:
        assert [one.name for one in await ours.admin.list_topics()] == ["ours.t"]
        everything = await answer(channel, METADATA, log_pb2.MetadataRequest(), site.tokens["ours"])
        assert [one.topic for one in everything.response.topics] == ["ours.t"]
        async with site.client("admin") as admin:
            await admin.operations.wait((await admin.admin.start_retention(["theirs.t"])).operation_id)
            await admin.operations.wait((await admin.admin.start_retention(["ours.t"])).operation_id)
            await admin.operations.wait((await admin.admin.start_retention([])).operation_id)
            assert len(await admin.operations.list()) == 3
        [mine] = await ours.operations.list()
        assert mine.topics == ("ours.t",)


async def test_named_topics_of_others_look_the_same_whether_they_exist(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (site, channel):
        request = log_pb2.MetadataRequest(topics=["theirs.t", "theirs.absent", "ours.t"])
        found = await answer(channel, METADATA, request, site.tokens["ours"])
        own, absent, exists = found.response.topics
        assert [one.topic for one in (own, absent, exists)] == ["ours.t", "theirs.absent", "theirs.t"]
        assert own.error == Status()
        assert len(own.partitions) == 1
        assert exists.error.code == absent.error.code == PERMISSION_DENIED.value[0]
        assert exists.error.message == absent.error.message
        assert not exists.topic_id
        assert not exists.partitions


async def test_a_stranger_is_refused_before_the_message_is_read(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (site, channel):
        name, never = "/stratalog.v1.LogService/Append", asyncio.Event()

        async def no_message() -> AsyncGenerator[bytes]:
            await never.wait()
            yield b""

        for token in ("", new_token(SystemIdGenerator())):
            headers = (("authorization", f"Bearer {token}"),) if token else ()
            call = channel.stream_unary(name)(no_message(), metadata=headers, timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            assert refusal.value.code() is UNAUTHENTICATED
        assert all(counts.accepted_count <= 2 for counts in site.server.calls.values())


async def share_objects(admin: Client) -> None:
    """Upload two objects, each with records of both tenants, which compaction has to rewrite."""
    config = {"remote.storage.enable": "true", "cleanup.policy": "compact"}
    for topic in ("ours.k", "theirs.k"):
        await admin.admin.create_topic(topic, 1, config)
    for value in (b"first", b"second"):
        for topic in ("ours.k", "theirs.k"):
            await admin.append(topic, 0, [Record(0, 1_000, b"key", topic.encode() + value * 20)])
        await admin.admin.upload()


def damage_slice(data: bytes) -> bytes:
    """Change a value of theirs."""
    return data.replace(b"theirs.kf", b"theirs.kF").replace(b"theirs.ks", b"theirs.kS")


def damage_whole(data: bytes) -> bytes:
    """Change everything."""
    return bytes(len(data))


@pytest.mark.parametrize("damage", [damage_slice, damage_whole])
async def test_no_answer_names_topics_of_others_in_the_same_objects(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    bucket = MemoryObjectStore(SystemClock())
    async with guarded(tmp_path, bucket) as (site, channel), site.client("admin") as admin:
        await share_objects(admin)
        [theirs] = await admin.admin.describe_topics(["theirs.k"])
        names = ("theirs", theirs.topic_id, UUID(theirs.topic_id).hex)

        async def ask(name: str, request: Any, principal: str = "ours") -> tuple[Any, str]:
            found = await answer(channel, METHODS[name], request, site.tokens[principal])
            return found.response, f"{found.response} {found.details}"

        plan, request = "/stratalog.v1.TierService/PlanCompaction", tier_pb2.PlanCompactionRequest()
        request.topics.append("ours.k")
        assert {run.topic for job in (await ask(plan, request, "admin"))[0].jobs for run in job.runs} == {
            "ours.k",
            "theirs.k",
        }
        assert {run.topic for job in (await ask(plan, request))[0].jobs for run in job.runs} == {"ours.k"}
        for info in list(bucket.list("shards/0000/data/")):
            bucket.put(info.key, damage(bucket.get(info.key).data))
        started: list[str] = []
        for name, method in METHODS.items():
            if name.endswith("/DeleteTopic"):
                continue
            for asked in (GetMessageClass(method.input_type)(), request_about(method, "ours.k")):
                response, text = await ask(name, asked)
                assert not any(one in text for one in names), (name, text)
                if "operation" in method.output_type.fields_by_name and response is not None:
                    started.append(response.operation.operation_id)
        assert len(started) == 4, "upload, compaction, retention, verification"
        seen_by_all = ""
        for operation_id in started:
            await admin.operations.wait(operation_id)
            for call in ("GetOperation", "WatchOperation", "CancelOperation"):
                name = f"/stratalog.v1.OperationService/{call}"
                asked = GetMessageClass(METHODS[name].input_type)(operation_id=operation_id)
                response, text = await ask(name, asked)
                assert not any(one in text for one in names), (name, text)
                seen_by_all += (await ask(name, asked, "admin"))[1]
            if response.operation.HasField("compaction"):
                reasons = [job.reason for job in response.operation.compaction.jobs]
                assert REASON_OF_OTHERS in reasons, reasons
        assert any(one in seen_by_all for one in names) is (damage is damage_slice), "who may see all does"
        _, text = await ask(plan, request)
        assert not any(one in text for one in names), text
