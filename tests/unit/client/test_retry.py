"""Trying again, and giving up."""

from __future__ import annotations

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.client.retry import Patience, RetryPolicy


def failure(retry_delay_s: float = 0.0) -> LogStoreError:
    error = OverloadedError("no room")
    error.retry_delay_s = retry_delay_s
    return error


def refusal_of_quota(retry_delay_s: float) -> LogStoreError:
    error = OverloadedError("used up", quota="bytes_in_per_s")
    error.retry_delay_s = retry_delay_s
    return error


def test_pauses_double_up_to_their_bound() -> None:
    policy = RetryPolicy(first_pause_s=1.0, max_pause_s=4.0)
    for attempt, whole_s in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (500, 4.0)):
        assert whole_s / 2 <= policy.pause_s(attempt) <= whole_s


def steady(deadline_s: float) -> Patience:
    return Patience(RetryPolicy(deadline_s=deadline_s, first_pause_s=1.0, max_pause_s=2.0))


def test_patience_runs_from_the_first_failure_in_a_row() -> None:
    patience = steady(10.0)
    for now_s in (1000.0, 1004.0, 1008.0):
        assert patience.next_pause_s(now_s, failure()) is not None
    assert patience.next_pause_s(1009.5, failure()) is None
    patience.succeed()
    assert patience.next_pause_s(1009.5, failure()) is not None


def test_what_worked_for_longer_than_any_pause_worked() -> None:
    patience = steady(10.0)
    assert patience.next_pause_s(0.0, failure()) is not None
    patience.begin(5.0)
    assert patience.next_pause_s(100.0, failure()) is not None
    assert patience.failure_count == 1


def test_what_breaks_at_once_again_and_again_uses_patience_up() -> None:
    patience = steady(10.0)
    for now_s in (0.0, 3.0, 6.0):
        assert patience.next_pause_s(now_s, failure()) is not None
        patience.begin(now_s + 1.5)
    assert patience.next_pause_s(9.9, failure()) is not None, "this one stood for 2.4 s"
    patience.begin(18.0)
    assert patience.next_pause_s(19.5, failure()) is None


def test_no_patience_means_one_attempt() -> None:
    assert steady(0.0).next_pause_s(1000.0, failure()) is None


def test_no_pause_is_shorter_than_the_server_asks_for() -> None:
    patience = steady(10.0)
    assert patience.next_pause_s(0.0, failure(5.5)) == 5.5
    assert patience.next_pause_s(0.0, failure(10.5)) is None
    assert (patience.next_pause_s(0.0, failure()) or 0) < 5.5


def test_the_deadline_of_a_call_runs_from_its_start() -> None:
    policy = RetryPolicy(deadline_s=10.0, first_pause_s=1.0, max_pause_s=2.0)
    patience = Patience(policy)
    assert patience.next_pause_s(9.5, failure(), attempt_s=0.0) is None
    assert Patience(policy).next_pause_s(9.5, failure()) is not None
    assert patience.start_s(9.5) == 0.0, "later attempts have what is left"
    assert patience.next_pause_s(9.6, failure(), attempt_s=9.5) is None
    patience.succeed()
    assert patience.start_s(20.0) == 20.0


def test_a_quota_slows_down_who_has_the_patience_for_it() -> None:
    policy = RetryPolicy(deadline_s=2.0, quota_deadline_s=600.0)
    patience = Patience(policy)
    assert patience.next_pause_s(0.0, refusal_of_quota(90.0)) == 90.0
    assert patience.next_pause_s(90.0, refusal_of_quota(500.0)) == 500.0
    assert patience.next_pause_s(590.0, refusal_of_quota(20.0)) is None
    assert Patience(policy).next_pause_s(0.0, failure(3.0)) is None, "this is no quota"
    assert Patience(RetryPolicy(deadline_s=2.0)).next_pause_s(0.0, refusal_of_quota(3.0)) is None


def test_a_failure_behind_a_refusal_of_a_quota_is_the_first_one() -> None:
    patience = Patience(RetryPolicy(deadline_s=2.0, quota_deadline_s=600.0))
    assert patience.next_pause_s(0.0, refusal_of_quota(3.0)) == 3.0
    assert patience.next_pause_s(3.0, failure(0.0)) is not None, "the pause was longer than the deadline"
    assert patience.next_pause_s(6.0, failure(0.0)) is None
