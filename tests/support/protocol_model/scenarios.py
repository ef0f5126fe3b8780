"""The scenarios that are explored: a few actors, bounded, over a partition with a few slices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    Actor,
    Checkpoint,
    Ghosts,
    Head,
    Model,
    Record,
    Slice,
    State,
    Stored,
    Topic,
)

_FIRST_ID = 100
_CHECKPOINT_ROOT = 90
_PAGES = (91, 92)


class Scenario(NamedTuple):
    """A cast and its bounds."""

    cast: tuple[Actor, ...]
    slices: int
    """How many slices of one record there are at the start."""
    appends: int
    """How many records there will be, with those."""
    delays: int = 0
    """How many PUTs may have an unknown outcome."""
    losses: int = 0
    """How many buffers a disk may lose."""
    lowers: int = 0
    """How often the tiered end may move back."""
    imported: int = 0
    """With how many records the topic begins, which is not there at the start. Without slices."""

    lists: bool = False
    """Whether roots list what their folds replaced."""

    def model(self, *without: Rule) -> Model:
        has_snapshots = any(actor.kind == "snapshot" for actor in self.cast)
        return Model(frozenset(without), self.appends, has_snapshots, self.lists)

    def start(self) -> State:
        """The slices are in the bucket and folded; an owner of epoch 1 added them."""
        count = self.slices
        records = [Record(number, number) for number in range(count)]
        head = Head(
            checkpoint=Checkpoint(_CHECKPOINT_ROOT, count, _PAGES),
            seq=count,
            uid=count,
            parent=count - 1,
            uids=tuple(range(count + 1)),
            epoch=1,
            slices=tuple(Slice(number, number + 1, number + 1) for number in range(count)),
            folded_seq=count,
        )
        objects = {Stored(record.number + 1, record.number, (record,)) for record in records}
        files = {Stored(_CHECKPOINT_ROOT, count), *(Stored(page, 0) for page in _PAGES)}
        return State(
            head=head,
            bucket=frozenset(objects | files),
            actors=self.cast,
            next_id=_FIRST_ID,
            next_record=count or self.imported,
            ghosts=Ghosts(committed=frozenset(records), acknowledged=frozenset(records)),
            delays=self.delays,
            losses=self.losses,
            lowers=self.lowers,
            topic=Topic.UNKNOWN if self.imported else Topic.THERE,
            imported=self.imported,
        )


def cast(**lives: int | tuple[int, ...]) -> tuple[Actor, ...]:
    """Actors by kind, each with its number of jobs or incarnations."""
    return tuple(
        Actor(kind, life=life)
        for kind, some in lives.items()
        for life in (some if isinstance(some, tuple) else (some,))
    )


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "owner and sweep": Scenario(cast(owner=1, collector=2), 0, 2, delays=1),
        "two owners": Scenario(cast(owner=(1, 1)), 0, 2, delays=2),
        "two owners, one restarts": Scenario(cast(owner=(2, 1)), 0, 2, delays=1),
        "racing compactors": Scenario(cast(compactor=(1, 1)), 3, 3, delays=2),
        "compactors and owner": Scenario(cast(compactor=(1, 1), owner=1), 3, 4),
        "compactor, retention, collector": Scenario(
            cast(compactor=1, retention=1, collector=2), 4, 4, delays=1
        ),
        "compactor, pin, collector": Scenario(cast(compactor=1, pinner=1, collector=2), 3, 3, delays=1),
        "compactor and two collectors": Scenario(cast(compactor=2, collector=(2, 1)), 3, 3),
        "folds and sweep": Scenario(cast(folder=(1, 1), collector=2), 2, 2),
        "fold, owner, sweep": Scenario(cast(folder=1, owner=1, collector=2), 1, 2),
        "fold, compactor, collector": Scenario(cast(folder=1, compactor=2, collector=2), 3, 3),
        "folds, owners, collector": Scenario(cast(folder=(1, 1), owner=(1, 1), collector=1), 1, 1),
        "folds and owner": Scenario(cast(folder=(1, 1), owner=1), 1, 2, delays=1),
        "compactors and an owner that adds more": Scenario(cast(compactor=(2, 1), owner=1), 3, 5),
        "compactor, pin, fold, collector": Scenario(cast(compactor=2, pinner=1, folder=1, collector=2), 2, 2),
        "a snapshot, compactor, collector": Scenario(
            cast(snapshot=1, compactor=1, collector=1), 2, 2, delays=1
        ),
        "two snapshots, compactor, fold, collectors": Scenario(
            cast(snapshot=(1, 1), compactor=1, folder=1, collector=(1, 1)), 2, 2
        ),
        "a snapshot, compactor, retention, fold, collectors": Scenario(
            cast(snapshot=1, compactor=1, retention=1, folder=1, collector=(1, 1)), 2, 2
        ),
        "lists, folds, collectors": Scenario(
            cast(retention=1, folder=(1, 1), collector=(1, 1)), 2, 2, delays=1, lists=True
        ),
        "lists, a snapshot, fold, collector": Scenario(
            cast(snapshot=1, folder=1, collector=2), 2, 2, lists=True
        ),
        "lists, owner, fold, sweep": Scenario(cast(folder=(1, 1), owner=1, collector=2), 1, 2, lists=True),
        "a gap and two owners": Scenario(cast(owner=(1, 1)), 0, 2, delays=1, losses=1),
        "a gap, compactor, retention": Scenario(cast(owner=1, compactor=1, retention=1), 2, 4, losses=1),
        "a lowered end and two owners": Scenario(cast(owner=(1, 1)), 0, 2, delays=1, lowers=1),
        "a lowered end and a compactor": Scenario(cast(owner=1, compactor=1), 0, 3, lowers=1),
        "a lowered end, retention, collector": Scenario(
            cast(owner=1, compactor=1, retention=1, collector=1), 1, 3, lowers=1
        ),
        "owner, compactor, retention, collector": Scenario(
            cast(owner=1, compactor=1, retention=1, collector=2), 2, 3, delays=1
        ),
        "an import and two owners": Scenario(cast(importer=1, owner=(1, 1)), 0, 3, delays=1, imported=2),
        "an import, owner, sweep": Scenario(
            cast(importer=1, owner=1, collector=2), 0, 2, delays=1, imported=1
        ),
        "an import, owner, deletion": Scenario(
            cast(importer=1, owner=1, deleter=2), 0, 3, delays=1, imported=2
        ),
        "an import, deletion, fold, collector": Scenario(
            cast(importer=1, deleter=1, folder=1, collector=2), 0, 2, delays=1, imported=2
        ),
    }
)

CROWD = Scenario(
    cast(owner=(2, 2), compactor=(3, 3), retention=1, collector=5, pinner=2, snapshot=2, folder=(2, 2)),
    slices=2,
    appends=5,
    delays=3,
    losses=1,
    lowers=1,
    lists=True,
)
"""All actors but those of an import, too many to be explored: random walks visit a part."""

IMPORT_CROWD = Scenario(
    cast(importer=1, deleter=2, owner=(2, 2), compactor=2, retention=1, collector=4, folder=(2, 2)),
    slices=0,
    appends=5,
    delays=3,
    imported=2,
)
"""Likewise, with an import."""
