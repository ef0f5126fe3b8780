"""The counts of open calls are those of a plain list of calls, whatever these do and in whichever order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import OverloadedError
from stratalog.server.call_counts import CallCounts, CallerCounts, CallKind, CommitCalls, OpenCall, share_of

LIMIT = 5
CONNECTION_LIMIT = 3
ACTIONS = ("begin", "admit", "wait", "end")


@dataclass(slots=True, eq=False)
class Expected:
    """The places that a call must have."""

    call: OpenCall
    connection: str
    principal: str | None = None
    kind: CallKind = CallKind.APPEND


def new_counts() -> tuple[CallCounts, CommitCalls]:
    """Those of appends, and of appends that wait for their commit."""
    commits = CommitCalls(CallCounts(CallKind.COMMIT, LIMIT), CallerCounts(CONNECTION_LIMIT))
    return CallCounts(CallKind.APPEND, LIMIT), commits


@pytest.mark.parametrize(("limit", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (200, 150), (1_000, 750)])
def test_a_share_leaves_room_for_others_where_there_is_more_than_one(limit: int, share: int) -> None:
    assert share_of(limit) == share


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 6), st.sampled_from("ab")), max_size=60))
def test_counts_are_those_of_the_open_calls(script: list[tuple[str, int, str]]) -> None:
    appends, commits = new_counts()
    open_calls: list[Expected] = []

    def count(**places: object) -> int:
        return sum(all(getattr(one, key) == place for key, place in places.items()) for one in open_calls)

    for action, index, name in script:
        if action == "begin" or index >= len(open_calls):
            open_calls.append(Expected(OpenCall(appends, name, commits), name))
        elif action == "admit" and open_calls[index].principal is None:
            one = open_calls[index]
            has_room = count(kind=one.kind, principal=name) < share_of(LIMIT)
            assert one.call.enter_principal(name) is has_room
            one.principal = name if has_room else None
        elif action == "wait" and open_calls[index].kind is CallKind.APPEND:
            one = open_calls[index]
            is_refused = (
                count(kind=CallKind.COMMIT) >= LIMIT
                or count(kind=CallKind.COMMIT, connection=one.connection) >= CONNECTION_LIMIT
                or (
                    one.principal is not None
                    and count(kind=CallKind.COMMIT, principal=one.principal) >= share_of(LIMIT)
                )
            )
            if is_refused:
                with pytest.raises(OverloadedError) as refusal:
                    one.call.wait_for_commit()
                assert refusal.value.fields["kind"] == "commit"
            else:
                one.call.wait_for_commit()
                one.kind = CallKind.COMMIT
        elif action == "end":
            open_calls.pop(index).call.end()
        for counts in (appends, commits.counts):
            assert counts.open_count == count(kind=counts.kind)
            for caller in "ab":
                assert counts.principals.of(caller) == count(kind=counts.kind, principal=caller)
                assert commits.connections.of(caller) == count(kind=CallKind.COMMIT, connection=caller)
    for one in open_calls:
        one.call.end()
    assert appends.open_count == commits.counts.open_count == 0


def test_a_refusal_to_wait_names_the_option_and_what_is_full() -> None:
    appends, commits = new_counts()
    for number in range(LIMIT):
        OpenCall(appends, str(number), commits).wait_for_commit()
    with pytest.raises(OverloadedError) as refusal:
        OpenCall(appends, "other", commits).wait_for_commit()
    assert refusal.value.fields == {"kind": "commit", "limit": LIMIT}
    assert "--max-append-calls" in refusal.value.message
    assert "store does not answer" in refusal.value.message
    assert (appends.open_count, commits.counts.refused_count) == (1, 1)


def test_the_refusal_to_a_principal_takes_nothing() -> None:
    appends, commits = new_counts()
    for number in range(share_of(LIMIT)):
        call = OpenCall(appends, str(number), commits)
        assert call.enter_principal("p")
        call.wait_for_commit()
    # It still counts among the others: their share is its own.
    call = OpenCall(appends, "other", commits)
    assert call.enter_principal("p")
    with pytest.raises(OverloadedError) as refusal:
        call.wait_for_commit()
    assert refusal.value.fields == {"kind": "commit", "principal": "p", "limit": share_of(LIMIT)}
    call.end()
    assert appends.open_count == appends.principals.of("p") == commits.connections.of("other") == 0
