"""Finds proof that a head existed when the store no longer has it.

Heads are made in one order: the catalog's, then every shard's. Only then is a shard claimed, with the claim
in the data directory first, and only then does the catalog get a topic. So each later step proves that a
missing head was lost, and must not be made anew:

    proof                                            heads that existed
    anything in the head's own prefix but probes     this one               (`head_log` looks)
    anything of a shard but probes                   the catalog's          (`head_log` looks)
    a claim that was made from a log directory       the catalog's, and that of the shard
    a commit of the catalog                          every shard's

A first start that a crash cut off leaves less than that, so the next start continues it. A store without any
proof has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.ownership.claims import ClaimsFile


class HeadWitness:
    """The proof in the log directories of a server. Not thread-safe: their locks exclude other processes."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str]) -> None:
        """Read the claims in the directories, which exist and are bound to the store. Raises
        DataDirectoryError if none of them can be read.
        """
        claims: list[ClaimsFile] = []
        failures: list[OSError] = []
        for directory in directories:
            try:
                claims += ClaimsFile.find_all(filesystem, directory)
            except OSError as failure:
                failures.append(failure)
        if len(failures) == len(directories):
            raise DataDirectoryError(
                "no log directory can be read; repair a disk, and start again",
                path=directories[0],
                reason=str(failures[0]),
            ) from failures[0]
        self._claims = tuple(claims)

    @property
    def of_catalog(self) -> str:
        """Path of a file that proves the catalog's head; empty if there is none."""
        return self._claims[0].path if self._claims else ""

    def of_shard(self, shard: int, catalog: Catalog) -> str:
        """A path, or a key of the store, that proves the shard's head; empty if there is none."""
        own = next((claims.path for claims in self._claims if claims.shard == shard), "")
        return own or catalog_as_witness(catalog)


def catalog_as_witness(catalog: Catalog) -> str:
    """Key of the catalog's head if it proves every shard's head; else empty."""
    return catalog.layout.head_key if catalog.seq > 0 else ""
