"""The steps of the whole world: of each actor, and of PUTs under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from tests.support.protocol_model.actors.collector import collector
from tests.support.protocol_model.actors.compactor import compactor
from tests.support.protocol_model.actors.deleter import deleter
from tests.support.protocol_model.actors.folder import folder
from tests.support.protocol_model.actors.importer import importer, with_topic
from tests.support.protocol_model.actors.owner import owner
from tests.support.protocol_model.actors.pinner import pinner
from tests.support.protocol_model.actors.retention import retention
from tests.support.protocol_model.actors.snapshot import snapshot
from tests.support.protocol_model.commits import land_head
from tests.support.protocol_model.state import Actor, Create, Model, Move, State, Stored, Topic

Step = tuple[str, State]

ACTORS: Mapping[str, Callable[[Model, State, Actor], Iterator[Move]]] = MappingProxyType(
    {
        "owner": owner,
        "compactor": compactor,
        "retention": retention,
        "folder": folder,
        "pinner": pinner,
        "snapshot": snapshot,
        "collector": collector,
        "importer": importer,
        "deleter": deleter,
    }
)


def steps(model: Model, state: State) -> Iterator[Step]:
    """All that may happen next. An actor that pauses for ever is one whose steps are never chosen."""
    yield from net_steps(model, state)
    for index, actor in enumerate(state.actors):
        for label, after, changed in ACTORS[actor.kind](model, state, actor):
            actors = (*state.actors[:index], changed, *state.actors[index + 1 :])
            yield f"{actor.kind}{index} {label}", after._replace(actors=actors)


def net_steps(model: Model, state: State) -> Iterator[Step]:
    """A PUT under way is lost, or lands late."""
    for put in state.net:
        rest = state._replace(net=state.net - {put})
        if isinstance(put, Stored):
            yield f"net loses object {put.name}", rest
            yield f"net lands object {put.name} late", rest.with_object(put)
            continue
        if isinstance(put, Create):
            yield "net loses the creation of the topic", rest
            if put.if_match == state.catalog_seq:
                yield "net lands the creation of the topic late", with_topic(rest, Topic.THERE)
            continue
        yield f"net loses commit {put.head.uid}", rest
        late = land_head(model, rest, put)
        if late is not None:
            yield f"net lands commit {put.head.uid} late", late
