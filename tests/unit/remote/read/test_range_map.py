"""Ranges by position, beside a plain list of them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.read.range_map import RangeMap


class Range(NamedTuple):
    key: str
    start: int
    end: int


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    start = draw(st.integers(0, 40))
    return Range(draw(st.sampled_from("ab")), start, start + draw(st.integers(1, 9)))


@given(st.lists(st.tuples(ranges(), st.booleans()), max_size=30))
def test_it_finds_what_a_list_has(steps: list[tuple[Range, bool]]) -> None:
    found: RangeMap[Range] = RangeMap()
    model: list[Range] = []
    for one, is_added in steps:
        overlapping = [
            other
            for other in model
            if other.key == one.key and other.start < one.end and one.start < other.end
        ]
        assert sorted(found.within(*one)) == sorted(overlapping)
        if is_added and not overlapping:
            found.add(one)
            model.append(one)
        elif not is_added:
            for other in overlapping:
                found.remove(other)
                model.remove(other)
        found.check()
        assert sorted(found) == sorted(model)
        assert len(found) == len(model)
        for position in range(50):
            of_key = [other for other in model if other.key == one.key]
            covering = [other for other in of_key if other.start <= position < other.end]
            assert found.find(one.key, position) == (covering[0] if covering else None)
            behind = [other.start for other in of_key if other.start > position]
            assert found.start_behind(one.key, position) == min(behind, default=None)
            before = [other for other in of_key if other.start <= position]
            assert found.end_before(one.key, position) == max((other.end for other in before), default=0)
