"""The store in a directory and the one in memory give the same answers to the same calls, errors included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds

# No key is a directory of another: that is the one thing that a directory cannot hold.
KEYS = ("a/b", "a/c", "a-b", "a.b/c", "a0", "b/d/e", "b/d-e")


class Call(NamedTuple):
    name: str
    key: str
    data: bytes
    etag_of: int
    position: int
    size: int


calls = st.builds(
    Call,
    name=st.sampled_from(
        [
            "put",
            "put",
            "if_absent",
            "if_match",
            "put_parts",
            "get",
            "get_if_changed",
            "range",
            "list",
            "delete",
        ]
    ),
    key=st.sampled_from(KEYS),
    data=st.binary(max_size=4),
    etag_of=st.integers(0, 3),
    position=st.integers(0, 5),
    size=st.integers(1, 4),
)


class Subject:
    """A store and the ETags that it gave, which a call may refer to by number."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.etags = ["none"]

    def perform(self, call: Call) -> object:
        actions: dict[str, Callable[[], object]] = {
            "put": lambda: self.note(self.store.put(call.key, call.data)),
            "if_absent": lambda: self.note(self.store.put(call.key, call.data, if_absent=True)),
            "if_match": lambda: self.note(self.store.put(call.key, call.data, if_match=self.etag(call))),
            "put_parts": lambda: self.store.put_parts(call.key, [call.data, b"", b"x"]),
            "get": lambda: self.store.get(call.key),
            "get_if_changed": lambda: self.store.get_if_changed(call.key, self.etag(call)),
            "range": lambda: self.store.get_range(call.key, call.position, call.size),
            "list": lambda: list(
                self.store.list(call.key[: call.position], start_after=call.key[: call.size])
            ),
            "delete": lambda: self.store.delete_many([call.key, "missing"]),
        }
        try:
            return actions[call.name]()
        except LogStoreError as error:
            return type(error)

    def note(self, etag: str) -> str:
        self.etags.append(etag)
        return etag

    def etag(self, call: Call) -> str:
        return self.etags[max(0, len(self.etags) - 1 - call.etag_of)]


@given(sequence=st.lists(calls, max_size=30))
def test_both_stores_give_the_same_answers(sequence: Sequence[Call]) -> None:
    clock = ManualClock()
    filesystem = MemoryFileSystem(now_ms=clock.now_ms)
    local = Subject(LocalObjectStore(filesystem, clock, SequentialIds(1), "/store"))
    memory = Subject(MemoryObjectStore(clock))
    for call in sequence:
        clock.advance(1_000)
        assert local.perform(call) == memory.perform(call), call
    assert list(local.store.list("")) == list(memory.store.list(""))
