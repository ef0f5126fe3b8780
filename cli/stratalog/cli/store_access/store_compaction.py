"""Compaction of a store by this process, without a server, and beside the servers of the store: the first
commit wins.

Imports that take time come when a command runs, as everywhere in the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import InvalidConfigError, LogStoreError, StoppingError
from stratalog.base.scheduler import RunBeside
from stratalog.base.stop_signal import StopSignal
from stratalog.cli.interrupts import stopped_by_signals
from stratalog.cli.long_work import progress_bar
from stratalog.cli.store_access.store_actor import store_actor
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.compaction.compaction_progress import CompactionProgress
    from stratalog.compaction.compaction_settings import CompactionSettings
    from stratalog.compaction.compactor import Compactor, CompactorConfig, ExecutionElsewhere
    from stratalog.log.log_config import LogConfig
    from stratalog.remote.metadata.catalog.catalog import Catalog
    from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
    from stratalog.remote.metadata.head.head_log import StoreActor
    from stratalog.server.configuration.broker_config import BrokerConfig
    from stratalog.server.operations.operation_results import OperationResult


class CompactionLayers(NamedTuple):
    """The configuration of a compactor by its sources. Immutable."""

    of_servers: Mapping[str, str]
    """That of a start of the store's servers; weaker than the keys that lie in the store."""
    own: Mapping[str, str]
    """That of this compactor alone; stronger than all others."""

    def check(self) -> None:
        """Raise InvalidConfigError for a key, or a value, that has no place here."""
        from stratalog.server.configuration.broker_config import BrokerConfig, broker_key

        BrokerConfig.from_overrides(self.of_servers)
        for name, text in self.own.items():
            if broker_key(name, text).compaction_field is None:
                raise InvalidConfigError(
                    "only the settings of jobs may differ from those of the servers; alter this key with"
                    " `stratalog config alter --broker`, or name the servers' file with --config-file",
                    name=name,
                    value=text,
                    allowed="remote.compaction.*",
                )
        BrokerConfig.from_overrides(self.own)

    def topic_defaults(self, in_store: Mapping[str, str]) -> LogConfig:
        """The defaults of topics with these keys in the store. Raises InvalidConfigError."""
        return self._resolved({**self.of_servers, **in_store}).topic_defaults

    def settings(self, in_store: Mapping[str, str], spool_directory: str) -> CompactionSettings:
        """The settings of jobs with these keys in the store. Raises InvalidConfigError."""
        from stratalog.server.engine.component_settings import compaction_settings

        return compaction_settings(
            self._resolved({**self.of_servers, **in_store, **self.own}), spool_directory
        )

    def _resolved(self, keys: Mapping[str, str]) -> BrokerConfig:
        from stratalog.server.configuration.broker_config import BrokerConfig

        return BrokerConfig.from_overrides(keys)


class StoreCompaction:
    """The compactors of all shards of a store. Not thread-safe: used by one thread."""

    def __init__(
        self,
        actor: StoreActor,
        catalog: Catalog,
        compactors: Sequence[Compactor],
        layers: CompactionLayers,
        stop: StopSignal,
    ) -> None:
        """`stop` ends the work of the compactors."""
        self.clock = actor.clock
        self._ids = actor.ids
        self._catalog = catalog
        self._compactors = compactors
        self._layers = layers
        self._stop = stop

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has asked for the end."""
        return self._stop.is_set

    def run(self, topics: Sequence[str]) -> tuple[values.CompactionResult, bool]:
        """Compact the named topics whether it pays or not, or what is due. Shows the progress on a terminal.
        Returns the result, and whether no job failed: one that another compactor was faster with did not. All
        shards are tried, then the first failure is raised: UnknownTopicOrPartitionError, StoreError,
        InvalidConfigError, OSError; KeyboardInterrupt once a signal has ended it."""
        from stratalog.server.background.tier_compaction import ShownRuns
        from stratalog.server.background.tier_outcomes import compaction_outcome
        from stratalog.server.operations.operation_results import CompactionResult

        failures: list[Exception] = []
        with progress_bar() as show, stopped_by_signals(self._stop):
            shown = ShownRuns(lambda progress, _: show(self._operation(topics, progress)))
            for compactor in self._compactors:
                try:
                    compactor.run_once(topics or None, on_progress=shown.show)
                except StoppingError:
                    raise KeyboardInterrupt from None
                except (LogStoreError, OSError) as failure:
                    failures.append(failure)
                shown.end_shard()
        if failures:
            raise failures[0]
        operation = self._operation(topics, None, CompactionResult(tuple(shown.reports)))
        assert isinstance(operation.result, values.CompactionResult)
        return operation.result, not compaction_outcome(shown.reports, ()).failures

    def plan(self, topics: Sequence[str]) -> values.CompactionPlan:
        """The jobs that `run` would run. Raises as that does."""
        from stratalog.client.values.conversion import value_of
        from stratalog.compaction.plan.job_cost import cost_of
        from stratalog.server.background.tier_compaction import AskedTopic, planned_compaction
        from stratalog.server.rpc.admin.tier_convert import (
            idle_topic_message,
            planned_job_message,
            prices_message,
        )
        from stratalog.v1 import tier_pb2

        plans = [compactor.plan(topics or None) for compactor in self._compactors]
        defaults = self._layers.topic_defaults(self._catalog.state().server_config)
        asked = [
            AskedTopic(topic.topic_id, name, _config_of(topic, defaults))
            for name, topic in self._catalog.topics().items()
            if not topics or name in topics
        ]
        settings = self._compactors[0].settings
        planned = planned_compaction(plans, asked, settings)
        message = tier_pb2.PlanCompactionResponse(
            jobs=[planned_job_message(job, cost_of(job, settings)) for job in planned.jobs],
            prices=prices_message(settings),
            idle_topics=map(idle_topic_message, planned.idle_topics),
        )
        return value_of(values.CompactionPlan, message)

    def _operation(
        self,
        topics: Sequence[str],
        progress: CompactionProgress | None,
        result: OperationResult | None = None,
    ) -> values.Operation:
        """This compaction as the operation of a server."""
        from stratalog.client.values.conversion import value_of
        from stratalog.server.background.tier_compaction import operation_progress
        from stratalog.server.operations.operation import OperationKind, OperationProgress, OperationView
        from stratalog.server.rpc.admin.operation_convert import view_message

        view = OperationView(
            operation_id=self._ids.uuid(),
            number=1,
            kind=OperationKind.COMPACTION,
            topics=tuple(topics),
            start_ms=self.clock.now_ms(),
            progress=OperationProgress() if progress is None else operation_progress(progress),
            result=result,
        )
        return value_of(values.Operation, view_message(view))


class JobsElsewhere(NamedTuple):
    """How jobs are executed by other processes."""

    execution: ExecutionElsewhere | None
    """None if there will only be plans."""
    jobs_at_once: int
    max_partition_bytes: int
    """Data of one partition that a job compacts at once, if that is more than a job may read, and no setting
    says how much."""


@contextmanager
def store_compaction(
    url: str, layers: CompactionLayers, elsewhere: JobsElsewhere | None = None
) -> Generator[StoreCompaction]:
    """The compactors of the store that `url` names, with scratch files in a directory that goes at the end.
    They execute jobs on this thread, or `elsewhere`. Raises InvalidConfigError, StoreError."""
    from stratalog.base.process_tuning import share_one_heap
    from stratalog.compaction.compactor import DEFAULT_CONFIG
    from stratalog.compaction.job_execution import REQUESTS_BESIDE
    from stratalog.remote.metadata.catalog.catalog import Catalog
    from stratalog.server.beside_threads import running_beside

    layers.check()
    share_one_heap()
    stop = StopSignal()
    with (
        store_actor(url, "compactor") as actor,
        running_beside(REQUESTS_BESIDE) as run_beside,
        TemporaryDirectory(prefix="stratalog-compaction-") as directory,
    ):
        catalog = Catalog.open(actor)

        def renewed(before: CompactionSettings) -> CompactionSettings:
            settings = layers.settings(catalog.state().server_config, before.spool_directory)
            if elsewhere is None:
                return settings
            most = settings.max_partition_bytes or elsewhere.max_partition_bytes
            return dataclasses.replace(settings, max_partition_bytes=most)

        config = DEFAULT_CONFIG._replace(topic_defaults=layers.topic_defaults, renewed=renewed, stop=stop)
        if elsewhere is not None:
            config = config._replace(
                execution_elsewhere=elsewhere.execution, jobs_at_once=elsewhere.jobs_at_once
            )
        compactors = [
            _compactor(actor, catalog, shard, f"{directory}/{shard:04d}", config, run_beside)
            for shard in range(actor.identity.shard_count)
        ]
        yield StoreCompaction(actor, catalog, compactors, layers, stop)


def _compactor(
    actor: StoreActor,
    catalog: Catalog,
    number: int,
    spool_directory: str,
    config: CompactorConfig,
    run_beside: RunBeside,
) -> Compactor:
    from stratalog.base.posix_filesystem import PosixFileSystem
    from stratalog.compaction.compaction_settings import CompactionSettings
    from stratalog.compaction.compactor import Compactor
    from stratalog.compaction.job_execution import CompactedShard
    from stratalog.remote.metadata.shard.metadata_log import MetadataLog
    from stratalog.remote.objects.object_directory import read_directory
    from stratalog.remote.store_layout import StoreLayout

    metadata = MetadataLog.open(actor, number, partial(read_directory, actor.store, StoreLayout(number)))
    shard = CompactedShard(actor.store, actor.identity.store_id, metadata, catalog)
    settings = CompactionSettings(spool_directory=spool_directory)
    return Compactor(PosixFileSystem(), actor.clock, actor.ids, shard, settings, config, run_beside)


def _config_of(topic: TopicEntry, defaults: LogConfig) -> LogConfig | None:
    from stratalog.log.log_config import LogConfig

    try:
        return LogConfig.in_force(topic.config, defaults)
    except InvalidConfigError:
        return None
