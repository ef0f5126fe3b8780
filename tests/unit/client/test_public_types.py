"""The client takes and returns plain values: no signature of a public method has a message of the wire."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from stratalog.client.admin import Admin
from stratalog.client.blocking.sync_admin import SyncAdmin
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.blocking.sync_operations import SyncOperations
from stratalog.client.blocking.sync_topics import SyncTopics
from stratalog.client.client import Client
from stratalog.client.operations import Operations
from stratalog.client.topics import Topics

PUBLIC_CLASSES = [Admin, Client, Operations, Topics, SyncAdmin, SyncClient, SyncOperations, SyncTopics]


def methods_of(public_class: type) -> list[tuple[str, object]]:
    members = inspect.getmembers(public_class, inspect.isfunction)
    return [(name, member) for name, member in members if name == "__init__" or not name.startswith("_")]


def messages_in(annotation: str, module: str) -> list[str]:
    """The names in the annotation that stand for a module or a class of protoc."""
    names = vars(sys.modules[module])
    return [
        name
        for name in re.findall(r"\w+", annotation)
        if name.endswith("_pb2") or getattr(names.get(name), "__module__", "").endswith("_pb2")
    ]


@pytest.mark.parametrize("public_class", PUBLIC_CLASSES)
def test_public_methods_have_no_messages(public_class: type) -> None:
    found = {
        f"{public_class.__name__}.{name}"
        for name, method in methods_of(public_class)
        for annotation in inspect.get_annotations(method).values()  # type: ignore[arg-type]  # a function
        if messages_in(annotation, method.__module__)
    }

    assert found == set()
