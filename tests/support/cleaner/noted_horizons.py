"""The horizons of a directory's logs, as its manifest has them for the process after this one, too."""

from __future__ import annotations

from stratalog.base.types import TopicPartition


class NotedHorizons(dict[TopicPartition, int]):
    """A `HorizonStore` in memory, for a cleaner without a log manager."""

    def horizon_of(self, partition: TopicPartition) -> int | None:
        return self.get(partition)

    def set_horizon(self, partition: TopicPartition, horizon_ms: int | None) -> None:
        if horizon_ms is None:
            self.pop(partition, None)
        else:
            self[partition] = horizon_ms
