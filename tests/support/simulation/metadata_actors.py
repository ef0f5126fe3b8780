"""The actors of the metadata protocol, with mock data instead of records: what they do is the protocol's,
step by step.

An actor does some jobs and ends. A store that fails makes it try again, as a service would; a shard that was
claimed by another actor makes an owner stop. `Manners` has the rules that live in actors rather than in the
log, so that a test can take one away and see that the audit notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from stratalog.base.errors import (
    InvalidRequestError,
    NotOwnerError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind, Replacement, TrackedFile
from stratalog.remote.metadata.shard.live_slice import GapReason, LiveSlice
from stratalog.remote.metadata.shard.metadata_log import AddOutcome, MetadataLog
from stratalog.remote.metadata.shard.shard_judge import BORN_BEFORE_HORIZON, LostRange
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.tier.orphan_sweep import OrphanSweep, SweepSettings
from stratalog.remote.tier.replaced_files import ReplacedFiles, free_files
from tests.support.simulation.metadata_world import PARTITIONS, SETTINGS, TOPIC_IDS, Seat
from tests.support.simulation.mock_objects import (
    MockObject,
    MockRecord,
    MockSlice,
    latest_by_key,
    parse_mock_slices,
)

T = TypeVar("T")
_KEYS = ("a", "b", "c")
_PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Manners:
    """Rules that an actor keeps by itself. Taking one away is for tests of the audit."""

    acknowledges_after_commit: bool = True
    uses_fresh_names: bool = True
    keeps_tombstones_unless_covering: bool = True
    claims_cover_only_from_first_slice: bool = True
    deletes_only_what_is_dropped: bool = True
    deletes_only_what_is_folded: bool = True
    spares_what_pins_hold: bool = True
    forgets_only_what_is_deleted: bool = True
    leaves_gaps_alone: bool = True
    says_what_it_deletes: bool = True
    spares_what_pins_came_to_hold: bool = True
    spares_roots_with_lists: bool = True
    keeps_what_stays_of_lists: bool = True


GOOD = Manners()


def owner(
    seat: Seat, manners: Manners = GOOD, *, uploads: int = 4, losses: float = 0.0, drops: float = 0.0
) -> None:
    """Claims the shard, appends a few records, uploads them, and acknowledges what was committed. `losses`:
    how often it loses records before it uploads, and says so; `drops`: how often it drops the tier of a
    partition, and uploads again what its disk has."""
    # An impatient one asks the store once, so that it has to live with outcomes that stay unknown.
    settings = replace(SETTINGS, max_store_failures=seat.random.choice((1, 4)))
    log = insist(lambda: seat.open_log("owner", settings))
    epoch = insist(lambda: log.claim(seat.name, seat.ids.uuid()))
    disk = Disk()
    for _ in range(uploads):
        slices: list[MockSlice] = []
        if drops and seat.random.random() < drops:
            try:
                slices = _drop(seat, log, epoch, disk)
            except NotOwnerError:
                return
        if losses and seat.random.random() < losses:
            try:
                _lose(seat, log, epoch)
            except NotOwnerError:
                return
        again = {one.partition for one in slices}
        slices += [
            _append(seat, log, tip) for tip in PARTITIONS if seat.random.random() < 0.7 and tip not in again
        ]
        if not slices:
            continue
        try:
            _upload(seat, log, epoch, slices, manners)
        except NotOwnerError:
            return
        disk.write(slices)


class Disk:
    """The records that an owner has appended. Not thread-safe: one actor has it."""

    def __init__(self) -> None:
        self._slices: dict[TopicIdPartition, list[MockSlice]] = {}

    def write(self, slices: list[MockSlice]) -> None:
        for one in slices:
            kept = self._slices.setdefault(one.partition, [])
            if kept and kept[-1].end_offset != one.base_offset:
                kept.clear()
            kept.append(one)

    def start(self, tip: TopicIdPartition, tiered_end_offset: int) -> int | None:
        """The offset from which on it has all that is tiered; None if it has not its end."""
        kept = self._slices.get(tip)
        return kept[0].base_offset if kept and kept[-1].end_offset == tiered_end_offset else None

    def take(self, tip: TopicIdPartition, offset: int) -> MockSlice | None:
        """All from an offset on, as one slice that is on the disk no more; None if that is nothing."""
        kept = self._slices.pop(tip)
        records = tuple(record for one in kept for record in one.records if record.offset >= offset)
        return MockSlice(tip, offset, kept[-1].end_offset, records) if records else None


def _drop(seat: Seat, log: MetadataLog, epoch: int, disk: Disk) -> list[MockSlice]:
    """Drop the tier of a partition whose end is on the disk; returns what is uploaded again."""
    state = insist(log.refresh)
    tip = seat.random.choice(PARTITIONS)
    start = disk.start(tip, state.partition(tip).tiered_end_offset)
    if state.epoch != epoch or start is None:
        return []
    insist_with_catalog(seat, partial(log.drop_tier, {tip: start}, epoch=epoch))
    partition = log.state().partition(tip)
    if partition.slices or partition.log_start_offset < start or tip.topic_id in log.state().dropped_topics:
        return []
    again = disk.take(tip, partition.log_start_offset)
    return [] if again is None else [again]


def _lose(seat: Seat, log: MetadataLog, epoch: int) -> None:
    """Record the loss of one to three offsets of a partition."""
    tip = seat.random.choice(PARTITIONS)
    base_offset = log.state().partition(tip).tiered_end_offset
    end_offset = base_offset + seat.random.randint(1, 3)
    lost = LostRange(tip, base_offset, end_offset, GapReason.DROPPED_BY_POLICY)
    for _ in range(_PATIENCE):
        try:
            log.add_gaps([lost], epoch)
        except StoreUnavailableError:
            continue  # it may have landed; to ask again is safe
        return


def _append(seat: Seat, log: MetadataLog, tip: TopicIdPartition) -> MockSlice:
    """One or two records at the end of a partition as its owner knows it."""
    base_offset = log.state().partition(tip).tiered_end_offset
    records: list[MockRecord] = []
    for offset in range(base_offset, base_offset + seat.random.randint(1, 2)):
        key = seat.random.choice(_KEYS)
        records.append(MockRecord(offset, key, seat.world.record_number, seat.random.random() < 0.3))
        seat.world.record_number += 1
    return MockSlice(tip, base_offset, records[-1].offset + 1, tuple(records))


def _upload(seat: Seat, log: MetadataLog, epoch: int, slices: list[MockSlice], manners: Manners) -> None:
    uploaded = _put_object(seat, log, slices, manners)
    for _ in range(_PATIENCE):
        if not manners.acknowledges_after_commit:
            _acknowledge(seat, uploaded, AddOutcome(0, ()))
        try:
            outcome = log.add([(uploaded.ref, uploaded.entries())], epoch)
        except StoreUnavailableError:
            # It may have landed, or may yet. To ask again and to upload again are both safe.
            if seat.random.random() < 0.5:
                uploaded = _put_object(seat, log, slices, manners)
            continue
        _acknowledge(seat, uploaded, outcome)
        # Nothing but an upload that was too slow is worth another try: a partition that moved or went is
        # over.
        if not any(refusal.reason == BORN_BEFORE_HORIZON for refusal in outcome.refused):
            return
        uploaded = _put_object(seat, log, slices, manners)


def _acknowledge(seat: Seat, uploaded: MockObject, outcome: AddOutcome) -> None:
    refused = {refusal.partition for refusal in outcome.refused}
    for part in uploaded.slices:
        if part.partition not in refused:
            seat.world.audit.acknowledge(part.records)


def _put_object(seat: Seat, log: MetadataLog, slices: list[MockSlice], manners: Manners) -> MockObject:
    """Store an object. A name whose put had an unknown outcome is given up, and another one used."""
    for _ in range(_PATIENCE):
        name = log.next_object_name()
        if not manners.uses_fresh_names:
            name = f"{0:020}-{TOPIC_IDS[0]}"
        uploaded = MockObject.build(name, slices)
        try:
            seat.store.put(log.layout.data_key(name), uploaded.data)
        except StoreUnavailableError:
            continue
        return uploaded
    raise StoreUnavailableError("the actor lost its patience")


def compactor(seat: Seat, manners: Manners = GOOD, *, jobs: int = 4) -> None:
    """Replaces adjacent slices by one object that has the last record of each key."""
    log = insist(lambda: seat.open_log("compactor"))
    for _ in range(jobs):
        state = insist(log.refresh)
        runs = _plan(seat, state, manners)
        if not runs:
            continue
        try:
            outputs = [_compact(seat, log, state, run, manners) for run in runs.values()]
        except ObjectNotFoundError:
            continue  # replaced and collected since: plan again
        uploaded = _put_object(seat, log, outputs, manners)
        covers = {
            tip: not manners.claims_cover_only_from_first_slice or _is_covering(state, tip, run)
            for tip, run in runs.items()
        }
        names = sorted({live.object_name for run in runs.values() for live in run if live.gap is None})
        replacement = partial(
            log.replace,
            {tip: SliceRanges.of(run) for tip, run in runs.items()},
            names,
            [(uploaded.ref, uploaded.entries())],
            covers=covers,
            drops_records=True,
        )
        try:
            insist_with_catalog(seat, replacement)
        except InvalidRequestError:
            # The log leaves gaps alone, whatever the actor does.
            if manners.leaves_gaps_alone:
                raise


def _plan(seat: Seat, state: ShardState, manners: Manners) -> dict[TopicIdPartition, tuple[LiveSlice, ...]]:
    """A run of slices of each of some partitions."""
    runs: dict[TopicIdPartition, tuple[LiveSlice, ...]] = {}
    for tip in PARTITIONS:
        slices = state.partition(tip).slices
        if not slices or seat.random.random() < 0.3:
            continue
        first = 0 if seat.random.random() < 0.5 else seat.random.randrange(len(slices))
        last = seat.random.randint(first + 1, len(slices))
        if manners.leaves_gaps_alone:
            last = min([last, *(index for index in range(first, last) if slices[index].gap is not None)])
        if last == first:
            continue
        if last - first >= 2 or first == 0 or not manners.claims_cover_only_from_first_slice:
            runs[tip] = slices[first:last]
    return runs


def _is_covering(state: ShardState, tip: TopicIdPartition, run: tuple[LiveSlice, ...]) -> bool:
    return state.partition(tip).slices[0] == run[0]


def _compact(
    seat: Seat, log: MetadataLog, state: ShardState, run: tuple[LiveSlice, ...], manners: Manners
) -> MockSlice:
    tip = run[0].entry.topic_id_partition
    records: list[MockRecord] = []
    for live in run:
        if live.gap is not None:
            continue
        data = insist(partial(seat.store.get, log.layout.data_key(live.object_name))).data
        for part in parse_mock_slices(data):
            if part.partition == tip:
                records += [x for x in part.records if live.base_offset <= x.offset < live.end_offset]
    strips = _is_covering(state, tip, run) or not manners.keeps_tombstones_unless_covering
    kept = sorted(x for x in latest_by_key(records).values() if not (strips and x.is_tombstone))
    return MockSlice(tip, run[0].base_offset, run[-1].end_offset, tuple(kept))


def retention(seat: Seat, *, jobs: int = 3) -> None:
    """Moves log starts, sometimes into the middle of a slice."""
    log = insist(lambda: seat.open_log("retention"))
    for _ in range(jobs):
        state = insist(log.refresh)
        tip = seat.random.choice(PARTITIONS)
        partition = state.partition(tip)
        if partition.log_start_offset < partition.tiered_end_offset:
            offset = seat.random.randint(partition.log_start_offset, partition.tiered_end_offset)
            insist_with_catalog(seat, partial(log.advance_log_start, {tip: offset}, epoch=None))


def topic_dropper(seat: Seat) -> None:
    """Drops a topic that the catalog says is deleted."""
    log = insist(lambda: seat.open_log("retention"))
    for _ in range(seat.random.randint(1, 6)):
        insist(log.refresh)
    seat.world.catalog_seq = 1
    insist(lambda: log.drop_partitions(TOPIC_IDS[1], 1))


def folder(seat: Seat, *, jobs: int = 3) -> None:
    """Folds. What fails in the middle leaves orphans, nothing worse."""
    log = insist(lambda: seat.open_log("folder"))
    for _ in range(jobs):
        insist(log.refresh)
        insist(log.fold)


def collector(
    seat: Seat,
    manners: Manners = GOOD,
    *,
    jobs: int = 4,
    graces: float = 0.0,
    is_newest_first: bool = False,
) -> None:
    """Deletes what was dropped, without a grace: the protocol must hold whatever the grace is. `graces`: how
    often it takes the files that were dropped first only. `is_newest_first`: the order of its lists."""
    log = insist(lambda: seat.open_log("collector"))
    for _ in range(jobs):
        state = insist(log.refresh)
        due = [
            dropped
            for dropped in state.dropped
            if (state.is_deletable(dropped) or not manners.deletes_only_what_is_folded)
        ]
        due = _free_files(state, due, manners)
        if not manners.forgets_only_what_is_deleted:
            insist(partial(log.forget, [dropped.name for dropped in state.dropped]))
            due = []
        if graces and seat.random.random() < graces:
            due = due[: seat.random.randint(0, len(due))]
        if manners.says_what_it_deletes:
            said = insist(partial(log.begin_deletion, due))
            due = _free_files(said, due, manners) if manners.spares_what_pins_came_to_hold else due
        keys = [dropped.key(log.layout) for dropped in due]
        if not manners.deletes_only_what_is_dropped:
            keys += [log.layout.data_key(name) for name in sorted(state.objects)[:1]]
        if keys:
            insist(partial(seat.store.delete_many, keys))
            insist(partial(log.forget, [dropped.name for dropped in due]))
        for replacement in insist(log.refresh).replacements[:: -1 if is_newest_first else 1]:
            _collect_list(seat, log, replacement, manners)


def _collect_list(seat: Seat, log: MetadataLog, replacement: Replacement, manners: Manners) -> None:
    """Deletes what a fold replaced, but for what a pin holds and for a root that lists such files itself:
    these become dropped files."""
    files = insist(lambda: ReplacedFiles(seat.store, log.layout).read(replacement))
    if files is None:
        return
    state = log.state()
    spare = partial(_free_files, manners=manners)
    free = spare(state, files)
    if manners.says_what_it_deletes and free:
        said = insist(partial(log.begin_deletion, [replacement]))
        free = spare(said, free) if manners.spares_what_pins_came_to_hold else free
    if free:
        insist(partial(seat.store.delete_many, [file.key(log.layout) for file in free]))
    kept = [file for file in files if file not in free] if manners.keeps_what_stays_of_lists else []
    insist(partial(log.finish_list, replacement, kept))


def _free_files(state: ShardState, files: Sequence[DroppedObject], manners: Manners) -> list[DroppedObject]:
    if not manners.spares_what_pins_hold:
        state = replace(state, pins=())
    if not manners.spares_roots_with_lists:
        state = replace(state, replacements=())
    return free_files(state, files)[0]


def sweeper(seat: Seat, *, sweeps: int = 4) -> None:
    """Sweeps orphans, without a grace: every file that no commit refers to yet is a candidate."""
    log = insist(lambda: seat.open_log("collector"))
    sweep = OrphanSweep(seat.store, log, SweepSettings(grace_ms=0))
    for _ in range(sweeps):
        is_whole = seat.random.random() < 0.5
        insist(partial(sweep.run, seat.world.clock.now_ms(), StopSignal(), is_whole=is_whole))


def historian(seat: Seat, *, trims: int = 4) -> None:
    """Trims history, before any commit."""
    log = insist(lambda: seat.open_log("collector"))
    prefix = FileKind.HISTORY.key(log.layout, "")
    for _ in range(trims):
        state = insist(log.refresh)
        infos = insist(lambda: list(seat.store.list(prefix)))
        files = [TrackedFile(FileKind.HISTORY, info.key.removeprefix(prefix), info.size) for info in infos]
        insist(partial(log.trim_history, seat.random.randint(0, state.seq), files))


def pinner(seat: Seat, *, pins: int = 3) -> None:
    """Pins the state, renews the pin at times, and lets go, or stops and leaves the pin behind."""
    log = insist(lambda: seat.open_log("spark"))
    for number in range(pins):
        pin = insist(partial(log.pin, f"{seat.name}-{number}", seat.random.randrange(1_000)))
        for _ in range(seat.random.randint(0, 3)):
            insist(log.refresh)
        if seat.random.random() < 0.3:
            insist(partial(log.renew_pin, pin, seat.random.randrange(1_000)))
        if seat.random.random() < 0.8:
            insist(partial(log.unpin, pin))


def traveller(seat: Seat, *, pins: int = 4, back: int = 12) -> None:
    """Pins an earlier commit, at most `back` commits ago, if its state can still be kept, at times twice;
    lets go, or leaves the pin behind."""
    log = insist(lambda: seat.open_log("spark"))
    for number in range(pins):
        for _ in range(seat.random.randint(0, 3)):
            insist(log.refresh)
        newest_seq = log.state().seq
        seq = seat.random.randint(max(newest_seq - back, 0), newest_seq)
        holders = [f"{seat.name}-{number}", seat.name][: seat.random.choice((1, 1, 2))]
        taken: list[int] = []
        for holder in holders if seq else ():
            try:
                taken.append(insist(partial(log.pin_commit, holder, seat.random.randrange(1_000), seq)))
            except PreconditionFailedError:
                break
        for _ in range(seat.random.randint(0, 3)):
            insist(log.refresh)
        for pin in taken:
            if seat.random.random() < 0.8:
                insist(partial(log.unpin, pin))


def insist(act: Callable[[], T]) -> T:
    """Do it again while the store is out of order."""
    last_error: StoreUnavailableError | None = None
    for _ in range(_PATIENCE):
        try:
            return act()
        except StoreUnavailableError as error:
            last_error = error
    assert last_error is not None, "there was an error each time"
    raise last_error


def insist_with_catalog(seat: Seat, act: Callable[..., object]) -> None:
    """Do something destructive with the catalog of now; leave it where another actor used a newer one
    meanwhile.
    """
    try:
        insist(partial(act, catalog_seq=seat.world.catalog_seq))
    except PreconditionFailedError:
        pass
