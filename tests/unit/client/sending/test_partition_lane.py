"""A lane keeps the order of its batches through failures, halves and pauses, and resumes after a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import (
    InconsistentTopicIdError,
    InvalidRecordError,
    LimitExceededError,
    LogStoreError,
    OutOfOrderSequenceError,
    OverloadedError,
    PrecedingAppendFailedError,
    ProducerFencedError,
    RecordsLostError,
    RecordTooLargeError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.client.sending.partition_lane import (
    MAX_IN_FLIGHT_COUNT,
    SURE_BYTES,
    PartitionLane,
)
from stratalog.client.sending.producer_identities import ProducerIdentity
from stratalog.record.ack import Ack
from stratalog.record.header import parse_header
from stratalog.record.native.record_accumulator import Delivery
from stratalog.v1 import log_pb2
from tests.support.service.lane_bench import LaneBench


def out_of_order(sequence: int, expected_sequence: int, epoch: int = 0) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        "late", producer_id=7, epoch=epoch, sequence=sequence, expected_sequence=expected_sequence
    )


async def test_a_lane_has_a_bounded_number_of_batches_in_flight_and_settles_them_in_order() -> None:
    bench = LaneBench()
    values = [b"%d" % number for number in range(MAX_IN_FLIGHT_COUNT + 2)]
    for value in values:
        bench.queue(value)
    requests = bench.take_all()
    assert requests == [(place + 1, value, False) for place, value in enumerate(values[:-2])]
    bench.acknowledge(1, 100)
    assert bench.take() == (MAX_IN_FLIGHT_COUNT + 1, values[-2], False)
    for sequence in range(2, MAX_IN_FLIGHT_COUNT + 2):
        bench.acknowledge(sequence, 100 + sequence)
    assert [receipt.is_settled(0) for receipt in bench.receipts] == [True] * (len(values) - 1) + [False]
    assert Delivery(bench.receipts[0], 0, 7).result() == Ack("t", 0, 100, 7, Durability.OS)


async def test_behind_a_refused_batch_the_others_go_again_and_the_first_resumes() -> None:
    bench = LaneBench()
    for value in (b"a", b"b", b"c", b"d"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    bench.refuse(2, InvalidRecordError("bad"))
    assert bench.take_all() == [(5, b"c", True), (6, b"d", False)]
    # The answers to their former requests still come.
    bench.refuse(3, PrecedingAppendFailedError("refused"))
    bench.refuse(4, PrecedingAppendFailedError("refused"))
    bench.acknowledge(5, 1)
    bench.acknowledge(6, 2)
    assert bench.outcomes == [(b"a", None), (b"b", InvalidRecordError), (b"c", None), (b"d", None)]
    assert not bench.lane.is_busy


@pytest.mark.parametrize("identity", [None, ProducerIdentity(1, 0)])
async def test_a_batch_behind_one_that_may_be_stored_goes_again_only_if_it_is_not(
    identity: ProducerIdentity | None,
) -> None:
    bench = LaneBench(identity=identity)
    for value in (b"a", b"b", b"c", b"d", b"e"):
        bench.queue(value)
    bench.take_all()
    lost = RecordsLostError("lost")
    bench.refuse(1, lost)
    bench.refuse(2, lost)
    bench.acknowledge(3, 7)
    bench.queue(b"f")
    bench.refuse(4, PrecedingAppendFailedError("refused"))
    assert bench.take_all() == [], "the last answer is not there"
    bench.refuse(5, PrecedingAppendFailedError("refused"))
    bench.identity = None if identity is None else ProducerIdentity(2, 0)
    assert bench.take_all() == [(6, b"d", True), (7, b"e", False), (8, b"f", False)]
    assert bench.outcomes == [(b"a", RecordsLostError), (b"b", RecordsLostError), (b"c", None)]
    assert bench.stored == ["unknown"] * 2


@pytest.mark.parametrize("identity", [None, ProducerIdentity(1, 0)])
async def test_a_connection_that_breaks_behind_a_failure_fails_what_has_no_answer(
    identity: ProducerIdentity | None,
) -> None:
    bench = LaneBench(identity=identity)
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    bench.take_all()
    bench.refuse(1, RecordsLostError("lost"))
    bench.refuse(2, PrecedingAppendFailedError("refused"))
    if identity is None:
        bench.lane.fail_oldest(ServerUnavailableError("away"))
    else:
        bench.lane.lose()
    bench.identity = None if identity is None else ProducerIdentity(2, 0)
    assert bench.take_all() == [(4, b"b", True)]
    assert bench.outcomes == [(b"a", RecordsLostError), (b"c", ServerUnavailableError)]
    assert bench.stored == ["unknown"] * 2


@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_at_the_deadline_a_lane_that_waits_for_answers_fails_all(is_in_doubt: bool) -> None:
    bench = LaneBench(identity=ProducerIdentity(1, 0))
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    first, _, _ = bench.take_all()
    if is_in_doubt:
        bench.lane.lose()
        first, _, _ = bench.take_all()
    bench.refuse(first[0], RecordsLostError("lost"))
    bench.lane.give_up(OverloadedError("full"))
    assert not bench.lane.is_busy
    behind = ServerUnavailableError if is_in_doubt else OverloadedError
    assert bench.outcomes == [(b"a", RecordsLostError), (b"b", behind), (b"c", behind)]


async def test_at_the_deadline_batches_that_may_be_stored_say_so() -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0), ProducerIdentity(1, 0))
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take_all()
    bench.queue(b"c")
    bench.refuse(1, StoreUnavailableError("silent"))
    assert min(bench.outcomes) == (b"a", StoreUnavailableError)
    assert sorted(bench.stored) == ["not stored", "unknown", "unknown"]


async def test_a_failure_of_the_last_batch_is_resumed_by_a_later_one() -> None:
    bench = LaneBench()
    bench.queue(b"a")
    bench.take()
    bench.refuse(1, InvalidRecordError("bad"))
    assert not bench.lane.is_busy
    bench.queue(b"b")
    assert bench.take() == (2, b"b", True)


@pytest.mark.parametrize("error", [OverloadedError("full"), PrecedingAppendFailedError("refused")])
async def test_a_refusal_without_effect_pauses_the_lane_and_nothing_fails(error: LogStoreError) -> None:
    bench = LaneBench()
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    bench.refuse(2, error)
    assert bench.take() is None, "it pauses"
    bench.refuse(3, PrecedingAppendFailedError("refused"))
    await bench.pause_is_over.wait()
    assert bench.take_all() == [(4, b"b", True), (5, b"c", False)]
    assert bench.outcomes == [(b"a", None)]


async def test_at_the_deadline_all_queued_batches_fail_and_a_later_one_resumes() -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0))
    values = [b"%d" % number for number in range(MAX_IN_FLIGHT_COUNT + 3)]
    for value in values:
        bench.queue(value)
    bench.take_all()
    bench.refuse(1, OverloadedError("full"))
    assert bench.outcomes == [(value, OverloadedError) for value in values]
    bench.queue(b"later")
    assert bench.take_all() == [(MAX_IN_FLIGHT_COUNT + 1, b"later", True)]


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (InvalidRecordError("bad"), "not stored"),
        (OverloadedError("full"), "not stored"),
        (LimitExceededError("full"), "not stored"),
        (StoreUnavailableError("away"), "unknown"),
        (ProducerFencedError("fenced"), "unknown"),
    ],
)
@pytest.mark.parametrize("identity", [None, ProducerIdentity(7, 0)])
async def test_the_failure_of_a_refused_batch_says_whether_it_may_be_stored(
    cause: LogStoreError, outcome: str, identity: ProducerIdentity | None
) -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0), identity)
    bench.queue(b"a")
    bench.take_all()
    bench.refuse(1, cause)
    assert bench.stored == [outcome]
    assert cause.fields == {}, "other batches have the same cause"


@pytest.mark.parametrize("fail", [PartitionLane.fail_all, PartitionLane.give_up])
async def test_batches_that_never_left_are_certainly_not_stored(
    fail: Callable[[PartitionLane, LogStoreError], None],
) -> None:
    bench = LaneBench(identity=ProducerIdentity(7, 0))
    for value in (b"a", b"b"):
        bench.queue(value)
    fail(bench.lane, ServerUnavailableError("away"))
    assert bench.stored == ["not stored"] * 2


@pytest.mark.parametrize("fail", [PartitionLane.fail_all, PartitionLane.fail_in_flight])
async def test_batches_whose_answer_is_missing_may_be_stored(
    fail: Callable[[PartitionLane, LogStoreError], None],
) -> None:
    bench = LaneBench()
    for number in range(MAX_IN_FLIGHT_COUNT + 1):
        bench.queue(b"%d" % number)
    bench.take_all()
    fail(bench.lane, ServerUnavailableError("away"))
    bench.lane.fail_all(ServerUnavailableError("away"))
    assert bench.stored == ["unknown"] * MAX_IN_FLIGHT_COUNT + ["not stored"]


@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_after_the_deadline_of_refusals_numbers_leave_no_hole(is_in_doubt: bool) -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0), ProducerIdentity(7, 0))
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    if is_in_doubt:
        bench.lane.lose()
        bench.queue(b"c")
        bench.take_all()
    bench.refuse(bench.sequence - is_in_doubt, OverloadedError("full"))
    bench.identity = ProducerIdentity(8, 0)
    bench.queue(b"later")
    assert bench.take_numbers() == ([(b"later", 8, 0)] if is_in_doubt else [(b"later", 7, 1)])


async def test_a_batch_that_is_too_large_goes_again_in_halves_and_so_does_the_next() -> None:
    bench = LaneBench()
    bench.queue(b"1", b"2", b"3", b"4")
    bench.queue(b"5", b"6", b"7", b"8")
    bench.queue(b"9")
    bench.take_all()
    bench.refuse(1, RecordTooLargeError("too large"))
    assert bench.take_all() == [
        (4, b"1", True),
        (5, b"3", False),
        (6, b"5", False),
        (7, b"7", False),
        (8, b"9", False),
    ]
    bench.refuse(4, RecordTooLargeError("too large"))
    assert bench.take() == (9, b"1", True)
    bench.refuse(9, RecordTooLargeError("too large"))
    assert bench.outcomes == [(b"1", RecordTooLargeError)], "alone, it fails"
    assert bench.take() == (10, b"2", True)


async def test_a_batch_above_the_servers_limit_waits_for_its_turn_and_is_not_sent() -> None:
    bench = LaneBench()
    bench.queue(b"small")
    bench.queue(bytes(SURE_BYTES))
    bench.queue(b"behind")
    assert bench.take(None) == (1, b"small", False)
    assert bench.take(None) is None, "the limit is not known yet"
    assert bench.take(SURE_BYTES) is None, "one is in flight"
    bench.acknowledge(1, 0)
    assert bench.take(SURE_BYTES) is None
    assert bench.outcomes[-1] == (bytes(SURE_BYTES), RecordTooLargeError)
    assert bench.take(SURE_BYTES) == (2, b"behind", False), "the server has refused nothing"


async def test_a_lost_connection_fails_those_in_flight_alone() -> None:
    bench = LaneBench()
    for number in range(MAX_IN_FLIGHT_COUNT + 1):
        bench.queue(b"%d" % number)
    bench.take_all()
    bench.lane.fail_in_flight(ServerUnavailableError("gone"))
    assert [error for _, error in bench.outcomes] == [ServerUnavailableError] * MAX_IN_FLIGHT_COUNT
    request = bench.take()
    assert request is not None
    assert request[1] == b"%d" % MAX_IN_FLIGHT_COUNT


async def test_an_abandoned_lane_settles_nothing() -> None:
    bench = LaneBench()
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take()
    bench.refuse(1, OverloadedError("full"))
    bench.lane.abandon()
    assert (bench.lane.is_busy, bench.outcomes) == (False, [])


ONE, TWO = ProducerIdentity(1, 0), ProducerIdentity(2, 0)


async def test_after_a_lost_connection_batches_keep_their_numbers() -> None:
    bench = LaneBench(identity=ONE)
    bench.queue(b"a", b"b", b"c")
    bench.queue(b"d")
    assert bench.take_numbers() == [(b"a", 1, 0), (b"d", 1, 3)]
    bench.queue(b"e")
    bench.lane.lose()
    bench.lane.check()
    # A lane keeps the identity of its numbers, whatever is given to others.
    bench.identity = TWO
    assert bench.take_numbers() == [(b"a", 1, 0), (b"d", 1, 3), (b"e", 1, 4)]
    bench.acknowledge(3, 0, 3)
    bench.acknowledge(4, 3)
    bench.acknowledge(5, 4)
    assert bench.outcomes == [(b"a", None), (b"d", None), (b"e", None)]


@pytest.mark.parametrize("cause", [InvalidRecordError("bad"), LimitExceededError("full")])
async def test_behind_a_batch_that_is_certainly_not_stored_numbers_close_up(cause: LogStoreError) -> None:
    bench = LaneBench(identity=ONE)
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    bench.refuse(2, cause)
    assert bench.take_numbers() == [(b"c", 1, 1)]


@pytest.mark.parametrize("cause", [LogStoreError("broken"), InvalidRecordError("bad")])
async def test_a_failed_batch_in_doubt_ends_the_use_of_the_numbers(cause: LogStoreError) -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0), identity=ONE)
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take_all()
    bench.lane.lose()
    bench.queue(b"c")
    assert bench.take_numbers() == [(b"a", 1, 0), (b"b", 1, 1), (b"c", 1, 2)]
    # It may be stored since the first time, and so may the next one. The last one is not.
    bench.refuse(3, cause)
    for sequence in (4, 5):
        bench.refuse(sequence, PrecedingAppendFailedError("refused"))
    assert sorted(bench.outcomes) == [(b"a", type(cause)), (b"b", ServerUnavailableError)]
    assert bench.lane.needs_identity(ONE)
    assert bench.take() is None, "numbers of the old id must not begin anew"
    bench.identity = TWO
    assert not bench.lane.needs_identity(TWO)
    assert bench.take_numbers() == [(b"c", 2, 0)]


@pytest.mark.parametrize("error", [OutOfOrderSequenceError("gap"), ProducerFencedError("other")])
async def test_a_sequence_that_the_server_does_not_know_fails_its_batch_alone(error: LogStoreError) -> None:
    bench = LaneBench(identity=ONE)
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    bench.take_all()
    bench.refuse(1, error)
    assert bench.outcomes == [(b"a", type(error))]
    bench.identity = TWO
    assert bench.take_numbers() == [], "the others may be stored"
    for sequence in (2, 3):
        bench.refuse(sequence, PrecedingAppendFailedError("refused"))
    assert bench.take_numbers() == [(b"b", 2, 0), (b"c", 2, 1)]


@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_an_unknown_id_fails_batches_in_doubt_and_no_other(is_in_doubt: bool) -> None:
    bench = LaneBench(identity=ONE)
    bench.queue(b"a")
    bench.take()
    if is_in_doubt:
        bench.lane.lose()
        bench.take()
    bench.queue(b"b")
    bench.take()
    error = LogStoreError("unknown")
    vars(error)["code"] = "UNKNOWN_PRODUCER_ID"
    bench.refuse(bench.sequence - 1, error)
    bench.identity = TWO
    if is_in_doubt:
        assert bench.outcomes == [(b"a", LogStoreError)]
        bench.refuse(bench.sequence, PrecedingAppendFailedError("refused"))
        assert bench.take_numbers() == [(b"b", 2, 0)]
    else:
        await bench.pause_is_over.wait()
        assert bench.outcomes == []
        assert bench.take_numbers() == [(b"a", 2, 0), (b"b", 2, 1)]


@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_halves_have_the_numbers_of_the_whole(is_in_doubt: bool) -> None:
    bench = LaneBench(identity=ONE)
    bench.queue(b"1", b"2", b"3")
    bench.queue(b"4")
    bench.take_all()
    if is_in_doubt:
        bench.lane.lose()
        bench.take_all()
    bench.refuse(bench.sequence - 1, RecordTooLargeError("too large"))
    assert bench.take_numbers() == [(b"1", 1, 0), (b"2", 1, 1), (b"4", 1, 3)]


async def test_an_abandoned_lane_does_not_use_its_numbers_again() -> None:
    bench = LaneBench(identity=ONE)
    bench.queue(b"a")
    bench.take()
    bench.lane.abandon()
    bench.queue(b"b")
    assert bench.take() is None
    bench.identity = TWO
    assert bench.take_numbers() == [(b"b", 2, 0)]


async def test_numbers_begin_again_behind_the_highest_one() -> None:
    bench = LaneBench(identity=ONE)
    bench.lane._next_sequence = 2**31 - 2  # pyright: ignore[reportPrivateUsage]  # 2^31 records take too long
    bench.lane._identity = ONE  # pyright: ignore[reportPrivateUsage]  # the same
    bench.queue(b"1", b"2", b"3")
    bench.queue(b"4")
    assert bench.take_numbers() == [(b"1", 1, 2**31 - 2), (b"4", 1, 1)]


@pytest.mark.parametrize("identity", [ONE, None])
async def test_no_batch_is_written_to_another_topic_than_it_was_placed_for(
    identity: ProducerIdentity | None,
) -> None:
    bench = LaneBench(identity=identity)
    bench.topic_id = "old"
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take()
    bench.lane.lose()
    # The topic was deleted and made anew, and the producer knows.
    bench.topic_id = "new"
    bench.queue(b"c")
    requests = [bench.take_batch() for _ in range(3)]
    assert [request and request.topic_id for request in requests] == ["old", "old", "new"]
    bench.refuse(bench.sequence - 2, InconsistentTopicIdError("another topic", topic="t"))
    assert bench.outcomes == [(value, InconsistentTopicIdError) for value in (b"a", b"b")]
    for receipt, outcome in zip(bench.receipts, ("unknown", "not stored"), strict=False):
        with pytest.raises(InconsistentTopicIdError) as caught:
            Delivery(receipt, 0, 0).result()
        assert caught.value.fields == {"topic": "t", "outcome": outcome}
    bench.identity = None if identity is None else TWO
    request = bench.take_batch()
    assert request is not None
    assert (request.topic_id, request.resume) == ("new", True)


async def test_the_numbers_of_each_topic_begin_at_0() -> None:
    bench = LaneBench(identity=ONE)
    bench.topic_id = "old"
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.topic_id = "new"
    for value in (b"c", b"d"):
        bench.queue(value)
    assert bench.take_numbers() == [(b"a", 1, 0), (b"b", 1, 1), (b"c", 1, 0), (b"d", 1, 1)]
    bench.refuse(1, InvalidRecordError("no"))
    assert bench.take_numbers() == [(b"b", 1, 0), (b"c", 1, 0), (b"d", 1, 1)]


async def test_a_batch_above_the_known_limit_of_its_topic_is_not_sent_whole() -> None:
    bench = LaneBench(identity=ONE)
    bench.queue(b"1" * 500, b"2" * 500, b"3" * 500)
    bench.max_batch_bytes = 1200
    taken = bench.take_all()
    assert [(value[:1], resume) for _, value, resume in taken] == [(b"1", False), (b"2", False)]
    # The server decides about a single record: its limit may be another one by now.
    bench.max_batch_bytes = 100
    bench.queue(b"4" * 500)
    assert [value[:1] for _, value, _ in bench.take_all()] == [b"4"]


async def test_an_abandoned_batch_is_in_doubt_if_it_was_sent() -> None:
    bench = LaneBench(identity=ONE)
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take()
    sealed = bench.batches()
    bench.lane.abandon()
    assert [batch.is_in_doubt for batch in sealed] == [True, False]
    for batch in sealed:
        batch.abandon()
    for receipt, outcome in zip(bench.receipts, ("unknown", "not stored"), strict=True):
        with pytest.raises(LogStoreError) as caught:
            await Delivery(receipt, 0, 0)
        assert caught.value.fields == {"outcome": outcome}


@pytest.mark.parametrize("expected_sequence", [2, 3, 1000])
async def test_a_batch_that_the_server_is_past_is_stored(expected_sequence: int) -> None:
    bench = LaneBench(identity=ProducerIdentity(7, 0))
    bench.queue(b"a", b"b")
    bench.queue(b"c")
    assert [one[0] for one in bench.take_numbers()] == [b"a", b"c"]
    bench.lane.lose()
    assert [one[2] for one in bench.take_numbers()] == [0, 2]
    bench.refuse(3, out_of_order(0, expected_sequence))
    # The others keep their numbers, and the first one resumes.
    request = bench.take_batch()
    assert request is not None
    assert (request.resume, parse_header(request.batch.head).base_sequence) == (True, 2)
    # It is as durable as those behind it.
    assert bench.outcomes == []
    bench.acknowledge(5, 9, durability=log_pb2.DURABILITY_OBJECT)
    assert bench.outcomes == [(b"a", None), (b"c", None)]
    for index in range(2):
        acked = Delivery(bench.receipts[0], index, 5).result()
        assert (acked.offset, acked.durability) == (-1, Durability.OBJECT)


@pytest.mark.parametrize("last", ["acknowledged at os", "refused", "none", "abandoned topic"])
async def test_a_stored_batch_is_on_disk_if_nothing_tells_more(last: str) -> None:
    bench = LaneBench(identity=ProducerIdentity(7, 0))
    bench.queue(b"a")
    if last != "none":
        bench.queue(b"c")
    bench.take_numbers()
    bench.lane.lose()
    sent = len(bench.take_numbers())
    bench.refuse(1 + sent, out_of_order(0, 1))
    if last != "none":
        assert bench.take() is not None
    if last == "acknowledged at os":
        bench.acknowledge(5, 9)
    elif last == "refused":
        bench.refuse(5, InvalidRecordError("no"))
    elif last == "abandoned topic":
        bench.lane.fail_all(UnknownTopicOrPartitionError("gone"))
    acked = Delivery(bench.receipts[0], 0, 5).result()
    assert (acked.offset, acked.durability) == (-1, Durability.DISK)
    assert bench.batches() == []


@pytest.mark.parametrize(
    "cause",
    [out_of_order(0, 1), out_of_order(0, -1 & (2**31 - 1)), out_of_order(0, 3, epoch=1), out_of_order(2, 3)],
    ids=["a part", "before it", "another epoch", "another batch"],
)
async def test_a_batch_that_may_not_be_stored_fails(cause: OutOfOrderSequenceError) -> None:
    bench = LaneBench(identity=ProducerIdentity(7, 0))
    bench.queue(b"a", b"b")
    bench.take_numbers()
    bench.lane.lose()
    bench.take_numbers()
    bench.refuse(2, cause)
    assert bench.outcomes == [(b"a", OutOfOrderSequenceError)]


async def test_a_batch_that_was_not_in_doubt_is_not_taken_for_stored() -> None:
    bench = LaneBench(identity=ProducerIdentity(7, 0))
    bench.queue(b"a")
    bench.take_numbers()
    bench.refuse(1, out_of_order(0, 5))
    assert [error for _, error in bench.outcomes] == [OutOfOrderSequenceError]
