"""The invariants of the protocol, for one state of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tests.support.protocol_model.state import GAP, Record, State, Topic


def violation_of(state: State) -> str:
    """The first invariant that the state breaks, or nothing."""
    return next(violations(state), "")


def violations(state: State) -> Iterator[str]:
    if state.ghosts.violation:
        yield state.ghosts.violation
    yield from contradictions(state)
    yield from missing_objects(state)
    yield from wrong_commits(state)
    yield from lost_gaps(state)
    yield from missing_imports(state)
    yield from wrong_reads(state)


def contradictions(state: State) -> Iterator[str]:
    """Contradictions of the head with itself."""
    head = state.head
    for one, after in pairwise(head.slices):
        if one.end != after.base:
            yield f"slices {tuple(one)} and {tuple(after)} do not tile"
    if head.slices and head.slices[0].base > head.log_start:
        yield "a hole at the log start"
    if head.folded_seq > head.checkpoint.seq:
        first = head.checkpoint.seq + 1
        yield f"commits {first} to {head.folded_seq} are neither in the checkpoint nor in the head"


def missing_objects(state: State) -> Iterator[str]:
    """Objects that the head, or a pin, needs and the bucket does not have."""
    head = state.head
    have = {one.name for one in state.bucket}
    for name in sorted(head.live - have):
        yield f"live object {name} is missing"
    for name in sorted(head.checkpoint.files - have):
        yield f"object {name} of the current checkpoint is missing"
    for seq, name in head.brought:
        if seq > head.folded_seq and name not in have:
            yield f"commit {seq} is inline, and object {name} that it brings is missing"
    for root in sorted(one.root for one in head.replacements if one.root not in have):
        yield f"root {root} is missing, and the files that it lists wait"
    for pin, names in state.ghosts.pinned:
        if names - have:
            yield f"pin {pin} lost objects {sorted(names - have)}"


def wrong_commits(state: State) -> Iterator[str]:
    """Records that were committed twice, or acknowledged and not committed."""
    committed, acknowledged = state.ghosts.committed, state.ghosts.acknowledged
    if len({record.offset for record in committed}) < len(committed):
        yield "two records were committed at one offset"
    if len({record.number for record in committed}) < len(committed):
        yield "one record was committed twice"
    if acknowledged - committed:
        lost = [tuple(record) for record in sorted(acknowledged - committed)]
        yield f"acknowledged but not committed: {lost}"


def lost_gaps(state: State) -> Iterator[str]:
    """Gaps that readers do not learn about, or that hide a record."""
    for base, end in state.ghosts.gaps:
        if base >= state.head.log_start and (base, end, GAP) not in state.head.slices:
            yield f"the gap [{base},{end}) is not on record any more"
        if any(base <= record.offset < end for record in state.ghosts.committed):
            yield "a committed record lies in a gap"


def missing_imports(state: State) -> Iterator[str]:
    """Records of an import that are not in its topic."""
    numbers = {record.number for record in state.ghosts.committed}
    if state.topic is Topic.THERE and not numbers.issuperset(range(state.imported)):
        yield "the topic is there without all records of its import"


def wrong_reads(state: State) -> Iterator[str]:
    """Differences between readable records and committed ones, which compaction may not make."""
    head, committed = state.head, state.ghosts.committed
    records = readable(state)
    if not committed.issuperset(records):
        yield "a reader sees a record that was never committed"
    offsets = [record.offset for record in records]
    if offsets != sorted(set(offsets)):
        yield "offsets are not increasing"
    expected = newest_values(record for record in committed if record.offset >= head.log_start)
    if newest_values(records) != expected:
        yield f"the latest values are {newest_values(records)}, they should be {expected}"
    below = [record.written.key for record in records if record.offset < head.compacted_upto]
    if len(set(below)) < len(below):
        yield "two records of a key below compacted_upto"


def readable(state: State) -> list[Record]:
    """The records that a reader sees, in its order."""
    have = state.object_records()
    return [
        record
        for base, end, name in state.head.slices
        for record in have.get(name, ())
        if max(base, state.head.log_start) <= record.offset < end
    ]


def newest_values(records: Iterable[Record]) -> dict[str, int]:
    """The number of the newest record of each key that is not deleted."""
    newest: dict[str, int] = {}
    for record in sorted(records):
        if record.written.is_tombstone:
            newest.pop(record.written.key, None)
        else:
            newest[record.written.key] = record.number
    return newest
