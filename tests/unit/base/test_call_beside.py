"""Calls on another thread, by hand: their outcome, and their end before they begin."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.base.call_beside import CallBeside
from stratalog.base.errors import StoreUnavailableError
from stratalog.base.scheduler import run_here
from tests.support.service.hand_executor import HandExecutor


def test_a_call_beside_gives_its_result_or_its_error() -> None:
    threads = HandExecutor()
    seven, failing = CallBeside(threads.submit, lambda: 7), CallBeside(threads.submit, _fail)
    assert not seven.has_ended
    assert not failing.has_ended
    threads.run_all()
    assert seven.result() == 7
    with pytest.raises(StoreUnavailableError):
        failing.result()
    assert CallBeside(run_here, lambda: 8).result() == 8


def test_a_call_that_is_ended_before_it_begins_does_not_begin() -> None:
    threads, begun = HandExecutor(), list[int]()
    call = CallBeside(threads.submit, lambda: begun.append(1))
    call.end()
    threads.run_all()
    assert not begun


def test_the_end_of_a_call_waits_for_one_that_runs() -> None:
    is_running, may_end, ended = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        is_running.set()
        may_end.wait()
        ended.append(1)

    with ThreadPoolExecutor(2) as threads:
        call = CallBeside(threads.submit, work)
        is_running.wait()
        ending = threads.submit(call.end)
        assert not ending.done()
        may_end.set()
        ending.result()
        assert ended == [1]


def test_without_a_thread_the_call_happens_at_once_and_once() -> None:
    threads, begun = HandExecutor(), list[int]()
    threads.finds_no_thread = True
    call = CallBeside(threads.submit, lambda: begun.append(1))
    call.result()
    threads.run_all()
    assert begun == [1]


def _fail() -> None:
    raise StoreUnavailableError("no answer")
