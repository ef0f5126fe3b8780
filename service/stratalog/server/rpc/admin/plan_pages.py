"""Pages of a plan of compactions.

A plan is made anew for each page, and its jobs have no key that outlives it. So a token has the place of the
last item and a digest of the plan: all pages are of one plan, or the next one is refused.
"""

from __future__ import annotations

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


def plan_page(cursor: PageCursor[PlanPlace], planned: PlannedCompaction) -> Page[PlanItem]:
    """The page of the plan; only its jobs are made. Raises PlanChangedError if the page before was of another
    plan."""
    digest = planned.digest
    if cursor.after is not None and cursor.after.digest != digest:
        raise PlanChangedError("the plan has changed since the page before; begin again with the first page")
    jobs, idle_topics = planned.jobs, planned.idle_topics
    made: dict[int, PlanItem] = {}

    def item(number: int) -> PlanItem:
        if number not in made:
            made[number] = jobs[number - 1] if number <= len(jobs) else idle_topics[number - len(jobs) - 1]
        return made[number]

    numbers = range(1, len(jobs) + len(idle_topics) + 1)
    page = cursor.page(numbers, lambda number: PlanPlace(number, digest), lambda one: _weight(item(one)))
    return Page([item(number) for number in page.items], page.next_page_token)


def _weight(item: PlanItem) -> int:
    if isinstance(item, CompactionJob):
        return len(item.inputs) + len(item.runs)
    return 1 + len(item.reasons)
