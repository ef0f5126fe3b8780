"""The claims that a server has made of a shard: that its local logs are the newest there are.

Each log directory keeps their uuids, one a line, in `claims-NNNN` (NNNN is the shard), and each claim is
written to all that take it. What the first directory has counts, and what those others have that know all of
it and more: it was away, or is a new one in the place of a disk that is lost. One that knows something else
comes from another server, and does not speak for this one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

logger = logging.getLogger(__name__)

_CLAIMS_NAME = re.compile(r"claims-([0-9]{4})")


def is_claims_name(name: str) -> bool:
    """Whether a file of that name, in a log directory, has the claims of a shard."""
    return _CLAIMS_NAME.fullmatch(name) is not None


def parse_claims(data: bytes) -> frozenset[UUID]:
    """Raises ValueError where it is anything else."""
    return frozenset(UUID(line) for line in data.decode("ascii").splitlines())


class ClaimsFile:
    """The claims as one directory has them. Not thread-safe: its lock makes it one process's own."""

    def __init__(self, filesystem: FileSystem, directory: str, shard: int) -> None:
        self.shard = shard
        self.path = f"{directory}/claims-{shard:04d}"
        self._filesystem = filesystem
        self._directory = directory

    @staticmethod
    def find_all(filesystem: FileSystem, directory: str) -> Iterator[ClaimsFile]:
        """Those that are there, by shard. Raises OSError."""
        for name in sorted(filesystem.list_directory(directory)):
            found = _CLAIMS_NAME.fullmatch(name)
            if found is not None:
                yield ClaimsFile(filesystem, directory, int(found.group(1)))

    def read(self) -> frozenset[UUID]:
        """Raises DataDirectoryError where the file holds anything else, OSError."""
        if not self._filesystem.exists(self.path):
            return frozenset()
        try:
            return parse_claims(self._filesystem.read_file(self.path))
        except ValueError as error:
            raise DataDirectoryError(
                "the file of claims is damaged; move it away, and local logs will be set aside",
                path=self.path,
            ) from error

    def write(self, claims: frozenset[UUID]) -> None:
        """They are on disk when this returns: whole or, after a crash, not at all. Raises OSError."""
        new_path = self.path + ".new"
        if self._filesystem.exists(new_path):
            self._filesystem.unlink(new_path)
        file = self._filesystem.open_append(new_path)
        try:
            file.append(["".join(f"{uuid}\n" for uuid in sorted(claims)).encode("ascii")])
            file.sync()
        finally:
            file.close()
        self._filesystem.rename(new_path, self.path)
        self._filesystem.sync_directory(self._directory)


class Claims:
    """Those of a shard, in all directories of a server. Not thread-safe, as `ClaimsFile`."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str], shard: int) -> None:
        assert directories
        self._files = [ClaimsFile(filesystem, directory, shard) for directory in directories]

    def read(self) -> frozenset[UUID]:
        """Those that count. Raises DataDirectoryError where a directory that is asked cannot be read, or has
        a damaged file, and no other one has any."""
        found: list[frozenset[UUID]] = []
        failures: list[DataDirectoryError] = []
        for file in self._files:
            try:
                found.append(file.read())
            except DataDirectoryError as damage:
                failures.append(damage)
            except OSError as failure:
                failures.append(_unreadable(file.path, failure))
        first = found[0] if found else frozenset[UUID]()
        known = first.union(*(others for others in found if others >= first))
        if failures and not known:
            raise failures[0]
        for failed in failures:
            logger.warning(
                "claims that cannot be read here are taken from other log directories, path=`%s`: %s",
                failed.fields["path"],
                failed.fields.get("reason", "damaged"),
            )
        return known

    def add(self, claim: UUID) -> frozenset[UUID]:
        """One more; returns those that were known. In one directory at least when this returns. Raises
        DataDirectoryError."""
        known = self.read()
        failures: list[tuple[str, OSError]] = []
        for file in self._files:
            try:
                file.write(known | {claim})
            except OSError as failure:
                failures.append((file.path, failure))
        if len(failures) == len(self._files):
            first_path, first_failure = failures[0]
            raise DataDirectoryError(
                "no log directory takes the claim without which this server may not own the store; free space"
                " or repair a disk, and start again",
                path=first_path,
                reason=str(first_failure),
            ) from first_failure
        for path, refusal in failures:
            logger.warning(
                "a claim could not be written to a log directory: a start that has only this one sets aside"
                " the logs of tiered topics, path=`%s`: %s",
                path,
                refusal,
            )
        return known


def _unreadable(path: str, failure: OSError) -> DataDirectoryError:
    error = DataDirectoryError(
        "the claims, which say that the local logs are the newest there are, cannot be read, and no other log"
        " directory has them; repair the disk, or start with another directory in its place as"
        " docs/operating.md says",
        path=path,
        reason=str(failure),
    )
    error.__cause__ = failure
    return error
