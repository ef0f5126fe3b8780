"""The synchronous classes have the methods of the asynchronous ones: the same parameters, plain results."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable

import pytest

from stratalog.client.admin import Admin
from stratalog.client.blocking.sync_admin import SyncAdmin
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.blocking.sync_consumer import SyncConsumer
from stratalog.client.blocking.sync_operations import SyncOperations
from stratalog.client.blocking.sync_producer import SyncProducer
from stratalog.client.blocking.sync_table import SyncTable
from stratalog.client.blocking.sync_topics import SyncTopics
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.consuming.table import Table
from stratalog.client.operations import Operations
from stratalog.client.producer import Producer
from stratalog.client.sending.append_sender import SenderEvents
from stratalog.client.sending.known_topics import TopicEvents
from stratalog.client.topics import Topics
from stratalog.record.native.pure_record_accumulator import RecordAccumulator

NOWHERE = "127.0.0.1:1"

SYNCHRONOUS: dict[type, type] = {
    Admin: SyncAdmin,
    Client: SyncClient,
    Consumer: SyncConsumer,
    Operations: SyncOperations,
    Producer: SyncProducer,
    Table: SyncTable,
    Topics: SyncTopics,
}

NOT_FOR_USERS = {name for base in (RecordAccumulator, SenderEvents, TopicEvents) for name in dir(base)}
"""Names of a producer that other parts of the client call."""

ITSELF = {"__init__", "__contains__", "__getitem__", "__iter__", "__len__"}


def members_of(one: type) -> dict[str, object]:
    """The methods and properties of users, and the operators; iterations over all else have names."""
    hidden = NOT_FOR_USERS if one is Producer else set[str]()
    return {
        name: member
        for name, member in inspect.getmembers(one)
        if (name in ITSELF - {"__init__"} or not name.startswith("_"))
        and name not in hidden
        and isinstance(member, property) | inspect.isfunction(member)
    }


MEMBERS = [
    pytest.param(one, name, id=f"{one.__name__}.{name}") for one in SYNCHRONOUS for name in members_of(one)
]


def result_of(member: object) -> str:
    """The type of the result for a caller who waits, as it is written."""
    written = str(inspect.signature(function_of(member)).return_annotation)
    for source, face in SYNCHRONOUS.items():
        written = re.sub(rf"^{source.__name__}$", face.__name__, written)
    return re.sub(r"^Async(Generator|Iterator)\b", r"\1", written)


def function_of(member: object) -> Callable[..., object]:
    function = member.fget if isinstance(member, property) else member
    assert inspect.isfunction(function)
    return function


def parameters_of(member: object) -> list[inspect.Parameter]:
    return list(inspect.signature(function_of(member)).parameters.values())


@pytest.mark.parametrize(("source", "name"), MEMBERS)
def test_the_synchronous_method_is_that_of_the_asynchronous_one(source: type, name: str) -> None:
    asynchronous = members_of(source)[name]
    synchronous = members_of(SYNCHRONOUS[source])[name]

    assert isinstance(synchronous, property) == isinstance(asynchronous, property)
    assert not inspect.iscoroutinefunction(synchronous)
    assert not inspect.isasyncgenfunction(synchronous)
    assert parameters_of(synchronous) == parameters_of(asynchronous)
    assert result_of(synchronous) == result_of(asynchronous)
    assert name.startswith("_") or inspect.getdoc(synchronous)


def test_a_producer_sends_with_the_parameters_of_the_accumulator() -> None:
    """The native form has the same ones, without annotations."""
    assert parameters_of(SyncProducer.send) == parameters_of(RecordAccumulator.send)
    assert result_of(SyncProducer.send) == result_of(RecordAccumulator.send)


def test_the_parts_of_a_client_are_the_synchronous_ones() -> None:
    with SyncClient(NOWHERE) as client:
        assert type(client.admin) is SyncAdmin
        assert type(client.operations) is SyncOperations
        assert type(client.topics) is SyncTopics
        assert client.address == NOWHERE


def test_completion_and_help_find_the_methods() -> None:
    with SyncClient(NOWHERE) as client:
        assert {"admin", "append", "consume", "operations", "producer", "table", "topics"} <= {*dir(client)}
        assert {"alter", "create", "describe"} <= {*dir(client.topics)}
        shown = pydoc.plain(pydoc.render_doc(client.topics))
        assert "create(" in shown
        assert "exists_ok: 'bool' = False" in shown or "exists_ok: bool = False" in shown
        assert all(line in shown for line in str(inspect.getdoc(Topics.delete)).splitlines())
        for part in (client, client.admin, client.operations, client.topics):
            assert not hasattr(part, "nothing")
