"""How a benchmark tells its result: rows of work, ours, reference, ratio, target, met.

A benchmark is a script beside this file that calls `run` with a function that measures. What counts is the
ratio to a reference of the same run, on the same machine, a moment before or after: absolute rates are shown
for people, and not compared. More is better, except for a cost, such as memory. Where the project promises a
rate as it is ("at least 8 million records a second"), that rate stands in the place of the reference: see
`promised`.

Options of every benchmark: ``--quick`` (seconds, not minutes), ``--json`` (one JSON object a line),
``--strict`` (a target that was missed is an error; otherwise only errors are).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One piece of work, measured twice."""

    work: str
    """The measured work, short enough for a table: `append 1 KiB x 1000, durability=os`."""
    unit: str
    """The unit of both rates: `MB/s`, `records/s`, `calls/s`; of a cost `s/GB`, `MB`."""
    ours: float
    reference: float
    target: float
    """The least ratio that is good enough."""
    is_cost: bool = False
    """Less is better: the ratio is that of the reference to ours."""

    @property
    def ratio(self) -> float:
        more, less = (self.reference, self.ours) if self.is_cost else (self.ours, self.reference)
        assert less > 0, "work that did nothing cannot be compared with"
        return more / less

    @property
    def met(self) -> bool:
        return self.ratio >= self.target

    def as_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "ratio": round(self.ratio, 4), "met": self.met})

    def as_text(self) -> str:
        return (
            f"{self.work:<44} {self.ours:>14,.1f} {self.reference:>14,.1f} {self.unit:<10}"
            f" {self.ratio:>6.2f} {self.target:>6.2f} {'yes' if self.met else 'NO'}"
        )


def promised(work: str, unit: str, ours: float, at_least: float) -> Row:
    """A row whose target is a rate as it is, not a ratio to something that was measured."""
    return Row(work=work, unit=unit, ours=ours, reference=at_least, target=1.0)


def promised_cost(work: str, unit: str, ours: float, at_most: float) -> Row:
    """A row whose target is a cost as it is, not a ratio to something that was measured."""
    return Row(work=work, unit=unit, ours=ours, reference=at_most, target=1.0, is_cost=True)


HEADING = f"{'work':<44} {'ours':>14} {'reference':>14} {'':<10} {'ratio':>6} {'target':>6} met"


def best_seconds(
    ours: Callable[[], object], reference: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """The fastest of `repeats` runs of each, in turns, so that a slow minute of the machine hits both."""
    fastest_ours = fastest_reference = float("inf")
    for _ in range(repeats):
        fastest_reference = min(fastest_reference, seconds(reference))
        fastest_ours = min(fastest_ours, seconds(ours))
    return fastest_ours, fastest_reference


def median_pair(
    ours: Callable[[], object], reference: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """One run of each, a moment apart, whose ratio is the median of `repeats` such pairs.

    For ratios near their target: a machine that is fast for a while, as with memory that is still at hand,
    may be so for one of the two only, and the fastest runs are then of different machines.
    """
    pairs = [(seconds(reference), seconds(ours)) for _ in range(repeats)]
    reference_s, ours_s = pair_of_median_ratio(pairs)
    return ours_s, reference_s


def pair_of_median_ratio(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The pair whose ratio is the median of all."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    return ordered[len(ordered) // 2]


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes once."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pin_to_one_core() -> None:
    """Run on one core from now on, child processes included, where the operating system can do that.

    What is measured then has no help from a second core, and is not moved between two. The last core is
    taken: the first ones get more of the machine's other work.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def run(
    measure: Callable[[bool], Iterable[Row]],
    arguments: Sequence[str] | None = None,
    *,
    on_one_core: bool = False,
) -> int:
    """Print the rows of `measure(quick)` as they come; returns the exit status.

    Args:
        measure: called once; raises where the work fails, which ends the benchmark with a traceback.
        on_one_core: see `pin_to_one_core`.
        arguments: the command line, for tests; default: the process's own.
    """
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: seconds, not minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a target was missed")
    options = parser.parse_args(arguments)
    if on_one_core:
        pin_to_one_core()
    if not options.json:
        print(HEADING)
    missed = 0
    for row in measure(options.quick):
        print(row.as_json() if options.json else row.as_text(), flush=True)
        missed += not row.met
    return 1 if missed and options.strict else 0
