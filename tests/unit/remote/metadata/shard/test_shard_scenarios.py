"""Effects of actions on a shard, as texts: commands, and behind `->` their answers or what is there then.

    claim [N] -> EPOCH          become the owner, with an epoch of at least N
    add X a0:0-5 ... -> ...     commit object X with these slices; behind the arrow the refused partitions
    again X -> ...              the same call once more
    gap a0:5-9 ... -> ...       add gaps, which are the letter `-` among live slices; behind
                                `expired` what has expired, behind `lost` other gaps
    start a0:7 ... -> ...       advance log starts, as no owner; `owner`: as the owner that claimed last
    untier a0:7 ... -> ...      drop the tier of partitions whose disks have all from these offsets on
    drop a -> ...               drop the partitions of a topic
    plan P a0[0:2] ...          take live slices as the inputs of a replacement
    replace P X a0:0-8 ...      commit it; `+a0` claims cover, `keeps`: no records are dropped
    fold
    a0 -> START-END X:0-5 ...   log start, tiered end, live slices; `<=N` is `compacted_upto`
    dropped -> X ...            objects that wait to be deleted
    live X -> N                 live slices of an object
    catalog -> N                the newest catalog number that was used

`@N` behind a command is its catalog number. The state is checked after each command, and compared with that
of a reader that opens the shard anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from stratalog.base.errors import InvalidRequestError, NotOwnerError, PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.document_ref import FileKind
from stratalog.remote.metadata.shard.live_slice import GapReason, LiveSlice
from stratalog.remote.metadata.shard.metadata_log import AddOutcome, AdvanceOutcome, ReplaceOutcome
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import A0, A1, B0, TOPIC_A, TOPIC_B, MetadataHarness, Range
from tests.support.tiered.shard_states import require_same_state

TIPS = {"a0": A0, "a1": A1, "b0": B0}
NAMES = {tip: name for name, tip in TIPS.items()}
TOPICS = {"a": TOPIC_A, "b": TOPIC_B}

SCENARIOS = """
epochs grow
    claim -> 1 / claim 7 -> 7 / claim 3 -> 8
adding moves the tiered ends
    claim -> 1 / add X a0:0-5 b0:0-3 / add Y a0:5-6
    a0 -> 0-6 X:0-5 Y:5-6 / b0 -> 0-3 X:0-3 / live X -> 2
an owner that was replaced adds nothing
    claim -> 1 / other-claim / add X a0:0-5 -> NotOwnerError / a0 -> 0-0
slices are judged one by one
    claim -> 1 / add X a0:0-5 a1:0-2
    add Y a0:4-9 a1:2-4 b0:1-2 -> a0 not_at_tiered_end b0 not_at_tiered_end
    a0 -> 0-5 X:0-5 / a1 -> 0-4 X:0-2 Y:2-4 / live Y -> 1
an object without accepted slices is not committed
    claim -> 1 / add X a0:1-2 -> a0 not_at_tiered_end nothing-committed / a0 -> 0-0
an object is added once
    claim -> 1 / add X a0:0-5 a1:3-4 -> a1 not_at_tiered_end
    again X -> a1 not_at_tiered_end nothing-committed
    fold / again X -> a1 not_at_tiered_end nothing-committed
an object of another owner is not added again
    claim -> 1 / add X a0:0-5 / claim -> 2 / again X -> a0 known_already nothing-committed
a dropped object is not added again
    claim -> 1 / add X a0:0-5 / start a0:5 / claim -> 2 / again X -> a0 known_already nothing-committed
a gap tiles at the tiered end, and the upload goes on behind it
    claim -> 1 / add X a0:0-5 / gap a0:5-9 b0:0-4 / a0 -> 0-9 X:0-5 -:5-9 / b0 -> 0-4 -:0-4
    add Y a0:9-12 / a0 -> 0-12 X:0-5 -:5-9 Y:9-12 / fold / a0 -> 0-12 X:0-5 -:5-9 Y:9-12
    gap a0:11-13 b0:3-5 -> a0 not_at_tiered_end b0 not_at_tiered_end nothing-committed
    gap b0:0-4 -> nothing-committed
gaps of a partition follow each other in one commit
    claim -> 1 / add X a0:0-5 / gap a0:5-7 a0:7-9 / a0 -> 0-9 X:0-5 -:5-7 -:7-9
    gap a0:5-7 a0:7-9 -> nothing-committed
what has expired takes no slice, and moves the log start of a partition without slices
    claim -> 1 / expired a0:0-5 / a0 -> 5-5 / expired a0:0-5 -> nothing-committed
    add X a0:5-9 / expired a0:9-12 / a0 -> 5-12 X:5-9 -:9-12
what has expired in front of a gap moves the log start, and behind one it is a gap, too
    claim -> 1 / gap expired a0:0-5 lost a0:5-9 / a0 -> 5-9 -:5-9
    gap a1:0-5 expired a1:5-9 / a1 -> 0-9 -:0-5 -:5-9
only the owner adds a gap, and never to a deleted topic
    claim -> 1 / drop b @1 / gap a0:0-4 b0:0-4 -> b0 topic_deleted / a0 -> 0-4 -:0-4
    other-claim / gap a0:4-5 -> NotOwnerError
log start passes gaps
    claim -> 1 / add X a0:0-5 / gap a0:5-9 / add Y a0:9-12 / start a0:7 @1 / a0 -> 7-12 -:5-9 Y:9-12
    dropped -> X / start a0:9 @1 / a0 -> 9-12 Y:9-12 / start a0:12 @1 / dropped -> X Y
a deleted topic with a gap leaves nothing
    claim -> 1 / add X a0:0-5 / gap a0:5-9 / drop a @1 / a0 -> 0-0 / dropped -> X
behind nothing but gaps a replacement covers, and what is compacted passes the gaps behind it
    claim -> 1 / gap a0:0-2 / add X a0:2-5 / add Y a0:5-6 / gap a0:6-9 / add Z a0:9-12 / plan P a0[1:3]
    plan Q a0[4:] / replace Q M a0:9-12 +a0 @1 -> a0 not_from_first_slice nothing-committed
    replace P N a0:2-6 +a0 @1 / a0 -> 0-12 -:0-2 N:2-6 -:6-9 Z:9-12 <=9
no replacement takes a gap in
    claim -> 1 / add X a0:0-5 / add Y a0:5-6 / gap a0:6-9 / add Z a0:9-12 / plan P a0[:]
    replace P N a0:0-12 @1 -> InvalidRequestError / plan Q a0[0:2] / replace Q M a0:0-6 @1
    a0 -> 0-12 M:0-6 -:6-9 Z:9-12
a dropped tier ends at the log start, and the next upload begins there
    claim -> 1 / add X a0:0-5 b0:0-4 / add Y a0:5-8 / untier a0:5 @1 / a0 -> 5-5 / b0 -> 0-4 X:0-4
    dropped -> Y / live X -> 1 / catalog -> 1 / fold / a0 -> 5-5
    add Z a0:5-9 / a0 -> 5-9 Z:5-9 / fold / a0 -> 5-9 Z:5-9
a dropped tier goes whole where its log start lies inside of a slice, or behind all of them
    claim -> 1 / add X a0:0-5 a1:0-3 / add Y a0:5-8 / fold / untier a0:3 a1:7 @1 / a0 -> 3-3 / a1 -> 7-7
    dropped -> X Y / add Z a0:3-6 a1:7-8 / a0 -> 3-6 Z:3-6 / a1 -> 7-8 Z:7-8
a tier is dropped once, and a partition without one only begins later
    claim -> 1 / add X a0:2-5 -> a0 not_at_tiered_end nothing-committed / untier a0:0 b0:4 @1 / b0 -> 4-4
    untier a0:0 b0:4 @1 -> nothing-committed / add X a0:0-5 / untier a0:0 @1 / a0 -> 0-0 / dropped -> X
    untier a0:0 @1 -> nothing-committed
a dropped tier takes its gaps and what is compacted with it
    claim -> 1 / add X a0:0-5 / gap a0:5-9 / add Y a0:9-12 / plan P a0[:1] / replace P N a0:0-5 +a0 @1
    a0 -> 0-12 N:0-5 -:5-9 Y:9-12 <=9 / untier a0:2 @1 / a0 -> 2-2 <=2 / dropped -> N X Y
only the owner drops a tier, by a fresh configuration, and never that of a deleted topic
    claim -> 1 / add X a0:0-5 b0:0-5 / start a0:1 @9 / untier a0:2 @8 -> PreconditionFailedError
    drop b @9 / untier b0:0 @9 -> b0 topic_deleted nothing-committed / a0 -> 1-5 X:0-5
    other-claim / untier a0:2 @9 -> NotOwnerError / a0 -> 1-5 X:0-5
a replacement of a dropped tier is refused, also behind the next upload
    claim -> 1 / add X a0:0-5 / add Y a0:5-8 / plan P a0[:] / untier a0:0 @1
    replace P N a0:0-8 @1 -> a0 inputs_changed nothing-committed / add Z a0:0-8
    replace P N a0:0-8 @1 -> a0 inputs_changed nothing-committed / a0 -> 0-8 Z:0-8
log start drops slices wholly below
    claim -> 1 / add X a0:0-5 b0:0-1 / add Y a0:5-10
    start a0:7 @4 / a0 -> 7-10 Y:5-10 / live X -> 1 / catalog -> 4 / dropped ->
    start a0:10 b0:1 @4 / a0 -> 10-10 / dropped -> X Y
log start only moves forward
    claim -> 1 / add X a0:0-5 / start a0:3 @0 / start a0:2 a1:0 @0 -> nothing-committed / a0 -> 3-5 X:0-5
only the owner moves a log start beyond the tiered end
    claim -> 1 / add X a0:0-5
    start a0:6 a1:1 -> a0 above_tiered_end a1 above_tiered_end nothing-committed
    start a0:8 a1:2 owner / a0 -> 8-8 / add Y a0:8-9 a1:2-3 / other-claim / start a0:20 owner -> NotOwnerError
a stale configuration deletes nothing
    claim -> 1 / add X a0:0-5 / start a0:1 @9
    start a0:2 @8 -> PreconditionFailedError / drop a @8 -> PreconditionFailedError
    a0 -> 1-5 X:0-5 / start a0:2 owner / a0 -> 2-5 X:0-5 / catalog -> 9
a dropped topic stays dropped
    claim -> 1 / add X a0:0-5 b0:0-5 / add Y a1:0-5 / drop a @3
    a0 -> 0-0 / dropped -> Y / live X -> 1
    add Z a0:5-6 b0:5-6 -> a0 topic_deleted
    start a0:9 owner @3 -> a0 topic_deleted nothing-committed
    drop a @3 -> nothing-committed
outputs take the place of their inputs
    claim -> 1 / add X a0:0-5 a1:0-2 / add Y a0:5-8 / add Z a0:8-9
    plan P a0[0:2] / replace P N a0:0-8 +a0 @2
    a0 -> 0-9 N:0-8 Z:8-9 <=8 / dropped -> Y / live X -> 1 / catalog -> 2
only a covering job moves compacted_upto
    claim -> 1 / add X a0:0-5 b0:0-5 / add Y a0:5-8 b0:5-8
    plan P a0[:] b0[:] / replace P N a0:0-8 b0:0-8 +a0 @0
    a0 -> 0-8 N:0-8 <=8 / b0 -> 0-8 N:0-8 / dropped -> X Y
a covering job begins at the first slice
    claim -> 1 / add X a0:0-5 / add Y a0:5-8 / plan P a0[1:]
    replace P N a0:5-8 +a0 @0 -> a0 not_from_first_slice nothing-committed
    replace P N a0:5-8 @0 / a0 -> 0-8 X:0-5 N:5-8
replaced partitions are judged one by one
    claim -> 1 / add X a0:0-5 a1:0-5 b0:0-5 / add Y a0:5-8 a1:5-8
    plan P a0[:] a1[:] b0[:] / plan Q a0[:] / replace Q M a0:0-8 +a0 @0 / drop b @0
    replace P N a0:0-8 a1:0-8 b0:0-5 +a1 @0 -> a0 inputs_changed b0 topic_deleted
    a0 -> 0-8 M:0-8 <=8 / a1 -> 0-8 N:0-8 <=8 / live N -> 1
an output is clipped where log start has passed its first inputs
    claim -> 1 / add X a0:0-5 / add Y a0:5-8 / add Z a0:8-9 / plan P a0[:] / start a0:6 @0
    replace P N a0:0-9 +a0 @0 -> clipped a0:5 / a0 -> 6-9 N:5-9 <=9
outputs wholly below log start do not become live
    claim -> 1 / add X a0:0-5 / add Y a0:5-8 / plan P a0[:] / start a0:5 @0
    replace P L a0:0-5 H a0:5-8 +a0 @0 -> clipped a0:5 / a0 -> 5-8 H:5-8 <=8
inputs that are gone refuse their output
    claim -> 1 / add X a0:0-5 / add Y a0:5-8 / plan P a0[:1] / start a0:5 @0
    replace P N a0:0-5 @0 -> a0 inputs_changed nothing-committed
several outputs tile, in any order
    claim -> 1 / add X a0:0-5 / add Y a0:5-9 / plan P a0[:]
    replace P N a0:3-9 M a0:0-3 +a0 @0 / a0 -> 0-9 M:0-3 N:3-9 <=9
    plan Q a0[:1] / replace Q L a0:0-3 +a0 @0 / a0 -> 0-9 L:0-3 N:3-9 <=9
a replacement is committed once
    claim -> 1 / add X a0:0-5 / add Y a0:5-9 / plan P a0[:] / replace P N a0:0-9 @0
    replace P N a0:0-9 @0 -> a0 known_already nothing-committed
a stale configuration drops no records, but may merge
    claim -> 1 / add X a0:0-5 / add Y a0:5-9 / start a0:1 @9 / plan P a0[:]
    replace P N a0:0-9 @8 -> PreconditionFailedError / replace P N a0:0-9 @8 keeps / a0 -> 1-9 N:0-9
"""


def scenarios() -> dict[str, list[str]]:
    blocks = re.findall(r"^(\S.*)\n((?:    .*\n)+)", SCENARIOS, re.MULTILINE)
    return {name: [one.strip() for one in re.split(r" / |\n", text) if one.strip()] for name, text in blocks}


class Shard:
    """The shard of one scenario. Not thread-safe."""

    def __init__(self) -> None:
        self.harness = MetadataHarness()
        self.log = self.harness.log()
        self.epoch = 0
        self.made: dict[str, MockObject] = {}
        self.plans: dict[str, dict[TopicIdPartition, Sequence[LiveSlice]]] = {}

    def run(self, command: str) -> str:
        """Answers of a command, or what it asks for, as a scenario writes them."""
        verb, *words = command.split()
        catalog = next((int(word[1:]) for word in words if word.startswith("@")), None)
        words = [word for word in words if not word.startswith("@")]
        seq = self.log.state().seq
        try:
            answer = self.act(verb, words, catalog)
        except (InvalidRequestError, NotOwnerError, PreconditionFailedError) as error:
            answer = type(error).__name__
        self.log.check()
        require_same_state(self.harness.log(read_only=True).state(), self.log.refresh())
        is_refused = verb in (
            "add",
            "again",
            "gap",
            "expired",
            "start",
            "untier",
            "drop",
            "replace",
        ) and not answer.endswith("Error")
        return f"{answer} nothing-committed".strip() if is_refused and self.log.state().seq == seq else answer

    def act(self, verb: str, words: list[str], catalog: int | None) -> str:
        log, state = self.log, self.log.state()
        match verb, words:
            case "claim", _:
                self.epoch = log.claim("owner", self.harness.ids.uuid(), int(words[0]) if words else 0)
                return str(self.epoch)
            case "other-claim", _:
                self.harness.log().claim("other", self.harness.ids.uuid())
            case "add" | "again", [name, *slices]:
                if verb == "add":
                    self.put(name, slices)
                made = self.made[name]
                return self.refused(log.add([(made.ref, made.entries())], self.epoch))
            case "start", _:
                ranges = [self.range_of(word) for word in words if word != "owner"]
                starts = {tip: base for tip, base, _ in ranges}
                epoch = self.epoch if "owner" in words else None
                return self.refused(log.advance_log_start(starts, epoch=epoch, catalog_seq=catalog))
            case "gap" | "expired", _:
                return self.refused(log.add_gaps([*self.lost_of([verb, *words])], self.epoch))
            case "drop" | "untier", _:
                return self.drop(verb, words, catalog or 0)
            case "plan", [name, *parts]:
                self.plans[name] = {}
                for tip, first, last in (re.findall(r"(\w+)\[(\d*):?(\d*)\]", part)[0] for part in parts):
                    span = slice(int(first or 0), int(last) if last else None)
                    self.plans[name][TIPS[tip]] = state.partition(TIPS[tip]).slices[span]
            case "replace", [name, *rest]:
                return self.replace(self.plans[name], rest, catalog or 0)
            case "fold", _:
                log.fold()
            case _:
                return self.ask(verb, words)
        return ""

    def lost_of(self, words: Sequence[str]) -> Iterator[LostRange]:
        reason = GapReason.DROPPED_BY_POLICY
        for word in words:
            if ":" in word:
                yield LostRange(*self.range_of(word), reason)
            else:
                reason = GapReason.EXPIRED if word == "expired" else GapReason.DROPPED_BY_POLICY

    def drop(self, verb: str, words: list[str], catalog: int) -> str:
        if verb == "drop":
            self.log.drop_partitions(TOPICS[words[0]], catalog)
            return ""
        starts = {tip: base for tip, base, _ in map(self.range_of, words)}
        return self.refused(self.log.drop_tier(starts, epoch=self.epoch, catalog_seq=catalog))

    def ask(self, verb: str, words: list[str]) -> str:
        state = self.log.state()
        match verb, words:
            case "dropped", _:
                files = [one for one in state.dropped if one.kind is FileKind.DATA]
                return " ".join(sorted(self.letter(file.name) for file in files))
            case "live", [name]:
                return str(state.objects[self.made[name].ref.name].live_slices)
            case "catalog", _:
                return str(state.catalog_seq)
            case _:
                return self.partition(TIPS[verb])

    def replace(
        self, inputs: dict[TopicIdPartition, Sequence[LiveSlice]], words: list[str], catalog: int
    ) -> str:
        covers = {TIPS[word[1:]]: True for word in words if word.startswith("+")}
        text = " ".join(word for word in words if not word.startswith("+") and word != "keeps")
        names = re.findall(r"(\b[A-Z]\b)((?: \w+:\d+-\d+)+)", text)
        for name, slices in names:
            if name not in self.made:
                self.put(name, slices.split())
        outcome = self.log.replace(
            {tip: SliceRanges.of(slices) for tip, slices in inputs.items()},
            sorted({live.object_name for slices in inputs.values() for live in slices}),
            [(self.made[name].ref, self.made[name].entries()) for name, _ in names],
            covers=covers,
            catalog_seq=catalog,
            drops_records="keeps" not in words,
        )
        assert outcome.has_committed == (len(outcome.refused) < len(inputs))
        clipped = [f"clipped {NAMES[tip]}:{offset}" for tip, offset in outcome.clipped]
        return " ".join([*filter(None, [self.refused(outcome)]), *clipped])

    def put(self, name: str, slices: Sequence[str]) -> None:
        self.made[name] = self.harness.put(self.log, *map(self.range_of, slices))

    @staticmethod
    def range_of(text: str) -> Range:
        tip, _, offsets = text.partition(":")
        base, _, end = offsets.partition("-")
        return TIPS[tip], int(base), int(end or 0)

    @staticmethod
    def refused(outcome: AddOutcome | AdvanceOutcome | ReplaceOutcome) -> str:
        return " ".join(f"{NAMES[one.partition]} {one.reason}" for one in outcome.refused)

    def letter(self, name: str) -> str:
        return (
            "-" if not name else next(letter for letter, made in self.made.items() if made.ref.name == name)
        )

    def partition(self, tip: TopicIdPartition) -> str:
        found = self.log.state().partition(tip)
        slices = [
            f"{self.letter(live.object_name)}:{live.base_offset}-{live.end_offset}" for live in found.slices
        ]
        upto = [f"<={found.compacted_upto}"] if found.compacted_upto else []
        return " ".join([f"{found.log_start_offset}-{found.tiered_end_offset}", *slices, *upto])


@pytest.mark.parametrize("commands", scenarios().values(), ids=scenarios())
def test_scenario(commands: list[str]) -> None:
    shard = Shard()
    for line in commands:
        command, _, expected = line.partition("->")
        answer = shard.run(command.strip())
        assert answer == expected.strip(), line
