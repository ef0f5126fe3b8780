"""The metadata protocol itself, docs/metadata_protocol.md, proved on an explicit-state model of it.

`make test` visits the first states of each scenario and takes a few random walks. `make simulate` visits a
million states of each, and takes 20,000 walks, new ones each time.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

import pytest

from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.places import DOCS, REPOSITORY
from tests.support.protocol_model.exploration import TraceError, explore, garbage_of, replay, walk
from tests.support.protocol_model.known_traces import BACKED_RULES, TRACES, Trace
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.scenarios import CROWD, IMPORT_CROWD, SCENARIOS, Scenario
from tests.support.protocol_model.state import Model, Stored

MAX_STATES = 1_000_000 if IS_WHOLE else 2_000
WALKS = 20_000 if IS_WHOLE else 100
WALK_STEPS = 120
SEARCHED = [trace for trace in TRACES if len(trace.steps) <= (14 if IS_WHOLE else 3)]
"""Traces that a search reaches within `MAX_STATES`."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_invariants_hold_in_each_state(name: str) -> None:
    exploration = explore(SCENARIOS[name], SCENARIOS[name].model(), MAX_STATES)

    assert exploration.finding is None, str(exploration.finding)
    assert exploration.is_whole or exploration.states == MAX_STATES


@pytest.mark.parametrize("crowd", [CROWD, IMPORT_CROWD], ids=["topic", "import"])
def test_invariants_hold_on_random_walks(crowd: Scenario) -> None:
    for seed in range(SEED, SEED + WALKS):
        finding = walk(crowd, crowd.model(), random.Random(seed), WALK_STEPS)
        assert finding is None, f"seed {seed}: {finding}"


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_a_trace_without_a_rule_ends_in_a_violation(trace: Trace) -> None:
    scenario = SCENARIOS[trace.scenario]

    assert replay(scenario, scenario.model(*trace.without), trace.steps) == trace.violation
    assert replay(scenario, scenario.model(*trace.without), trace.steps[:-1]) == ""


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_a_rule_stops_the_trace_that_needs_its_absence(trace: Trace) -> None:
    """With one of the rules back, a step of the trace is not there, or leads to no violation."""
    scenario = SCENARIOS[trace.scenario]
    for rule in trace.without:
        others = [other for other in trace.without if other is not rule]
        try:
            assert replay(scenario, scenario.model(*others), trace.steps) == ""
        except TraceError:
            pass


@pytest.mark.parametrize("trace", SEARCHED, ids=lambda trace: trace.name)
def test_a_search_finds_a_violation_without_the_rule(trace: Trace) -> None:
    scenario = SCENARIOS[trace.scenario]
    model = scenario.model(*trace.without)

    finding = explore(scenario, model, MAX_STATES).finding

    assert finding is not None
    assert len(finding.trace) == len(trace.steps), str(finding)
    assert replay(scenario, model, finding.trace) == finding.violation


@pytest.mark.parametrize("rule", BACKED_RULES, ids=lambda rule: rule.name)
def test_a_rule_with_another_behind_it_is_not_fatal_alone(rule: Rule) -> None:
    for scenario in SCENARIOS.values():
        finding = explore(scenario, scenario.model(rule), MAX_STATES // 10).finding
        assert finding is None, str(finding)


def test_each_rule_is_fatal_alone_or_with_another() -> None:
    alone = {trace.without[0] for trace in TRACES if len(trace.without) == 1}
    together = {rule for trace in TRACES if len(trace.without) > 1 for rule in trace.without}

    assert alone.isdisjoint(BACKED_RULES)
    assert alone | set(BACKED_RULES) == set(Rule)
    assert set(BACKED_RULES) == together


def test_objects_that_stay_for_ever_are_found() -> None:
    state = CROWD.start()
    late = Stored(500, birth=state.head.seq + 50)

    assert garbage_of(Model(), state) == ""
    assert garbage_of(Model(), state.with_object(late)) == "objects [500] are never collected"


def test_a_step_that_the_model_does_not_have_is_reported() -> None:
    with pytest.raises(TraceError):
        replay(CROWD, CROWD.model(), ["owner0 claims epoch 7: ok"])


ROW = re.compile(
    r"^\| [^|]+ \| `([A-Z_]+(?: \+ [A-Z_]+)?)` \| [^|]+ \| (\d+|-) \| `([^|`]+)` \|$", re.MULTILINE
)
"""A rule, its switch, the loss, the length of the trace, and the test of the real code."""


class Row(NamedTuple):
    """A row of the protocol's table of rules."""

    switch: str
    steps: str
    test: str


def rows() -> list[Row]:
    text = (DOCS / "metadata_protocol.md").read_text()
    table = text.partition("| rule | switch |")[2].partition("\n\n")[0]
    found = [Row(switch.replace(" + ", "+"), steps, test) for switch, steps, test in ROW.findall(table)]
    assert len(found) == table.count("\n") - 1, "each row has the form of the others"
    return found


def test_the_page_has_each_rule_and_the_length_of_its_trace() -> None:
    lengths = {trace.name: str(len(trace.steps)) for trace in TRACES}
    alone = {rule.name: "-" for rule in BACKED_RULES}

    assert {row.switch: row.steps for row in rows()} == lengths | alone


def test_the_page_names_tests_that_exist() -> None:
    simulated = (REPOSITORY / "tests/simulation/test_broken_metadata_rules.py").read_text()
    for row in rows():
        path, _, test = row.test.rpartition("::")
        text, wanted = (
            ((REPOSITORY / path).read_text(), f"def {test}(") if path else (simulated, f'"{test}": Broken(')
        )
        assert wanted in text, row.switch
