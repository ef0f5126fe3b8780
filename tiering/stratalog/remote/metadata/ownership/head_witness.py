"""Who knows that a head was there, when the store has it no more.

Heads are made in one order: the catalog's, then every shard's. Only then is a shard claimed, with the claim
in the data directory first, and only then does the catalog get a topic. So whatever comes later tells that a
head which is missing was lost, and is not to be made anew:

    what is there                                    which heads were there
    anything in the head's own prefix but probes     this one               (`head_log` looks)
    anything of a shard but probes                   the catalog's          (`head_log` looks)
    a claim that was made from a log directory       the catalog's, and that of the shard
    a commit of the catalog                          every shard's

A first start that a crash cut off leaves less than that, so the next one goes on where it ended. A store
without any of these has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.ownership.claims import ClaimsFile


class HeadWitness:
    """What the log directories of a server know. Not thread-safe: their locks make them one process's own."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str]) -> None:
        """The directories are there, and bound to the store. Raises DataDirectoryError where none of them can
        be read."""
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
        """Path of a file that tells of the catalog's head; empty where none does."""
        return self._claims[0].path if self._claims else ""

    def of_shard(self, shard: int, catalog: Catalog) -> str:
        """Who tells of the shard's head: a path, or a key of the store; empty where nobody does."""
        own = next((claims.path for claims in self._claims if claims.shard == shard), "")
        return own or catalog_as_witness(catalog)


def catalog_as_witness(catalog: Catalog) -> str:
    """Key of the catalog's head where it tells that every shard has had one; empty where it does not."""
    return catalog.layout.head_key if catalog.seq > 0 else ""
