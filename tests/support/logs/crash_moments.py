"""When a crash test dies, and what is left of the disk then: all that differs, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from stratalog.testing.memory_filesystem import Kept, Survival

EVERYTHING_KEPT = Survival(Kept.ALL, Kept.ALL)
NOTHING_KEPT = Survival(Kept.NONE, Kept.NONE)
SURVIVALS = (
    *(
        Survival(contents, names)
        for contents in (Kept.NONE, Kept.ALL)
        for names in (Kept.NONE, Kept.HALF, Kept.ALL)
    ),
    *(Survival(contents, Kept.ALL) for contents in (Kept.HALF, Kept.ZEROS, Kept.NOISE)),
)
"""Where names are lost, files are lost, and their contents hardly matter: not every mixture is worth a
run."""

ANY_SURVIVAL = st.builds(
    Survival,
    st.sampled_from(Kept),
    st.sampled_from([Kept.NONE, Kept.HALF, Kept.ALL, Kept.EACH]),
    st.integers(0, 2**32),
)
"""For state machines."""

ONLY_LOOKING = frozenset(
    {"read_at", "size", "read_file", "list_directory", "exists", "is_directory", "file_size", "modified_ms"}
    | {"read_into", "read_cached", "open_read", "close", "free_bytes", "link_count", "real_path"}
    | {"try_lock", "try_lock_shared"}
)
"""Operations that leave the disk as it was."""


def deaths(trace: Sequence[str], first_operation: int = 1) -> Iterator[tuple[int, float]]:
    """Every moment to die at that differs from the others, as FaultyFileSystem.crash_at takes it.

    Behind an operation is the same moment as before the next one, and an operation that only looks leaves the
    disk as the next one finds it, when more has been acknowledged.
    """
    for operation, name in enumerate(trace, start=1):
        if operation < first_operation:
            continue
        kind = name.split(" ")[0]
        if kind not in ONLY_LOOKING:
            yield operation, 0.0
        if kind == "append":
            yield operation, 0.5
            yield operation, 1.0
