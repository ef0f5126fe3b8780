"""The gate finds the topics of every request that names some."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stratalog.base.errors import StoreUnavailableError
from stratalog.server.append.append_decoding import decode_append_request
from stratalog.server.rpc import topic_gate
from stratalog.server.rpc.topic_gate import TopicGate, topics_of
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2

TOPIC_FIELDS = {"topic", "topics"}
BY_NAME = {"DescribeTopicsRequest": "names", "DeleteTopicRequest": "name"}
REQUESTS: list[Descriptor] = [
    method.input_type
    for module in (log_pb2, admin_pb2, operation_pb2, tier_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def paths_to_topics(message: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The fields that lead to the name of a topic."""
    for one in message.fields:
        if one.name in TOPIC_FIELDS or BY_NAME.get(message.name) == one.name:
            yield (one,)
        elif one.message_type is not None and one.message_type.file.package == message.file.package:
            for path in paths_to_topics(one.message_type):
                yield (one, *path)


def with_topic(message: Message, path: tuple[FieldDescriptor, ...]) -> None:
    """Set the field at the end of the path to `t`."""
    one, *rest = path
    if rest:
        inner = getattr(message, one.name)
        with_topic(inner.add() if one.is_repeated else inner, tuple(rest))
    elif one.is_repeated:
        getattr(message, one.name).append("t")
    else:
        setattr(message, one.name, "t")


CASES = [(request, path) for request in REQUESTS for path in paths_to_topics(request)]


@pytest.mark.parametrize(
    ("request_type", "path"),
    CASES,
    ids=[".".join((one.name, *(f.name for f in path))) for one, path in CASES],
)
def test_topics_of_a_request_are_found(request_type: Descriptor, path: tuple[FieldDescriptor, ...]) -> None:
    message = GetMessageClass(request_type)()
    assert "t" not in topics_of(message)
    with_topic(message, path)
    assert list(topics_of(message)) == ["t"]


def test_an_append_is_looked_into_without_its_batches() -> None:
    data = log_pb2.AppendRequest(topic="t", batches=b"x" * 100).SerializeToString()
    assert list(topics_of(decode_append_request(data))) == ["t"]


def test_other_requests_name_no_topic() -> None:
    assert list(topics_of(object())) == []
    assert list(topics_of(admin_pb2.CreateTopicRequest(name="t"))) == []
    server = admin_pb2.ConfigResource(server=admin_pb2.ConfigResource.Server())
    assert list(topics_of(admin_pb2.DescribeConfigsRequest(resource=server, names=["key"]))) == []


class AwayCatalog:
    """Looks that fail, or do not end. Immutable."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent

    async def learn(self, names: Iterable[str]) -> None:
        assert list(names) == ["t"]
        if self._is_silent:
            await asyncio.Event().wait()
        raise StoreUnavailableError("it is away")


@pytest.mark.parametrize("is_silent", [False, True])
async def test_an_only_server_answers_without_a_look_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    """Nothing beside it creates topics but jobs of Spark: a topic that it does not know is missing."""
    monkeypatch.setattr(topic_gate, "_PATIENCE_S", 0.01)

    async def handle(request: admin_pb2.DeleteTopicRequest, _: object) -> str:
        return f"{request.name} is unknown"

    async def handle_each(requests: Any, _: object) -> list[str]:
        return [one.topic async for one in requests]

    async def fetches() -> Any:
        yield log_pb2.AppendRequest(topic="t")

    gate = TopicGate(cast(Any, AwayCatalog(is_silent=is_silent)), cast(Any, None), is_of_only_server=True)
    # gRPC's handlers have types that its stubs do not say.
    rpc = cast(Any, grpc)
    one = rpc.unary_unary_rpc_method_handler(handle)
    each = rpc.stream_unary_rpc_method_handler(handle_each)
    behind = cast(Any, gate.guarding({"DeleteTopic": one, "Others": each}))
    request = admin_pb2.DeleteTopicRequest(name="t")
    assert await behind["DeleteTopic"].unary_unary(request, None) == "t is unknown"
    assert await behind["Others"].stream_unary(fetches(), None) == ["t"]
