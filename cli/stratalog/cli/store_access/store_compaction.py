"""Compaction of a store by this process, without a server, and beside the servers of the store: the first
commit wins.

Imports that take time come when a command runs, as everywhere in the command line.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import InvalidConfigError, LogStoreError, StoppingError, StoreError
from stratalog.base.scheduler import RunBeside
from stratalog.base.stop_signal import StopSignal
from stratalog.cli.interrupts import stopped_by_signals
from stratalog.cli.long_work import progress_bar
from stratalog.cli.store_access.compactor_state import CompactorState
from stratalog.cli.store_access.store_actor import store_actor
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.base.types import TopicIdPartition
    from stratalog.compaction.compaction_settings import CompactionSettings
    from stratalog.compaction.compactor import Compactor, CompactorConfig, ExecutionElsewhere
    from stratalog.compaction.job_history import Exclusion
    from stratalog.compaction.plan.due_partitions import CompactionBacklog
    from stratalog.compaction.plan.planned_jobs import CompactionPlan
    from stratalog.log.log_config import LogConfig
    from stratalog.objectstore.counted import CountedObjectStore, RequestPrices
    from stratalog.remote.metadata.catalog.catalog import Catalog
    from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
    from stratalog.remote.metadata.head.head_log import StoreActor
    from stratalog.server.background.pass_outcome import PassOutcome
    from stratalog.server.configuration.broker_config import BrokerConfig

logger = logging.getLogger(__name__)


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


class ShardCompactors:
    """The compactors of all shards, each from when its shard can be opened. Used by one thread, but for
    `opened`, whose value is replaced by one assignment."""

    def __init__(self, shard_count: int, open_shard: Callable[[int], Compactor]) -> None:
        """Nothing is opened yet. `open_shard` raises LogStoreError."""
        self.opened: Mapping[int, Compactor] = {}
        """By the number of the shard, in this order."""
        self._shard_count = shard_count
        self._open_shard = open_shard

    def open_all(self) -> dict[int, LogStoreError]:
        """Open the shards that are not yet open. Returns the failures by shard."""
        failures: dict[int, LogStoreError] = {}
        for number in range(self._shard_count):
            if number in self.opened:
                continue
            try:
                opened = {**self.opened, number: self._open_shard(number)}
            except LogStoreError as failure:
                failures[number] = failure
            else:
                self.opened = dict(sorted(opened.items()))
        return failures


class StoreRun(NamedTuple):
    """The end of one compaction of a store. Immutable."""

    result: values.CompactionResult
    outcome: PassOutcome

    @property
    def is_well(self) -> bool:
        """Whether no shard and no job failed: one that another compactor was faster with did not."""
        return not (self.outcome.failures or self.outcome.failed_shards)


class StorePlan(NamedTuple):
    """The jobs that a compaction of a store would run. Immutable."""

    planned: values.CompactionPlan
    failed_shards: Mapping[int, LogStoreError]
    """Those that could not be planned, by number."""


class StoreCompaction:
    """The compactors of all shards of a store. Used by one thread, but for `exclusions`, `backlogs` and the
    prices, which any thread may ask for."""

    def __init__(
        self,
        actor: StoreActor,
        requests: CountedObjectStore,
        catalog: Catalog,
        compactors: ShardCompactors,
        layers: CompactionLayers,
        stop: StopSignal,
        state: CompactorState | None,
    ) -> None:
        """`requests`: the store of the actor. `stop` ends the work of the compactors. `state`: where their
        exclusions outlive them, if anywhere."""
        self.clock = actor.clock
        self.requests = requests
        self._ids = actor.ids
        self._shard_count = actor.identity.shard_count
        self._catalog = catalog
        self._compactors = compactors
        self._layers = layers
        self._stop = stop
        self._state = state

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has asked for the end."""
        return self._stop.is_set

    @property
    def prices(self) -> RequestPrices:
        """The prices of requests, by the settings in the store as of the last look; the default ones while
        this version refuses those, or no shard is open."""
        from stratalog.objectstore.counted import RequestPrices

        first = next(iter(self._compactors.opened.values()), None)
        try:
            settings = None if first is None else first.settings
        except InvalidConfigError:
            settings = None
        if settings is None:
            return RequestPrices()
        return RequestPrices(settings.get_price, settings.put_price)

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """The partitions that compaction leaves alone, as the last runs have found them."""
        compactors = self._compactors.opened.values()
        return {tip: one for compactor in compactors for tip, one in compactor.exclusions().items()}

    def backlogs(self) -> Mapping[int, CompactionBacklog]:
        """The data that is not compacted, by the number of each shard, as the last look has found it."""
        return {number: compactor.backlog for number, compactor in self._compactors.opened.items()}

    def run(self, topics: Sequence[str], on_step: Callable[[], None] = lambda: None) -> StoreRun:
        """Compact the named topics whether it pays or not, or what is due. Shows the progress on a terminal,
        and in the state directory; `on_step` is called meanwhile whenever something has happened. A shard
        that fails, or cannot be opened, does not keep the others from it; each run tries it again. If all
        fail, the failure of one is raised: UnknownTopicOrPartitionError, StoreError, InvalidConfigError,
        DataDirectoryError; KeyboardInterrupt once a signal has ended it."""
        from stratalog.client.values.conversion import value_of
        from stratalog.compaction.compaction_progress import CompactionProgress
        from stratalog.compaction.plan.run_goal import PlanAgain
        from stratalog.server.background.tier_compaction import ShownRuns, operation_progress
        from stratalog.server.background.tier_outcomes import compaction_outcome
        from stratalog.server.operations.operation import OperationKind, OperationView
        from stratalog.server.operations.operation_results import CompactionResult
        from stratalog.server.partitions.scratch_space import scratch_error
        from stratalog.server.rpc.access.shown_topics import is_anything_shown
        from stratalog.server.rpc.admin.operation_convert import view_message

        message_of = partial(view_message, is_shown=is_anything_shown)
        failures = self._compactors.open_all()
        self._take_resets()
        view = OperationView(
            operation_id=self._ids.uuid(),
            number=1,
            kind=OperationKind.COMPACTION,
            topics=tuple(topics),
            start_ms=self.clock.now_ms(),
        )
        with progress_bar() as show, stopped_by_signals(self._stop):

            def show_progress(progress: CompactionProgress, _: object) -> None:
                message = message_of(view._replace(progress=operation_progress(progress)))
                show(value_of(values.Operation, message))
                if self._state is not None:
                    self._state.show(message, self._names())
                on_step()

            shown = ShownRuns(show_progress)
            for number, compactor in self._compactors.opened.items():
                try:
                    compactor.run(topics or None, plan_again=PlanAgain(), on_progress=shown.show)
                except StoppingError:
                    raise KeyboardInterrupt from None
                except (OSError, LogStoreError) as failure:
                    failures[number] = scratch_error(failure) if isinstance(failure, OSError) else failure
                finally:
                    self._show_idle()
                shown.end_shard()
        self._show_failures(failures)
        if len(failures) == self._shard_count:
            raise _first(failures)
        message = message_of(view._replace(result=CompactionResult(tuple(shown.reports))))
        result = value_of(values.Operation, message).result
        assert isinstance(result, values.CompactionResult)
        outcome = compaction_outcome(shown.reports, ())._replace(failed_shards=failures)
        return StoreRun(result, outcome)

    def _take_resets(self) -> None:
        """Let the compactors try what commands have reset. A reset in a shard that is not open waits. A disk
        that fails is a line of the log."""
        from stratalog.remote.store_layout import shard_of

        if self._state is None:
            return
        try:
            for tip in self._state.resets():
                compactor = self._compactors.opened.get(shard_of(tip, self._shard_count))
                if compactor is not None:
                    compactor.reset(tip)
                    self._state.forget_reset(tip)
        except OSError as failure:
            logger.warning("the resets of commands are not read, and wait: %s", failure)

    def _show_idle(self) -> None:
        if self._state is not None:
            self._state.show(None, self._names())

    def _show_failures(self, failures: Mapping[int, LogStoreError]) -> None:
        if self._state is not None:
            now_ms = self.clock.now_ms()
            self._state.note_failed_shards({number: str(one) for number, one in failures.items()}, now_ms)
            self._show_idle()

    def _names(self) -> Mapping[str, str]:
        """The names of the topics with a partition that is left alone, by their ids."""
        topic_ids = {tip.topic_id for tip in self.exclusions()}
        if self._state is not None:
            # Those of a shard that is not open are left alone once it is.
            closed = set(range(self._shard_count)).difference(self._compactors.opened)
            topic_ids |= {tip.topic_id for shard in closed for tip in self._state.exclusions_of(shard)}
        entries = map(self._catalog.by_id, topic_ids)
        return {str(entry.topic_id): entry.name for entry in entries if entry is not None}

    def plan(self, topics: Sequence[str]) -> StorePlan:
        """The jobs that `run` would run. Raises as that does."""
        from stratalog.client.values.conversion import value_of
        from stratalog.compaction.plan.job_cost import cost_of
        from stratalog.server.background.tier_compaction import AskedTopic, planned_compaction
        from stratalog.server.rpc.access.shown_topics import is_anything_shown
        from stratalog.server.rpc.admin.tier_convert import (
            idle_topic_message,
            planned_job_message,
            prices_message,
        )
        from stratalog.v1 import tier_pb2

        failures = self._compactors.open_all()
        plans: list[CompactionPlan] = []
        for number, compactor in self._compactors.opened.items():
            try:
                plans.append(compactor.plan(topics or None))
            except LogStoreError as failure:
                failures[number] = failure
        if not plans:
            raise _first(failures)
        defaults = self._layers.topic_defaults(self._catalog.state().server_config)
        asked = [
            AskedTopic(topic.topic_id, name, _config_of(topic, defaults))
            for name, topic in self._catalog.topics().items()
            if not topics or name in topics
        ]
        settings = next(iter(self._compactors.opened.values())).settings
        planned = planned_compaction(plans, asked, settings)
        message = tier_pb2.PlanCompactionResponse(
            jobs=[
                planned_job_message(job, cost_of(job, settings), is_anything_shown) for job in planned.jobs
            ],
            prices=prices_message(settings),
            idle_topics=map(idle_topic_message, planned.idle_topics),
        )
        return StorePlan(value_of(values.CompactionPlan, message), failures)


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
    url: str,
    layers: CompactionLayers,
    elsewhere: JobsElsewhere | None = None,
    state: CompactorState | None = None,
) -> Generator[StoreCompaction]:
    """The compactors of the store that `url` names, with scratch files in the state directory, or else in a
    temporary one that goes at the end. They execute jobs on this thread, or `elsewhere`, and keep in
    `state` what outlives them. Raises InvalidConfigError, StoreError, DataDirectoryError."""
    from stratalog.base.process_tuning import share_one_heap, tune_for_jobs
    from stratalog.compaction.compactor import DEFAULT_CONFIG
    from stratalog.compaction.job_execution import REQUESTS_BESIDE
    from stratalog.objectstore.counted import CountedObjectStore
    from stratalog.remote.metadata.catalog.catalog import Catalog
    from stratalog.remote.store_layout import kind_of_key
    from stratalog.server.beside_threads import running_beside

    layers.check()
    share_one_heap()
    stop = StopSignal()
    with (
        store_actor(url, "compactor") as opened,
        nullcontext() if state is None else state.held(url, opened.identity.store_id),
        running_beside(REQUESTS_BESIDE) as run_beside,
        _scratch_directory(state) as directory,
    ):
        requests = CountedObjectStore(opened.store, kind_of_key, opened.clock)
        actor = dataclasses.replace(opened, store=requests)
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

        def open_shard(shard: int) -> Compactor:
            path = None if state is None else state.exclusions_path(shard)
            spool = f"{directory}/{shard:04d}"
            return _compactor(actor, catalog, shard, spool, config._replace(exclusions_path=path), run_beside)

        compactors = ShardCompactors(actor.identity.shard_count, open_shard)
        # What fails is tried again, and reported, by each run.
        compactors.open_all()
        if elsewhere is None:
            tune_for_jobs()
        yield StoreCompaction(actor, requests, catalog, compactors, layers, stop, state)


@contextmanager
def _scratch_directory(state: CompactorState | None) -> Generator[str]:
    """The directory of scratch files while the block runs. Raises DataDirectoryError."""
    from stratalog.server.partitions.scratch_space import scratch_error

    if state is not None:
        yield state.scratch_directory
        return
    try:
        directory = TemporaryDirectory(prefix="stratalog-compaction-")
    except OSError as failure:
        raise scratch_error(failure) from failure
    with directory as path:
        yield path


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


def _first(failures: Mapping[int, LogStoreError]) -> LogStoreError:
    """The failure of the first shard; before it one of the command, which all shards have."""
    of_store = [one for one in failures.values() if isinstance(one, StoreError)]
    return next((one for one in failures.values() if one not in of_store), failures[min(failures)])


def _config_of(topic: TopicEntry, defaults: LogConfig) -> LogConfig | None:
    from stratalog.log.log_config import LogConfig

    try:
        return LogConfig.in_force(topic.config, defaults)
    except InvalidConfigError:
        return None
