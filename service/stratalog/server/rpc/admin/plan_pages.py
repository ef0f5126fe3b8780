"""Pages of a plan of compactions.

A plan is made anew for each page, and its jobs have no key that outlives it. So a token has the place of the
last item and a digest of the plan: all pages are of one plan, or the next one is refused.
"""

from __future__ import annotations

import hashlib
from operator import itemgetter
from typing import NamedTuple

from stratalog.base.errors import PlanChangedError
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.server.background.tier_compaction import IdleTopic, PlannedCompaction
from stratalog.server.rpc.paging import Page, PageCursor, number_and_text, number_and_text_of

PlanItem = CompactionJob | IdleTopic


class PlanPlace(NamedTuple):
    """The place of a job, or of a topic without one, in one plan."""

    number: int
    """From 1: first the jobs in the order of their execution, then the topics by name."""
    digest: str

    def __str__(self) -> str:
        return number_and_text(*self)


def plan_place_of(text: str) -> PlanPlace:
    """The place whose `str()` is the text. Raises ValueError."""
    return PlanPlace(*number_and_text_of(text))


def plan_page(cursor: PageCursor[PlanPlace], planned: PlannedCompaction) -> Page[tuple[PlanPlace, PlanItem]]:
    """The page of the plan. Raises PlanChangedError if the page before was of another plan."""
    digest = _digest(planned)
    if cursor.after is not None and cursor.after.digest != digest:
        raise PlanChangedError("the plan has changed since the page before; begin again with the first page")
    items: list[PlanItem] = [*planned.jobs, *planned.idle_topics]
    placed = [(PlanPlace(number, digest), item) for number, item in enumerate(items, 1)]
    return cursor.page(placed, itemgetter(0), lambda one: _weight(one[1]))


def _weight(item: PlanItem) -> int:
    if isinstance(item, CompactionJob):
        return len(item.inputs) + len(item.runs)
    return 1 + len(item.reasons)


def _digest(planned: PlannedCompaction) -> str:
    """A digest of the inputs of all jobs and of the names of the topics without one. No two jobs of a plan
    share an input, and an object never changes, so plans of one digest have the same jobs."""
    digest = hashlib.sha256()
    for job in planned.jobs:
        digest.update(repr((job.reason.name, job.input_names)).encode())
    digest.update(repr([one.topic for one in planned.idle_topics]).encode())
    return digest.hexdigest()[:32]
