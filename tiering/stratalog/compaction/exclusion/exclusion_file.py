"""Keeps on the local disk which partitions compaction leaves alone, why and since when: a restart of the
server must not make an old exclusion a new one.

The file is JSON, a row for each partition. It is a note for people: where it is missing or damaged, an
exclusion begins with the next failure.
"""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Mapping
from typing import cast
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.job_history import Exclusion

logger = logging.getLogger(__name__)

_Row = tuple[str, int, str, int, int | None, int, bool]


class ExclusionFile:
    """The exclusions of one compactor, in a file. Not thread-safe: guarded by the history."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Nothing is read or written yet; the directory is made by the first `write`."""
        self._filesystem = filesystem
        self._path = path

    def read(self) -> Mapping[TopicIdPartition, Exclusion]:
        """Return what was written last; nothing if the file is missing or cannot be read."""
        try:
            if not self._filesystem.exists(self._path):
                return {}
            rows = cast("list[_Row]", json.loads(self._filesystem.read_file(self._path)))
            return {TopicIdPartition(UUID(row[0]), row[1]): Exclusion(*row[2:]) for row in rows}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
            logger.warning("`%s` is not read, so exclusions begin anew: %s", self._path, problem)
            return {}

    def write(self, exclusions: Mapping[TopicIdPartition, Exclusion]) -> None:
        """Replace what is in the file. A disk that fails is one line of the log: compaction goes on."""
        rows = [(str(tip.topic_id), tip.partition, *one) for tip, one in sorted(exclusions.items())]
        try:
            self._filesystem.make_directories(posixpath.dirname(self._path))
            replace_file(self._filesystem, self._path, json.dumps(rows).encode())
        except OSError as failure:
            logger.warning("`%s` is not written, so a restart forgets exclusions: %s", self._path, failure)
