"""The seam to the machines that run tasks: functions and values are pickled to them, and results back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_TASKS_A_LANE = 4
"""Tasks are so small that the last ones end at about the same time."""


class Stage(NamedTuple):
    """A step of an exchange. Pickled to the machines."""

    run: Callable[[Iterator[Any]], Iterator[tuple[int, Any]]]
    """Takes the values of a bucket, in any order, and returns values, each with the number of its next
    bucket. It may run twice for a bucket, and only one of its runs counts."""
    bucket_count: int
    """Buckets of its results."""


class Cluster(Protocol):
    """Runs tasks. Thread-safe. The calls raise LogStoreError if it gives up."""

    @property
    def lane_count(self) -> int:
        """Tasks that run at the same time."""
        ...

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of the function, a task for each item, in their order. A task may run twice, and only
        one of its runs counts."""
        ...

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Result]]
    ) -> list[Result]:
        """The results of `last` for each bucket of the last stage. The first stage takes the items."""
        ...

    def tagged(self, tag: str, description: str) -> AbstractContextManager[None]:
        """The calls of this thread within the block belong to `tag`; people see the description."""
        ...

    def cancel(self, tag: str) -> None:
        """End the calls that belong to the tag soon: they raise."""
        ...


def shares(
    items: Sequence[Item], cluster: Cluster, task_count: int | None = None
) -> Iterator[Sequence[Item]]:
    """The items, divided among tasks: a few for each lane, or about `task_count`. If these are more than the
    lanes, each lane has as many as the others."""
    lanes = cluster.lane_count
    wanted = _TASKS_A_LANE * lanes if task_count is None else max(task_count, 1)
    if wanted > lanes:
        wanted = min(-(-wanted // lanes), _TASKS_A_LANE) * lanes
    count = min(len(items), wanted)
    return (items[number::count] for number in range(count))
