"""`PersistentMap` against a dictionary, and what its copies share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.metadata.head.persistent_map import PersistentMap

# Integers hash to themselves: keys that differ by the number of buckets share one.
KEYS = st.sampled_from([0, 1, 2, 1024, 1025, 2048])
CHANGES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 9))), max_size=20)


@given(st.lists(CHANGES, max_size=5))
def test_evolutions_change_the_copy_and_nothing_else(rounds: list[list[tuple[int, int | None]]]) -> None:
    current: PersistentMap[int, int] = PersistentMap()
    model: dict[int, int] = {}
    history: list[tuple[PersistentMap[int, int], dict[int, int]]] = []
    for changes in rounds:
        history.append((current, dict(model)))
        evolution = current.evolve()
        for key, value in changes:
            if value is not None:
                evolution[key] = model[key] = value
            elif key in model:
                assert evolution.pop(key) == model.pop(key)
            assert evolution.get(key) == model.get(key)
            assert (key in evolution) == (key in model)
        current = evolution.finish()
        current.check()
        for snapshot, expected in [*history, (current, model)]:
            assert dict(snapshot.items()) == dict(snapshot.rows()) == expected
            assert len(snapshot) == len(expected)


def test_a_map_without_changes_is_the_same_map() -> None:
    original = PersistentMap([("a", 1)])
    assert original.evolve().finish() is original


def test_a_missing_key() -> None:
    empty: PersistentMap[str, int] = PersistentMap()
    assert empty.get("a") is None
    assert empty.get("a", 5) == 5
    assert "a" not in empty
    with pytest.raises(KeyError):
        empty["a"]
    with pytest.raises(KeyError):
        empty.evolve().pop("a")


def test_a_copy_shares_what_it_did_not_touch() -> None:
    original = PersistentMap((n, object()) for n in range(5000))
    evolution = original.evolve()
    evolution[3] = object()
    copy = evolution.finish()
    assert all(copy[n] is original[n] for n in range(5000) if n != 3)
    assert copy[3] is not original[3]
