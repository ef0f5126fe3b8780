"""Judges the commit of a job before it is due: once the outputs are proved, their last bytes are still on
their way to the store, and the job has nothing else to do."""

from __future__ import annotations

from stratalog.compaction.plan.compaction_job import CompactionJob, RunMode
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, Objects, PreparedReplace


class CommitAhead:
    """The commit of one job. Not thread-safe: guarded by the job."""

    def __init__(self, metadata: MetadataLog, catalog: Catalog, job: CompactionJob) -> None:
        self._metadata = metadata
        self._catalog = catalog
        self._job = job
        self._prepared: PreparedReplace | None = None

    def prepare(self, outputs: Objects) -> PreparedReplace:
        """Judge the commit of these outputs as if nothing changed before it. Raises as
        `MetadataLog.prepare_replace`."""
        runs = self._job.runs
        self._prepared = self._metadata.prepare_replace(
            {run.topic_id_partition: run.slices.ranges for run in runs},
            self._job.input_names,
            outputs,
            covers={run.topic_id_partition: run.settles_tombstones for run in runs},
            drops_records=any(run.mode is RunMode.COMPACT for run in runs),
            compared_from={
                run.topic_id_partition: run.first_offset
                for run in runs
                if run.mode is RunMode.COMPACT and run.topic.hashing.has_versions
            },
            expected_catalog_seq=self._catalog.state().seq,
        )
        return self._prepared

    def prepared(self, outputs: Objects) -> PreparedReplace:
        """The judged commit of the job, whose outputs are these. It is judged now if another process has
        executed the job. Raises as `prepare`."""
        return self._prepared or self.prepare(outputs)
