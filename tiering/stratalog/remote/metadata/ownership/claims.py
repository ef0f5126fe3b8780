"""The claims of a server on a shard. They prove that its local logs are the newest there are.

Each log directory keeps the uuids of the claims, one a line, in `claims-NNNN` (NNNN is the shard). Each claim
is written to every directory that accepts it. The claims of the first directory count, and those of other
directories that know all of them and more: the first directory was away, or is new in the place of a lost
disk. A directory with other claims comes from another server and does not count.

Claims are not in the manifests of the directories: they concern a server and a shard, an operator may copy
them to a new directory, and they survive a manifest that is made anew.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

logger = logging.getLogger(__name__)

_CLAIMS_NAME = re.compile(r"claims-([0-9]{4})")


def is_claims_name(name: str) -> bool:
    """Whether this is the name of a claims file in a log directory."""
    return _CLAIMS_NAME.fullmatch(name) is not None


def parse_claims(data: bytes) -> frozenset[UUID]:
    """The claims in a file. Raises ValueError for any other content."""
    return frozenset(UUID(line) for line in data.decode("ascii").splitlines())


class ClaimsFile:
    """The claims file of one directory. Not thread-safe: the directory's lock excludes other processes."""

    def __init__(self, filesystem: FileSystem, directory: str, shard: int) -> None:
        self.shard = shard
        self.path = f"{directory}/claims-{shard:04d}"
        self._filesystem = filesystem

    @staticmethod
    def find_all(filesystem: FileSystem, directory: str) -> Iterator[ClaimsFile]:
        """The claims files of a directory, by shard. Raises OSError."""
        for name in sorted(filesystem.list_directory(directory)):
            found = _CLAIMS_NAME.fullmatch(name)
            if found is not None:
                yield ClaimsFile(filesystem, directory, int(found.group(1)))

    def read(self) -> frozenset[UUID]:
        """The claims; none without a file. Raises DataDirectoryError if the file is damaged, OSError."""
        if not self._filesystem.exists(self.path):
            return frozenset()
        try:
            return parse_claims(self._filesystem.read_file(self.path))
        except ValueError as error:
            raise DataDirectoryError(
                "the claims file is damaged; move it away, and the start will set local logs aside",
                path=self.path,
            ) from error

    def write(self, claims: frozenset[UUID]) -> None:
        """Replace the file durably. After a crash the file is the old or the new one. Raises OSError."""
        replace_file(self._filesystem, self.path, "".join(f"{uuid}\n" for uuid in sorted(claims)).encode())


class Claims:
    """The claims on one shard in all directories of a server. Not thread-safe, as `ClaimsFile`."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str], shard: int) -> None:
        assert directories
        self._files = [ClaimsFile(filesystem, directory, shard) for directory in directories]

    def read(self) -> frozenset[UUID]:
        """The claims that count. Raises DataDirectoryError if a file is damaged or unreadable and no other
        directory has claims.
        """
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
                "the claims in a log directory cannot be read; others are used, path=`%s`: %s",
                failed.fields["path"],
                failed.fields.get("reason", "damaged"),
            )
        return known

    def add(self, claim: UUID) -> frozenset[UUID]:
        """Add a claim; returns the claims before it. When this returns, at least one directory has the new
        claim. Raises DataDirectoryError.
        """
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
                "no log directory can store the claim on the shard; free space or repair a disk, and start"
                " again",
                path=first_path,
                reason=str(first_failure),
            ) from first_failure
        for path, refusal in failures:
            logger.warning(
                "a log directory could not store the claim: a start with this directory alone will set aside"
                " the logs of tiered topics, path=`%s`: %s",
                path,
                refusal,
            )
        return known


def _unreadable(path: str, failure: OSError) -> DataDirectoryError:
    error = DataDirectoryError(
        "the claims cannot be read, and no other log directory has any; repair the disk, or start with"
        " another directory in its place as docs/operating.md says",
        path=path,
        reason=str(failure),
    )
    error.__cause__ = failure
    return error
