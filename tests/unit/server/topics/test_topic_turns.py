"""A topic has one change at a time, and those of other topics do not wait for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.server.topics.topic_turns import TopicTurns
from tests.support.gate import Gate


def test_a_topic_has_one_turn_at_a_time() -> None:
    turns, gate, order = TopicTurns(), Gate(), list[str]()

    def change(name: str, waits_at: Gate) -> None:
        with turns.of(name) as has_turn:
            assert has_turn
            waits_at.pass_through()
            order.append(name)

    gate.close()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(change, "a", gate)
        assert gate.is_reached.wait(60)
        second = threads.submit(change, "a", Gate())
        change("b", Gate())
        with turns.of("a", waits=False) as has_turn:
            assert not has_turn
        with turns.of("b", waits=False) as has_turn:
            assert has_turn
        assert not first.done()
        assert not second.done()
        gate.open()
    assert order == ["b", "a", "a"]
    with turns.of("a", waits=False) as has_turn:
        assert has_turn


def test_a_turn_ends_with_an_error() -> None:
    turns = TopicTurns()
    with pytest.raises(ZeroDivisionError), turns.of("a"):
        raise ZeroDivisionError
    with turns.of("a", waits=False) as has_turn:
        assert has_turn
