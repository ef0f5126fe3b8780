"""A cluster in one process: what goes between machines is pickled, tasks run twice by chance, and buckets get
their values in any order."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.jobs.cluster import Stage
from stratalog.pipeline.jobs.task_place import TaskMeans

Item = TypeVar("Item")
Result = TypeVar("Result")


class InlineCluster:
    """Implements `Cluster`. Not thread-safe: one test uses it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.task_count = 0
        """Tasks that ran, those that ran twice once."""
        self.moved_bytes = 0
        """Bytes that went between the machines in exchanges."""
        self.collected_bytes = 0
        """Bytes of results that came to the driver."""
        self.copies: Callable[[Any], int] = lambda _value: 1
        """How often each output of the tasks of an exchange arrives."""

    @property
    def lane_count(self) -> int:
        return self._random.randrange(1, 5)

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return self._collected([self._task(lambda one: [function(one)], one)[0] for one in items])

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Result]]
    ) -> list[Result]:
        buckets = [[item] for item in items]
        for stage in stages:
            found: dict[int, list[Any]] = defaultdict(list)
            for values in buckets:
                for number, value in self._task(partial(_listed, stage.run), values):
                    self.moved_bytes += len(pickle.dumps(value))
                    found[number % stage.bucket_count] += [value] * self.copies(value)
            buckets = [found[number] for number in range(stage.bucket_count)]
            for values in buckets:
                self._random.shuffle(values)
        return self._collected(
            [
                one
                for values in buckets
                for result in self._task(partial(_listed, last), values)
                for one in [result] * self.copies(result)
            ]
        )

    @contextmanager
    def tagged(self, tag: str, description: str) -> Generator[None]:
        yield

    def cancel(self, tag: str) -> None:
        pass

    def _collected(self, results: list[Result]) -> list[Result]:
        self.collected_bytes += len(pickle.dumps(results))
        return results

    def _task(self, run: Callable[[Any], list[Result]], given: Any) -> list[Result]:
        self.task_count += 1
        data = pickle.dumps(given)
        if self._random.random() < 0.2:
            # A speculative task, whose result does not count.
            run(pickle.loads(data))
        results: list[Result] = pickle.loads(pickle.dumps(run(pickle.loads(data))))
        return results


def _listed(run: Callable[[Iterator[Any]], Iterator[Result]], given: list[Any]) -> list[Result]:
    return list(run(iter(given)))


class InlinePlace:
    """Implements `OpenPlace` by the seams of a test."""

    def __init__(self, filesystem: FileSystem, clock: Clock, ids: IdGenerator, store: ObjectStore) -> None:
        self._means = TaskMeans(filesystem, clock, ids, store, "")
        self._ids = ids

    @contextmanager
    def __call__(self) -> Generator[TaskMeans]:
        directory = f"/task-{self._ids.uuid()}"
        yield self._means._replace(scratch_directory=directory)
        if self._means.filesystem.exists(directory):
            assert self._means.filesystem.list_directory(directory) == [], "scratch is given back"
