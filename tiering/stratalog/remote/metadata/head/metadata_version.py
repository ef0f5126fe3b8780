"""The metadata version: which actions the commits of a log may have.

Software that does not know an action of a commit can neither apply it nor write on top of it. So each version
of the metadata has a set of actions, and a head says up to which version its commits go: its `write_version`
is the finalized version, and its `read_version` is the same, because an action changes what is live. Newer
software goes on with the actions of the finalized version, so that the former software may come back, until
an operator finalizes the version of the newer one. There is no way back. A new store begins with the newest
version. Kafka has the same rule and the same words: `metadata.version`, finalized, upgrade.

Version 1 has all actions but these, which version 2 has added: `add_gap`, `raise_horizon`, `trim_history`,
`pin`, `renew_pin`, `unpin`. Version 3 has added `lower_tiered_end`, and another format of checkpoint pages: a
fold under an older version writes the older format, and later ones replace it page by page. Version 4 has
added `begin_deletion` and `pin_commit`: an earlier commit can be pinned only where every collector says first
what it deletes. Version 5 has added `listed_fold` and `finish_list`: the root of a checkpoint, and no longer
the state, names the files that a fold replaced, and lives longer than they do, but for those that outlive the
others. Heads of version 5 have a checksum. `finalize` belongs to the version that it finalizes.

The roots of checkpoints have the finalized version, too, so that the rebuilt head of a log goes on with it.

A new field needs no version, because older software keeps the fields that it does not know. The checksum of a
head is the exception: kept beside a new commit, it would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.base.errors import StoreNotUsableError

METADATA_VERSION = 5
"""The newest version, whose actions this software knows."""
FIRST_VERSION = 1
UNRECORDED_VERSION = 2
"""The newest version of the software whose checkpoints do not say which version is finalized."""
COLUMN_PAGES_VERSION = 3
"""From this version on, folds write pages by columns, which older software cannot read."""
CHECKSUM_VERSION = 5
"""From this version on, heads have a checksum."""

ActionVersions = Mapping[type, int]
"""The versions that brought actions, by their types. An action that is not here is of the first version."""


def require_finalized(
    finalized_version: int, actions: Iterable[type], versions: ActionVersions, key: str
) -> None:
    """Raise StoreNotUsableError if a head of this version must not get actions of these types yet."""
    needed_version = max((versions.get(action, FIRST_VERSION) for action in actions), default=FIRST_VERSION)
    if needed_version > finalized_version:
        raise StoreNotUsableError(
            "older software may still write here and does not know this action; once no server needs to go"
            " back to it, run `stratalog tier finalize`",
            key=key,
            finalized_version=finalized_version,
            needed_version=needed_version,
        )
