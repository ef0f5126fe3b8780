"""Rules of the metadata protocol that the model can take away."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """A rule, in a sentence. `docs/metadata_protocol.md` says what goes wrong without it."""

    IF_MATCH = "a head is replaced only if it is the one that was read"
    READ_TO_SETTLE = "an unknown outcome is settled by reading the head"
    UNKNOWN_IS_NO_FAILURE = "an unknown outcome is never taken for a failure"
    REFUSAL_IS_UNKNOWN = (
        "a refusal is settled like an unknown outcome: the PUT may have landed and been repeated"
    )
    UNKNOWN_IS_NO_SUCCESS = "an unknown outcome is never taken for a success"
    ADD_UNDER_OWN_EPOCH = "an add is valid only under the epoch that its owner claimed"
    ADD_AT_TIERED_END = "an add begins at the tiered end"
    REPLACE_LIVE_INPUTS = "a replace is valid only while exactly its inputs are live"
    ACKNOWLEDGE_COMMITS = "`object` durability is acknowledged after the commit, not after the data PUT"
    BIRTH_OF_OBJECTS = "an add or replace of an object born before the horizon is refused"
    BIRTH_OF_FOLDS = "a fold whose checkpoint was born before the horizon is refused"
    FOLD_ON_BASE = "a fold is refused unless the current checkpoint is the one that it was built from"
    HORIZON_FIRST = "the orphan sweep commits the horizon before it lists"
    FRESH_SWEEP = "the orphan sweep compares with a head that was read after its horizon commit"
    DROP_FIRST = "an object is deleted only after the commit that drops it"
    DELETE_FOLDED = "an object is deleted only when the commit that brought it is folded"
    KEEP_DROPPED = "dropped objects stay in the head until they are deleted"
    PIN = "objects that are dropped after a pin was taken stay while it holds"
    PIN_BROUGHT = (
        "a pin holds what commits between its checkpoint and itself brought, dropped before it or not"
    )
    SAY_DELETION = "a collector commits what it is about to delete before it deletes any of it"
    FRESH_DELETION = "a collector spares what pins hold in a head that was read after that commit"
    PIN_KEPT = "no earlier commit is pinned if something that was dropped after it may be deleted"
    PIN_BUILT = "no earlier commit is pinned if something that came after its checkpoint may be deleted"
    LIST_REPLACED = "the root of a fold lists only files that its own checkpoint does not share"
    LIST_BEFORE_ROOT = "a root stays until the files that it lists are deleted and forgotten"
    PIN_LISTS = "the files that a fold replaced stay while a pin of an earlier state holds"
    KEEP_LISTED = "what must stay of a list becomes dropped files before the list is forgotten"
    KEEP_ALL_LISTED = "a list is forgotten with the last of what stays of it, not with the first"
    KEEP_FOLD_SEQ = "what stays of a list counts as dropped by its fold"
    GAP_UNDER_OWN_EPOCH = "a gap is valid only under the epoch that its owner claimed"
    GAP_AT_TIERED_END = "a gap begins at the tiered end"
    GAP_STAYS = "no replace swallows a gap"
    LOWER_UNDER_OWN_EPOCH = (
        "a tiered end moves back only under the epoch of the owner whose disk has the records behind it"
    )
    LOWER_COMPACTED_UPTO = "compacted_upto moves back with the tiered end"
    TOMBSTONE_COVER = "a tombstone goes only with a job that covers the partition from its first live slice"
    COMPACTED_UPTO_COVER = "compacted_upto moves only with a job that covers it from the first live slice"
    TOPIC_LAST = "an import creates its topic after it has committed all slices"
    OPEN_BEHIND_CATALOG = "a log of a new topic is opened by a head that was read after the catalog had it"
    ABSENT_IS_NOT_DELETED = "slices of a topic that the catalog does not know are not dropped"
    BURY_IN_CATALOG = "an import that fails deletes the id in the catalog before it drops its slices"
    FRESH_NAMES = "a name of an object is never used twice"
