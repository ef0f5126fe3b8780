"""Group commit: what arrives together is written together and fsynced once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    FencingTokenMismatchError,
    InvalidRecordError,
    LogStoreError,
    NotOwnerError,
    PrecedingAppendFailedError,
    StoppingError,
    StoreUnavailableError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import GROUP_BYTES, PartitionWriter, WriterChecks, WriterThreads
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from tests.support.plain_calls import PlainCalls
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG
from tests.support.writer_bench import BAD, EPOCH, WriterBench


async def test_what_waits_is_written_as_one_group() -> None:
    bench = WriterBench()
    futures = [bench.append(str(number).encode()) for number in range(5)]
    assert len(bench.executor.waiting) == 1
    await bench.run_all()
    assert bench.log.calls == ["append 5"]
    assert [(await future).base_offset for future in futures] == list(range(5))


async def test_a_group_is_flushed_once_for_all_that_asked_for_disk() -> None:
    bench = WriterBench()
    disk = [bench.append(b"d", Durability.DISK) for _ in range(10)]
    os_level = bench.append(b"o")
    await bench.run_all()
    assert bench.log.calls == ["append 11", "flush"]
    assert [(await future).base_offset for future in [*disk, os_level]] == list(range(11))
    assert [append.durability for append in bench.appends] == 10 * [Durability.DISK] + [Durability.OS]


async def test_a_topic_that_became_stronger_meanwhile_is_flushed_for_what_asked_for_less() -> None:
    bench = WriterBench()
    future = bench.append(b"o")
    bench.log.min_durability = Durability.DISK
    await bench.run_all()
    assert bench.log.calls == ["append 1", "flush"]
    assert (await future).base_offset == 0
    assert bench.appends[0].durability is Durability.DISK


async def test_an_acknowledgement_at_os_does_not_wait_for_others_flush() -> None:
    bench = WriterBench()
    os_level, disk = bench.append(b"o"), bench.append(b"d", Durability.DISK)
    bench.log.flush_error = OSError(5, "Input/output error", "/data/x.log")
    await bench.run_all()
    assert (await os_level).base_offset == 0
    with pytest.raises(DataDirectoryError) as failure:
        await disk
    assert failure.value.fields == {"path": "/data/x.log", "reason": "Input/output error"}


async def test_appends_during_a_run_form_the_next_group() -> None:
    bench = WriterBench()

    def encode() -> bytes:
        bench.submit(b"x")
        bench.submit(b"y")
        return b"first"

    first = bench.append(encode)
    bench.executor.run_one()
    assert len(bench.executor.waiting) == 1, "the thread was given back in between"
    await bench.run_all()
    assert bench.log.calls == ["append 1", "append 2"]
    assert (await first).base_offset == 0


async def test_a_new_leader_epoch_is_made_durable_before_the_turn() -> None:
    bench = WriterBench()
    bench.log.epoch = EPOCH - 1
    futures = [bench.append(b"a"), bench.append(b"b")]
    bench.executor.run_one()
    assert bench.log.calls == []
    futures.append(bench.append(b"c"))
    await bench.run_all()
    assert bench.log.calls == [f"epoch {EPOCH}", "append 3"]
    assert [(await future).base_offset for future in futures] == [0, 1, 2]
    bench.submit(b"d")
    await bench.run_all()
    assert bench.log.calls[2:] == ["append 1"]


async def test_an_epoch_that_cannot_be_made_durable_is_left_to_the_append() -> None:
    bench = WriterBench()
    bench.log.epoch, bench.log.takes_epochs = EPOCH - 1, False
    for _ in range(2):
        bench.submit(b"a")
        await bench.run_all()
    assert bench.log.calls == [f"epoch {EPOCH}", "append 1", "append 1"]


async def test_an_unexpected_failure_of_an_epoch_is_the_answer_of_the_turn() -> None:
    bench = WriterBench()
    session = AppendSession()
    bench.log.epoch, bench.log.epoch_error = EPOCH - 1, MemoryError("no memory")
    future, settled = bench.append(b"a", session=session), asyncio.ensure_future(bench.writer.settled())
    await asyncio.sleep(0)
    # A thread of fsyncs keeps what its work raises.
    with suppress(MemoryError):
        bench.executor.run_all()
    await bench.run_all()
    assert future.exception() is bench.log.epoch_error
    assert session.is_broken
    assert await settled == 0, "nothing was applied"
    bench.log.epoch_error = None
    later = bench.append(b"b")
    await bench.run_all()
    assert (await later).base_offset == 0
    assert bench.log.calls == [f"epoch {EPOCH}", f"epoch {EPOCH}", "append 1"]


async def test_an_epoch_without_a_thread_is_left_to_the_append() -> None:
    bench = WriterBench()
    bench.log.epoch = EPOCH - 1
    future = bench.append(b"a")
    bench.executor.finds_no_thread = True
    await bench.run_all()
    assert bench.log.calls == ["append 1"], "what was refused, and ran nevertheless, has no effect"
    assert (await future).base_offset == 0


async def test_one_bad_request_does_not_harm_its_group() -> None:
    bench = WriterBench()
    good, bad, after = bench.append(b"a"), bench.append(BAD), bench.append(b"b")
    await bench.run_all()
    assert (await good).base_offset == 0
    assert (await after).base_offset == 1
    with pytest.raises(InvalidRecordError):
        await bad


async def test_a_session_stops_at_its_first_failure() -> None:
    bench = WriterBench()
    session = AppendSession()
    futures = [bench.append(data, session=session) for data in (b"1", BAD, b"3", b"4")]
    other = bench.append(b"other")
    await bench.run_all()
    assert bench.log.stored == [b"1", b"other"]
    assert (await futures[0]).base_offset == 0
    assert isinstance(futures[1].exception(), InvalidRecordError)
    assert [type(future.exception()) for future in futures[2:]] == [PrecedingAppendFailedError] * 2
    assert (await other).base_offset == 1


async def test_a_session_shares_one_flush() -> None:
    bench = WriterBench()
    session = AppendSession()
    futures = [bench.append(b"x", Durability.DISK, session) for _ in range(6)]
    await bench.run_all()
    assert bench.log.calls.count("flush") == 1
    assert [(await future).base_offset for future in futures] == list(range(6))


async def test_two_sessions_share_groups() -> None:
    bench = WriterBench()
    sessions = AppendSession(), AppendSession()
    futures = [
        bench.append(str(number).encode(), session=session) for number in range(3) for session in sessions
    ]
    await bench.run_all()
    assert bench.log.calls == ["append 6"]
    assert [(await future).base_offset for future in futures] == list(range(6))


async def test_a_failed_flush_breaks_the_session() -> None:
    bench = WriterBench()
    session = AppendSession()
    bench.log.flush_error = DataDirectoryError("gone")
    future = bench.append(b"x", Durability.DISK, session)
    await bench.run_all()
    assert isinstance(future.exception(), DataDirectoryError)
    assert session.is_broken


@pytest.mark.parametrize("durability", list(Durability))
async def test_what_is_written_beside_a_flush_that_fails_has_its_failure(durability: Durability) -> None:
    """It is in the log: its client must not take it for one that was not applied."""
    bench = WriterBench()
    session = AppendSession()
    first = bench.append(b"1", Durability.DISK, session)
    bench.executor.run_one()
    flush = bench.executor.waiting.pop()
    beside, bad = bench.append(b"2", durability, session), bench.append(BAD, session=session)
    bench.log.flush_error = StoreUnavailableError("the store was not heard in time")
    bench.log.beside = flush
    await bench.run_all()
    after = bench.append(b"4", session=session)
    await bench.run_all()
    assert bench.log.stored == [b"1", b"2"]
    assert [type(future.exception()) for future in (first, beside, bad, after)] == [
        StoreUnavailableError,
        StoreUnavailableError,
        InvalidRecordError,
        PrecedingAppendFailedError,
    ]


async def test_an_append_at_object_is_acknowledged_behind_the_flush_of_its_session() -> None:
    for error in (None, DataDirectoryError("gone")):
        bench = WriterBench()
        bench.log.flush_error = error
        session = AppendSession()
        disk = bench.append(b"1", Durability.DISK, session)
        at_object = bench.append(b"2", Durability.OBJECT, session)
        bench.executor.run_one()
        bench.log.tiered_end_offset = 2
        bench.writer.commit_waiters.acknowledge(2)
        await asyncio.sleep(0)
        assert not at_object.done(), "though its records are committed"
        await bench.run_all()
        assert [type(future.exception()) for future in (disk, at_object)] == 2 * [type(error)]


async def test_a_commit_wakes_readers_in_the_hop_that_answers_appends_or_at_once() -> None:
    bench = WriterBench()
    waiters = bench.writer.commit_waiters
    wakes: list[bool] = []
    waiters.acknowledge(0, lambda: wakes.append(True))
    assert wakes == [True], "no append waits"
    append = bench.append(b"x", Durability.OBJECT)
    while bench.executor.waiting:
        bench.executor.run_one()
    waiters.acknowledge(1, lambda: wakes.append(append.done()))
    assert wakes == [True]
    await asyncio.sleep(0)
    assert (wakes, append.done()) == ([True, False], True)


async def test_an_append_that_has_its_durability_is_acknowledged_behind_one_whose_commit_fails() -> None:
    """Its records are stored, and a client may send again what failed."""
    bench = WriterBench()
    session = AppendSession()
    durabilities = (Durability.OBJECT, Durability.OS, Durability.DISK)
    late, at_os, at_disk = (bench.append(b"x", one, session) for one in durabilities)
    while bench.executor.waiting:
        bench.executor.run_one()
    bench.writer.commit_waiters.fail(StoreUnavailableError("late"))
    later = bench.append(b"y", session=session)
    await bench.run_all()
    assert [type(future.exception()) for future in (late, at_os, at_disk, later)] == [
        StoreUnavailableError,
        type(None),
        type(None),
        PrecedingAppendFailedError,
    ]


async def test_a_group_behind_which_many_records_wait_is_flushed_on_its_own_threads() -> None:
    bench = WriterBench(ensure_heard=silent)
    bench.log.flush_messages = 3
    few = [bench.append(b"1"), bench.append(b"2")]
    await bench.run_all()
    assert bench.log.calls == ["append 2"]
    many = bench.append(b"3")
    bench.executor.run_one()
    # The next group is written beside the flush, and waits for it, too.
    beside = bench.append(b"4")
    flush = bench.executor.waiting.pop(0)
    bench.executor.run_one()
    await asyncio.sleep(0)
    assert [one.done() for one in (*few, many, beside)] == [True, True, False, False]
    flush()
    await bench.run_all()
    # At `os` the store need not have been heard.
    assert [one.result().base_offset for one in (*few, many, beside)] == list(range(4))
    assert bench.log.calls == ["append 2", "append 1", "append 1", "flush"]
    fifth = bench.append(b"5")
    await bench.run_all()
    assert fifth.done()
    assert bench.log.calls[-1] == "append 1", "a flush has served them"


async def test_all_that_one_failed_flush_leaves_in_the_log_have_its_failure() -> None:
    bench = WriterBench()
    bench.log.flush_messages = 1
    bench.log.flush_error = DataDirectoryError("the sync failed")
    session = AppendSession()
    futures = [bench.append(data, session=session) for data in (b"1", b"2", BAD, b"4")]
    await bench.run_all()
    assert bench.log.stored == [b"1", b"2"]
    assert [type(future.exception()) for future in futures] == [
        DataDirectoryError,
        DataDirectoryError,
        InvalidRecordError,
        PrecedingAppendFailedError,
    ]


async def test_an_append_at_os_behind_one_at_disk_of_its_session_shares_the_outcome_of_the_flush() -> None:
    for error in (None, DataDirectoryError("gone")):
        bench = WriterBench()
        bench.log.flush_error = error
        session = AppendSession()
        before, disk, behind = (
            bench.append(data, durability, session)
            for data, durability in ((b"1", Durability.OS), (b"2", Durability.DISK), (b"3", Durability.OS))
        )
        other = bench.append(b"4", session=AppendSession())
        await bench.run_all()
        assert [type(future.exception()) for future in (before, disk, behind, other)] == [
            type(None),
            type(error),
            type(error),
            type(None),
        ]
        assert session.is_broken == (error is not None)


async def test_an_encoder_runs_on_the_writer_and_its_failure_is_its_own() -> None:
    def fail() -> bytes:
        raise InvalidRecordError("cannot be encoded")

    bench = WriterBench()
    encoded, failed = bench.append(lambda: b"encoded"), bench.append(fail)
    await bench.run_all()
    assert (await encoded).base_offset == 0
    error = failed.exception()
    assert isinstance(error, InvalidRecordError)
    assert error.__traceback__ is None, "its frames hold the bytes of the request"
    assert bench.log.stored == [b"encoded"]


async def test_a_replaced_owner_writes_nothing() -> None:
    def fenced() -> int:
        raise NotOwnerError("replaced", epoch=1, current_epoch=2)

    bench = WriterBench(fenced)
    future = bench.append(b"x")
    await bench.run_all()
    assert isinstance(future.exception(), NotOwnerError)
    assert bench.log.stored == []


async def test_the_first_failure_of_a_session_is_answered_as_it_is() -> None:
    def fenced() -> int:
        raise NotOwnerError("replaced", epoch=1, current_epoch=2)

    bench = WriterBench(fenced)
    session = AppendSession()
    futures = [bench.append(b"x", session=session, token=token) for token in (None, "other", None)]
    alone = bench.append(b"y")
    await bench.run_all()
    assert [type(future.exception()) for future in (*futures, alone)] == [
        NotOwnerError,
        PrecedingAppendFailedError,
        PrecedingAppendFailedError,
        NotOwnerError,
    ]


@pytest.mark.parametrize(
    ("min_durability", "advances"),
    [(Durability.OS, ["append 1"]), (Durability.DISK, ["flush"]), (Durability.OBJECT, [])],
)
async def test_readers_are_woken_when_they_see_more(min_durability: Durability, advances: list[str]) -> None:
    """At `object` the commit wakes them."""
    bench = WriterBench()
    bench.log.min_durability = min_durability
    bench.submit(b"x", Durability.DISK)
    while bench.executor.waiting:
        bench.executor.run_one()
    await asyncio.sleep(0)
    assert bench.advances == advances
    bench.writer.commit_waiters.fail(StoppingError("the test ends"))
    await bench.run_all()


async def test_an_answer_and_the_readers_share_a_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = WriterBench()
    hops: list[object] = []
    hop = bench.loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        hops.append(callback)
        return hop(callback, *args)

    monkeypatch.setattr(bench.loop, "call_soon_threadsafe", counted)
    future = bench.append(b"x")
    bench.executor.run_one()
    assert len(hops) == 1
    assert bench.advances == [], "the loop wakes them"
    assert (await future).base_offset == 0
    assert bench.advances == ["append 1"]
    assert len(hops) == 1


async def test_a_turn_ends_before_its_last_answers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may submit the next append as soon as it has them."""
    bench = WriterBench()
    hop = bench.loop.call_soon_threadsafe
    futures: list[asyncio.Future[AppendInfo]] = []

    def submitting(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        if not futures:
            futures.append(bench.append(b"2"))
            assert bench.executor.waiting, "it has a turn of its own"
        return hop(callback, *args)

    monkeypatch.setattr(bench.loop, "call_soon_threadsafe", submitting)
    first = bench.append(b"1")
    await bench.run_all()
    assert [(await future).base_offset for future in (first, *futures)] == [0, 1]


async def test_a_caller_that_left_does_not_disturb_the_others() -> None:
    bench = WriterBench()
    left, stayed = bench.append(b"x"), bench.append(b"y")
    left.cancel()
    await bench.run_all()
    assert (await stayed).base_offset == 1
    assert bench.log.stored == [b"x", b"y"]


async def test_no_append_waits_for_ever_after_a_defect() -> None:
    def broken() -> int:
        raise ZeroDivisionError

    bench = WriterBench(broken)
    future = bench.append(b"x")
    await bench.run_all()
    assert isinstance(future.exception(), ZeroDivisionError)
    again = bench.append(b"y")
    await bench.run_all()
    assert isinstance(again.exception(), ZeroDivisionError)


async def test_at_a_shutdown_every_append_that_waits_is_answered() -> None:
    bench = WriterBench()
    session = AppendSession()
    late: list[asyncio.Future[AppendInfo]] = []

    def encode() -> bytes:
        late.extend((bench.append(b"x"), bench.append(b"y", session=session)))
        bench.executor.is_closed = True
        return b"first"

    first = bench.append(encode)
    await bench.run_all()
    assert (await first).base_offset == 0
    late.append(bench.append(b"z"))
    await bench.run_all()
    assert [type(future.exception()) for future in late] == [StoppingError] * 3
    assert session.is_broken
    assert bench.log.stored == [b"first"]


async def test_a_turn_that_found_no_thread_is_not_taken_beside_another() -> None:
    bench = WriterBench()
    bench.executor.finds_no_thread = True
    refused = bench.append(b"refused")
    await asyncio.sleep(0)
    assert isinstance(refused.exception(), StoppingError)
    bench.executor.finds_no_thread = False
    stray = bench.executor.waiting.pop()
    session = AppendSession()
    late: list[asyncio.Future[AppendInfo]] = []

    def encode() -> bytes:
        late.append(bench.append(b"2", session=session))
        stray()
        return b"1"

    first = bench.append(encode, session=session)
    await bench.run_all()
    assert bench.log.stored == [b"1", b"2"]
    assert [(await one).base_offset for one in (first, *late)] == [0, 1]


async def test_a_turn_that_begins_although_it_was_refused_takes_place() -> None:
    """Another thread takes the refused work before its caller hears of the refusal."""
    bench = WriterBench()

    class BusyThread(HandExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            bench.executor = HandExecutor()
            fn(*args, **kwargs)
            raise RuntimeError("can't start new thread")

    def encode() -> bytes:
        late.append(bench.append(b"2"))
        return b"1"

    late: list[asyncio.Future[AppendInfo]] = []
    bench.executor = BusyThread()
    first = bench.append(encode)
    await bench.run_all()
    assert [(await one).base_offset for one in (first, *late)] == [0, 1]
    assert bench.log.calls == ["append 1", "append 1"]


async def test_no_append_waits_for_ever_if_the_threads_cannot_be_had() -> None:
    bench = WriterBench()
    bench.threads_error = KeyError("/data")
    for _ in range(2):
        refused = bench.append(b"x")
        await asyncio.sleep(0)
        assert isinstance(refused.exception(), StoppingError)
    settled = asyncio.create_task(bench.writer.settled())
    with pytest.raises(StoppingError):
        await settled
    bench.threads_error = None
    written = bench.append(b"y")
    await bench.run_all()
    assert (await written).base_offset == 0


def silent() -> None:
    raise StoreUnavailableError("silent")


async def test_while_the_store_is_silent_disk_is_refused_unwritten_and_os_goes_on() -> None:
    bench = WriterBench(ensure_heard=silent)
    session = AppendSession()
    disk = bench.append(b"d", Durability.DISK)
    os_level = bench.append(b"o")
    in_session = bench.append(b"s", Durability.DISK, session)
    behind = bench.append(b"t", Durability.OS, session)
    await bench.run_all()
    assert bench.log.stored == [b"o"]
    assert (await os_level).base_offset == 0
    for refused in (disk, in_session):
        with pytest.raises(StoreUnavailableError):
            await refused
    with pytest.raises(PrecedingAppendFailedError):
        await behind
    assert "flush" not in bench.log.calls


async def test_a_silence_that_is_noticed_after_the_flush_refuses_too() -> None:
    calls = 0

    def silent_at_the_second_call() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            silent()

    bench = WriterBench(ensure_heard=silent_at_the_second_call)
    bench.log.min_durability = Durability.DISK
    session = AppendSession()
    disk = bench.append(b"d", Durability.DISK, session)
    await bench.run_all()
    assert bench.log.calls == ["append 1", "flush"]
    with pytest.raises(StoreUnavailableError):
        await disk
    assert session.is_broken
    assert bench.advances == ["flush"], "what was flushed can be read"


async def test_an_append_holds_its_memory_until_it_is_answered_even_if_its_caller_left() -> None:
    bench = WriterBench()
    left = bench.append(b"x")
    left.cancel()
    await asyncio.sleep(0)
    assert bench.memory.held_bytes == 1, "the writer has the bytes"
    await bench.run_all()


async def test_an_answered_append_holds_no_bytes_while_others_wait_for_their_fsync() -> None:
    bench = WriterBench()
    bench.submit(b"disk", Durability.DISK)
    future: asyncio.Future[AppendInfo] = bench.loop.create_future()
    append = PendingAppend(
        batches=b"os",
        durability=Durability.OS,
        future=future,
        memory=bench.memory.lease(1),
        identity=SOME_LOG,
    )
    bench.writer.submit(append)
    held: list[Buffer | Callable[[], Buffer]] = []

    def flush() -> int:
        held.append(append.batches)
        return len(bench.log.stored)

    bench.log.flush = flush  # type: ignore[method-assign]  # looks on while the fsync runs
    await bench.run_all()
    assert held == [b""]
    assert (await future).base_offset == 1


async def test_a_defect_behind_an_answer_gives_nothing_back_twice() -> None:
    bench = WriterBench()

    def fencing_token() -> str:
        raise ZeroDivisionError

    log = cast(UnifiedLog, bench.log)
    bench.writer = PartitionWriter(
        PlainCalls(bench.loop),
        WriterThreads(lambda: bench.executor, lambda: bench.executor),
        log,
        WriterChecks(lambda: EPOCH, None, fencing_token),
        CommitWaiters(bench.clock, bench.loop),
        lambda: None,
    )
    session = AppendSession()
    answered = bench.append(b"1", session=session, size_bytes=GROUP_BYTES)
    failed = bench.append(b"2", session=session, token="a")
    await bench.run_all()
    assert bench.log.calls == ["append 1"], "the second group meets the defect"
    assert (await answered).base_offset == 0
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert session.is_broken, "a later append of the session is not applied"


async def test_an_append_needs_the_token_that_the_partition_has_when_it_is_applied() -> None:
    bench = WriterBench()
    bench.token = "a"
    session = AppendSession()
    current, former, empty = (bench.append(token.encode(), token=token) for token in ("a", "b", ""))
    unchecked = bench.append(b"unchecked")
    in_session = bench.append(b"s", session=session, token="b")
    behind = bench.append(b"t", session=session, token="a")
    await bench.run_all()
    assert bench.log.stored == [b"a", b"unchecked"]
    assert ((await current).base_offset, (await unchecked).base_offset) == (0, 1)
    for refused, sent in ((former, "b"), (empty, ""), (in_session, "b")):
        with pytest.raises(FencingTokenMismatchError) as caught:
            await refused
        assert caught.value.fields == {"fencing_token": sent, "current_token": "a"}
    with pytest.raises(PrecedingAppendFailedError):
        await behind


async def test_once_it_is_settled_no_append_with_the_former_token_is_applied() -> None:
    """Those that wait when the token changes are refused; those that were applied lie below the answer."""
    bench = WriterBench()
    bench.token = "a"
    applied = bench.append(b"1", token="a")
    bench.executor.run_one()
    waiting = bench.append(b"2", token="a")
    bench.token = "b"
    settled = asyncio.create_task(bench.writer.settled())
    await asyncio.sleep(0)
    late, of_new = bench.append(b"3", token="a"), bench.append(b"4", token="b")
    await bench.run_all()
    assert await settled == 1
    assert (await applied).base_offset == 0
    for refused in (waiting, late):
        with pytest.raises(FencingTokenMismatchError):
            await refused
    assert (await of_new).base_offset == 1


async def test_a_group_that_is_being_written_is_settled_behind_it() -> None:
    bench = WriterBench()
    bench.token = "a"
    settled: list[asyncio.Task[int]] = []
    append_group = bench.log.append_group

    def fenced_meanwhile(
        requests: Sequence[Buffer],
        leader_epoch: int,
        expected_offsets: Sequence[int | None],
        chains: Sequence[Hashable | None],
        **options: Any,
    ) -> list[AppendInfo | LogStoreError]:
        bench.token = "b"
        settled.append(asyncio.ensure_future(bench.writer.settled()))
        return append_group(requests, leader_epoch, expected_offsets, chains, **options)

    bench.log.append_group = fenced_meanwhile  # type: ignore[method-assign]  # acts beside the write
    applied = bench.append(b"1", token="a")
    await bench.run_all()
    while not settled[0].done():
        await bench.run_all()
    assert (await applied).base_offset == 0
    assert await settled[0] == 1


async def test_a_writer_that_shall_settle_during_a_turn_without_more_appends_has_another_turn() -> None:
    bench = WriterBench()
    waiting = bench.writer.settled()
    settled: list[asyncio.Future[int]] = []

    def encode() -> bytes:
        # On the thread of the turn, up to its wait.
        settled.append(waiting.send(None))
        return b"1"

    applied = bench.append(encode)
    await bench.run_all()
    await bench.run_all()
    assert [one.result() for one in settled if one.done()] == [1]
    assert (await applied).base_offset == 0
    waiting.close()


async def test_a_writer_settles_without_appends_and_not_as_a_former_owner() -> None:
    bench = WriterBench()
    settled = asyncio.create_task(bench.writer.settled())
    await asyncio.sleep(0)
    await bench.run_all()
    assert await settled == 0

    def fenced() -> int:
        raise NotOwnerError("another owner")

    former = WriterBench(fenced)
    left, refused = (asyncio.create_task(former.writer.settled()) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await former.run_all()
    with pytest.raises(NotOwnerError):
        await refused
