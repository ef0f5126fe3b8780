"""The data source `stratalog-faulty`: writes of `stratalog` whose tasks, and whose driver, end badly.

Its options are those of `stratalog`, and

    faultKind, faultDirectory             the end of first attempts of tasks, see `FaultyTasks`
    deathBatch, deathAppend, deathStored  the driver is killed in the commit of that batch, at the append of
                                          that number, before or behind its effect
    deathGroup                            its process group
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from stratalog.pipeline.service_options import ServiceOptions
from stratalog.pipeline.sink import staged_copies
from stratalog.pipeline.sink.sink_options import parse_sink_options
from stratalog.pipeline.sink.topic_writer import TopicStreamWriter, TopicWriter
from tests.support.spark.faulty_tasks import Fault, FaultyTasks

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "stratalog-faulty"


class DriverDeath(NamedTuple):
    """The death of a driver at an append of a commit."""

    batch: int
    append: int
    """0 is the decision; then come the rows, and a note that they are all there."""
    is_stored: bool = False
    """The append has its effect, and no answer."""

    def options(self) -> dict[str, str]:
        """The options of a driver that dies with its process group, which is this process's."""
        return {
            "deathBatch": str(self.batch),
            "deathAppend": str(self.append),
            "deathStored": str(self.is_stored),
            "deathGroup": str(os.getpgrp()),
        }


class _Faults(NamedTuple):
    """All options of faults. Pickled to the executors."""

    tasks: FaultyTasks | None
    death: DriverDeath | None
    group: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Faults:
        kind, batch = options.get("faultKind"), options.get("deathBatch")
        tasks = None if kind is None else FaultyTasks(Fault(kind), options["faultDirectory"])
        if batch is None:
            return cls(tasks, None, 0)
        death = DriverDeath(int(batch), int(options["deathAppend"]), options["deathStored"] == "True")
        return cls(tasks, death, int(options["deathGroup"]))

    def strike(self) -> None:
        if self.tasks is not None:
            self.tasks.strike()

    @contextmanager
    def at_commit(self, batch: int) -> Generator[None]:
        """The block commits a batch, in a process of the driver."""
        if self.death is None or self.death.batch != batch:
            yield
            return
        # Not above: executors need none of it.
        from tests.support.spark.sink_world import Accident, MortalClient

        async def die() -> None:
            os.killpg(self.group, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        accident = Accident(self.death.append, self.death.is_stored, meanwhile=die)

        def mortal(service: ServiceOptions, _retry: object) -> MortalClient:
            return MortalClient(service.addresses, accident)

        # Each staged batch is copied by a call of its own, in which the driver may die.
        with (
            patch.object(ServiceOptions, "client", mortal),
            patch.object(staged_copies, "FIRST_CALL_COUNT", 1),
            patch.object(staged_copies, "MAX_CALL_COUNT", 1),
        ):
            yield


class FaultyTopicWriter(DataSourceArrowWriter):
    """The writer of a batch job. Spark pickles it to the tasks."""

    def __init__(self, inner: TopicWriter, faults: _Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # Spark passes Arrow batches to such a writer
        message = self._inner.write(iterator)
        self._faults.strike()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with self._faults.at_commit(0):
            self._inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._inner.abort(messages)


class FaultyStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream. Spark pickles it to the tasks, and makes another one to commit."""

    def __init__(self, inner: TopicStreamWriter, faults: _Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # Spark passes Arrow batches to such a writer
        message = self._inner.write(iterator)
        self._faults.strike()
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with self._faults.at_commit(batchId):
            self._inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._inner.abort(messages, batchId)


class FaultySink(DataSource):
    """Makes the writers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> FaultyTopicWriter:
        del schema, overwrite
        options = parse_sink_options(self._own_options(), is_stream=False)
        return FaultyTopicWriter(TopicWriter(options), _Faults.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyStreamWriter:
        del schema, overwrite
        options = parse_sink_options(self._own_options(), is_stream=True)
        return FaultyStreamWriter(TopicStreamWriter(options), _Faults.of(self.options))

    def _own_options(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.options.items()
            if not name.lower().startswith(("fault", "death"))
        }
