"""The files that folds replaced, read from the roots that name them.

A state has one `Replacement` for all files that a fold replaced: it counts them and names the root that lists
them. The collector, which deletes them, reads that root. The orphan sweep only asks of each name in a listing
whether the file waits: `ReplacedNames` has 16 bytes for a file, because the folds of a day may replace a
million pages.

A root that is missing or damaged says nothing. Until its replacement is forgotten, every page and checkpoint
that it may name counts as a file that waits.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence

from stratalog.base.errors import ObjectNotFoundError, StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.checkpoint import read_replaced
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind, Replacement, newest_seq_of
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.store_layout import StoreLayout

_READS = 2
"""A root is damaged if it was read so often and never whole: an answer may be damaged on its way."""
_BIRTH_BYTES = 8
_ID_BYTES = 8
"""The first half of a UUID. Of a million files, none has that of another one."""
_ENTRY_BYTES = _BIRTH_BYTES + _ID_BYTES


class ReplacedFiles:
    """Reads the lists of one log's replacements. Thread-safe: `_lock` guards the names at hand."""

    def __init__(self, store: ObjectStore, layout: StoreLayout) -> None:
        self._store = store
        self._layout = layout
        self._lock = threading.Lock()
        self._packed: dict[str, bytes] = {}
        """The names of each replacement, see `ReplacedNames`."""

    def read(self, replacement: Replacement) -> tuple[DroppedObject, ...] | None:
        """The files of a replacement; None if its root is missing or damaged, and names none any more. Raises
        StoreUnavailableError, StoreAccessDeniedError, StoreNotUsableError."""
        for _ in range(_READS):
            try:
                files = read_replaced(self._store, self._layout, replacement.root)
            except ObjectNotFoundError:
                return None
            except StoreCorruptError:
                continue
            return tuple(map(replacement.dropped, files))
        return None

    def names(self, replacements: Sequence[Replacement]) -> ReplacedNames:
        """The names of all files of these replacements. Reads the roots that no earlier call has read, and
        raises as `read`."""
        with self._lock:
            known = {one.name: self._packed[one.name] for one in replacements if one.name in self._packed}
        unclear_seq = 0
        for one in replacements:
            if one.name not in known:
                files = self.read(one)
                if files is None:
                    unclear_seq = max(unclear_seq, one.root.seq)
                else:
                    known[one.name] = b"".join(sorted(_entry(file.name) for file in files))
        with self._lock:
            self._packed = known
        return ReplacedNames(known.values(), unclear_seq)


class ReplacedNames:
    """Says which names replacements list. Not thread-safe: it keeps the names of one birth at hand, because
    listings ask in the order of birth."""

    def __init__(self, packed: Collection[bytes], unclear_seq: int) -> None:
        """`packed`: the entries of each list in order, 16 bytes each: the birth and the first half of the
        UUID. `unclear_seq`: files born before this commit may be in a list that cannot be read."""
        self._packed = packed
        self._unclear_seq = unclear_seq
        self._birth = -1
        self._of_birth: frozenset[bytes] = frozenset()

    def __contains__(self, name: object) -> bool:
        """Whether a page or checkpoint of this name waits, or may wait."""
        assert isinstance(name, str)
        if not FileKind.PAGE.is_name(name):
            return False
        birth = newest_seq_of(FileKind.PAGE, name)
        if birth < self._unclear_seq:
            return True
        if birth != self._birth:
            self._birth, self._of_birth = birth, frozenset(self._entries_of(birth))
        return _entry(name) in self._of_birth

    def _entries_of(self, birth: int) -> Iterable[bytes]:
        first, end = (seq.to_bytes(_BIRTH_BYTES, "big") for seq in (birth, birth + 1))
        for entries in self._packed:
            for number in range(_index_of(entries, first), _index_of(entries, end)):
                yield entries[number * _ENTRY_BYTES : (number + 1) * _ENTRY_BYTES]


def free_files(
    state: HeadState, files: Iterable[DroppedObject]
) -> tuple[list[DroppedObject], list[DroppedObject]]:
    """Those of a replacement's files that may be deleted, and the others: what a pin holds, and a root whose
    own list waits."""
    free: list[DroppedObject] = []
    held: list[DroppedObject] = []
    for file in files:
        (held if state.is_held(file) else free).append(file)
    return free, held


def _index_of(entries: bytes, birth: bytes) -> int:
    """The number of the first entry that is not of an earlier birth."""
    low, high = 0, len(entries) // _ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        position = middle * _ENTRY_BYTES
        if entries[position : position + _BIRTH_BYTES] < birth:
            low = middle + 1
        else:
            high = middle
    return low


def _entry(name: str) -> bytes:
    """The entry of a page or checkpoint. Its name is `SEQ-UUID`, with 20 digits before the hyphen."""
    return int(name[:20]).to_bytes(_BIRTH_BYTES, "big") + bytes.fromhex(
        name[21:29] + name[30:34] + name[35:39]
    )
