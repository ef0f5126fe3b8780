"""Everything that the model's world is made of. All values are immutable, so a state is its own identity.

There is one partition. Objects have numbers for names; checkpoints and pages are objects without records.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from tests.support.protocol_model.rules import Rule

GAP = 0
"""The object of a slice whose offsets never reached the bucket."""
NO_OWNER = -1


class Topic(Enum):
    """The topic's id in the catalog."""

    UNKNOWN = auto()
    THERE = auto()
    DELETED = auto()


class Written(NamedTuple):
    """A key and a value, or a tombstone."""

    key: str
    is_tombstone: bool = False


SCRIPT = (Written("a"), Written("b"), Written("a", is_tombstone=True), Written("b"), Written("a"))
"""The records that owners append, in this order."""


class Record(NamedTuple):
    offset: int
    number: int
    """Its index in `SCRIPT`."""

    @property
    def written(self) -> Written:
        return SCRIPT[self.number]


class Slice(NamedTuple):
    base: int
    end: int
    object: int


class Brought(NamedTuple):
    seq: int
    object: int


class Pin(NamedTuple):
    seq: int
    folded_seq: int
    """The last commit of the checkpoint that its state is built from."""
    state_seq: int
    """The commit after which its state is."""
    needs: frozenset[int] = frozenset()
    """The objects that the state of an earlier commit has, or is built from. No actor sees them."""


class Checkpoint(NamedTuple):
    root: int
    seq: int
    pages: tuple[int, int]
    """A fold rewrites one and keeps the other."""

    @property
    def files(self) -> frozenset[int]:
        return frozenset({self.root, *self.pages})


class Dropped(NamedTuple):
    object: int
    seq: int
    """The commit that dropped it."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that it is the root of."""


class Replacement(NamedTuple):
    """The files that a fold replaced; its root lists them."""

    root: int
    base: Checkpoint
    """The checkpoint that was replaced."""
    seq: int
    """The commit of the fold."""


class Head(NamedTuple):
    """A shard's head with the state that follows from it."""

    checkpoint: Checkpoint
    seq: int = 0
    uid: int = 0
    """Unique for each attempt, so it plays the ETag."""
    parent: int = -1
    uids: tuple[int, ...] = ()
    """Those of all commits so far."""
    by: int = NO_OWNER
    """The epoch of the owner that made this commit."""
    epoch: int = 0
    horizon: int = 0
    log_start: int = 0
    compacted_upto: int = 0
    slices: tuple[Slice, ...] = ()
    dropped: frozenset[Dropped] = frozenset()
    replacements: frozenset[Replacement] = frozenset()
    """Those whose files wait to be deleted."""
    pins: frozenset[Pin] = frozenset()
    deleted_seq: int = 0
    """Files that commits up to this one dropped may be deleted."""
    deleted_brought_seq: int = 0
    """Those among them that later commits brought are not."""
    brought: tuple[Brought, ...] = ()
    folded_seq: int = 0
    """Later commits are in the head."""
    is_dropped: bool = False
    """Whether the partition went with its topic: nothing is added to it any more."""

    @property
    def tiered_end(self) -> int:
        return self.slices[-1].end if self.slices else self.log_start

    @property
    def live(self) -> frozenset[int]:
        return frozenset(one.object for one in self.slices if one.object != GAP)

    def brought_seq(self, name: int) -> int:
        """The commit that brought an object; 0 for those of the start, and for checkpoints and pages."""
        return next((one.seq for one in self.brought if one.object == name), 0)

    def brought_between(self, after: int, up_to: int) -> frozenset[int]:
        """The objects that the commits in (after, up_to] brought."""
        return frozenset(one.object for one in self.brought if after < one.seq <= up_to)


class Stored(NamedTuple):
    """An object in the bucket."""

    name: int
    birth: int
    records: tuple[Record, ...] = ()
    listed: tuple[int, ...] = ()
    """The files of its base that a root does not share."""


class HeadPut(NamedTuple):
    if_match: int
    head: Head


class Create(NamedTuple):
    """A PUT of the catalog with the topic of an import."""

    if_match: int
    """The commit of the catalog that it was judged by."""


class Ghosts(NamedTuple):
    """History that no actor sees and that the invariants need."""

    committed: frozenset[Record] = frozenset()
    acknowledged: frozenset[Record] = frozenset()
    pinned: frozenset[tuple[int, frozenset[int]]] = frozenset()
    """The objects that the state at each pin has, or is built from."""
    gaps: frozenset[tuple[int, int]] = frozenset()
    violation: str = ""
    """A commit that must never land has landed."""


class Output(NamedTuple):
    """An object that waits for its commit, or a gap."""

    stored: Stored
    base: int
    end: int


class Fold(NamedTuple):
    checkpoint: Checkpoint
    base: int
    """The root that it was built from."""


class Attempt(NamedTuple):
    """A head that an actor wants to PUT, and how it goes on."""

    put: HeadPut
    label: str
    then: str
    """The phase after a success."""
    again: str
    """The phase in which the actor judges again."""


class Actor(NamedTuple):
    kind: str
    life: int = 1
    """Jobs or incarnations that are left."""
    phase: str = "idle"
    attempt: Attempt | None = None
    epoch: int = NO_OWNER
    has_log: bool = True
    """Whether an owner has opened a log; without one the catalog did not have the topic at its claim."""
    next_offset: int = 0
    buffer: tuple[Record, ...] = ()
    kept: tuple[Record, ...] = ()
    """Committed records up to the tiered end that are on its disk, too."""
    output: Output | None = None
    inputs: tuple[Slice, ...] = ()
    is_covering: bool = False
    fold: Fold | None = None
    view: Head | None = None
    """The head by which a collector looks for orphans, or deletes; the one whose state a snapshot is."""
    to_delete: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    replacement: Replacement | None = None
    """The replacement whose files a collector deletes."""
    rest: tuple[int, ...] = ()
    """Those of them that must stay, and that become dropped files."""


class State(NamedTuple):
    head: Head
    bucket: frozenset[Stored]
    actors: tuple[Actor, ...]
    next_id: int
    next_record: int
    ghosts: Ghosts
    topic: Topic = Topic.THERE
    catalog_seq: int = 0
    imported: int = 0
    """The topic begins with so many records of an import."""
    net: frozenset[HeadPut | Stored | Create] = frozenset()
    """PUTs under way, which may land at any time or never."""
    delays: int = 0
    """PUTs whose outcome may still become unknown."""
    losses: int = 0
    """Buffers that a disk may still lose."""
    lowers: int = 0
    """How often an owner may still move the tiered end back."""

    def object_records(self) -> dict[int, tuple[Record, ...]]:
        """The records of each object in the bucket."""
        return {one.name: one.records for one in self.bucket}

    def listed_by(self, replacement: Replacement) -> frozenset[int]:
        """The files that the root of a replacement lists; none if it is gone."""
        roots = (one.listed for one in self.bucket if one.name == replacement.root)
        return frozenset(next(roots, ()))

    def with_object(self, stored: Stored) -> State:
        """This state after a PUT of an object, which replaces one with the same name."""
        return self._replace(bucket=self.without(stored.name).bucket | {stored})

    def without(self, name: int) -> State:
        """This state after a DELETE."""
        return self._replace(bucket=frozenset(one for one in self.bucket if one.name != name))


class Move(NamedTuple):
    """One possible step of an actor."""

    label: str
    state: State
    actor: Actor


class Model(NamedTuple):
    """The protocol, or a part of it: rules that are taken away, and how many records owners append."""

    without: frozenset[Rule] = frozenset()
    appends: int = len(SCRIPT)
    has_snapshots: bool = False
    """Whether metadata version 4 is finalized: earlier commits can be pinned, and so collectors say what they
    are about to delete."""

    has_lists: bool = False
    """Whether metadata version 5 is finalized: roots list the files that their folds replaced."""

    def has(self, rule: Rule) -> bool:
        return rule not in self.without
