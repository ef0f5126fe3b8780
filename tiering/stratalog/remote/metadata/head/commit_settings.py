"""How patiently a writer commits, and when it folds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """Settings of a metadata log. The defaults suit S3; there is rarely a reason to change them."""

    max_lost_races: int = 100
    """Other writers' commits that may come first before a commit gives up (default 100). A lost race costs
    one read of the head; raise it where very many processes write to one shard."""
    max_store_failures: int = 6
    """Times in a row that the store may fail before a commit or a settling read gives up (default 6, about 10
    s)."""
    race_backoff_ms: int = 10
    """Upper bound of the first random pause after a lost race (default 10); doubles up to
    `max_race_backoff_ms`."""
    max_race_backoff_ms: int = 500
    failure_backoff_ms: int = 200
    """Upper bound of the first random pause after a failure of the store (default 200); doubles up to
    `max_failure_backoff_ms`."""
    max_failure_backoff_ms: int = 5_000
    fold_inline_bytes: int = 64 * 1024
    """Fold when the commits in the head are larger (default 64 KiB): every commit writes them again."""
    fold_inline_commits: int = 256
    """Fold when there are more of them (default 256): whoever opens the shard reads the directory of each."""
    page_rows: int = 4_000
    """Rows of a checkpoint page (default 4,000, about 100 KiB): a fold writes whole pages."""
    fold_by_itself: bool = True
    """Whether a commit that passes a limit is followed by a fold at once (default). A simulation folds by
    hand."""
