"""Runs the cleaner of local logs in the server: on its own threads, with the server's configuration, and only
for topics that the catalog has just confirmed.
"""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicIdPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean, is_cleaned_here
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.server.background.confirmed_topics import ConfirmedTopics
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.partitions.shard_set import ShardSet


class LocalCleaning:
    """Cleans the local logs in the background. Thread-safe. Implements `Reconfigurable`."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        logs: LogManager,
        shards: ShardSet,
        confirmed: ConfirmedTopics,
        config: BrokerConfig,
    ) -> None:
        """`scheduler` has a thread for each possible worker. Raises InvalidConfigError."""
        self._logs = logs
        self._shards = shards
        self._confirmed = confirmed
        self._log_clean = LogClean(clock, ids)
        self.workers = CleanerPool(
            clock,
            scheduler,
            logs.cleaner,
            self._clean,
            config.cleaner_settings,
            may_begin=self._may_begin,
            may_shrink=self._may_shrink,
        )

    def require_applicable(self, config: BrokerConfig) -> None:
        config.cleaner_settings.require_step_from(self.workers.settings)

    def apply(self, config: BrokerConfig) -> None:
        if config.cleaner_settings != self.workers.settings:
            self.workers.reconfigure(config.cleaner_settings)

    def _may_begin(self) -> bool:
        """Whether this server still owns a shard and, if there is a log to clean, can read the catalog."""
        if self._shards.is_replaced:
            return False
        topic_ids = {log.topic_id for log in self._logs.logs() if is_cleaned_here(log.local_log.config)}
        return not topic_ids or self._confirmed.recent(topic_ids) is not None

    def _may_shrink(self, log: UnifiedLog) -> bool:
        return self._is_owned(log) and self._confirmed.had(log.topic_id)

    def _is_owned(self, log: UnifiedLog) -> bool:
        tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
        return not self._shards.of(tip).is_fenced

    def _clean(self, to_clean: LogToClean, limits: CleanLimits) -> CleanResult:
        """Clean one log within these limits. Raises what `LogClean.run` raises."""
        if not self._is_owned(to_clean.log):
            raise CleaningAbortedError("another server has taken the partition over")
        if not self._confirmed.had(to_clean.log.topic_id):
            raise CleaningAbortedError("the catalog no longer confirms the topic's configuration")
        return self._log_clean.run(to_clean, limits)
