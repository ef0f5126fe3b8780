"""The files of an object store that `log dump` knows, by key, in a store or in its directory.

A document or an object says itself of which kind it is. So a file that was copied out of its store is known,
too. A damaged file is known by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from stratalog.base.errors import InvalidRequestError, ObjectNotFoundError
from stratalog.cli.log_dump.document_rows import KINDS, DocumentKind, dump_document
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, DumpOptions
from stratalog.cli.log_dump.object_rows import dump_object, is_object
from stratalog.objectstore.object_key import is_key
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY, StoreLayout

MAX_DOCUMENT_BYTES: Final = 256 * 1024 * 1024
_SNIFFED_BYTES: Final = 8
_TREE: Final = re.compile(
    r"(?:^|.*/)(?:catalog|shards/[0-9]{4})/(?:(head)|(checkpoints|pages|history|data)/[^/]+)"
)
_FORMATS: Final = {
    "head": "stratalog-head",
    "checkpoints": "stratalog-checkpoint",
    "pages": "stratalog-page",
    "history": "stratalog-history",
}
_DOCUMENT_STARTS: Final = (b"{", b"\x28\xb5\x2f\xfd")


class StoreFile(NamedTuple):
    """A file of a store."""

    store: ObjectStore
    key: str
    size_bytes: int
    beginning: bytes
    """The first bytes."""

    @property
    def name(self) -> str:
        return self.key

    @property
    def title(self) -> str:
        if self._is_object:
            return "object"
        kind = self._kind_by_key
        return "document" if kind is None else kind.title

    def items(self, options: DumpOptions) -> Iterator[DumpItem]:
        """The rows and corrupt places of the file. Raises StoreError."""
        del options  # they are about segments
        if self._is_object:
            yield from dump_object(self.key.rpartition("/")[2], self.size_bytes, self._read)
        elif self.size_bytes > MAX_DOCUMENT_BYTES:
            yield CorruptPlace(None, f"larger than {MAX_DOCUMENT_BYTES} bytes, as no document is")
        else:
            yield from dump_document(self.store.get(self.key).data, self.key, self._kind_by_key)

    @property
    def _is_object(self) -> bool:
        return is_object(self.beginning) or _folder_of(self.key) == "data"

    @property
    def _kind_by_key(self) -> DocumentKind | None:
        if self.key.rpartition("/")[2] == IDENTITY_KEY:
            return KINDS["stratalog-store"]
        return KINDS.get(_FORMATS.get(_folder_of(self.key), ""))

    def _read(self, position: int, size: int) -> bytes:
        size = min(size, self.size_bytes - position)
        return self.store.get_range(self.key, position, size) if size > 0 else b""


def store_file(store: ObjectStore, key: str) -> StoreFile | None:
    """The file at the key; None if it is not of a store. Raises ObjectNotFoundError, StoreError."""
    size_bytes = next((found.size for found in store.list(key) if found.key == key), None)
    if size_bytes is None:
        raise ObjectNotFoundError("there is no such file in the store", key=key, store=store.url)
    beginning = store.get_range(key, 0, min(size_bytes, _SNIFFED_BYTES)) if size_bytes else b""
    is_known = bool(_folder_of(key)) or key.rpartition("/")[2] == IDENTITY_KEY
    if is_known or is_object(beginning) or beginning.startswith(_DOCUMENT_STARTS):
        return StoreFile(store, key, size_bytes, beginning)
    return None


def store_files(store: ObjectStore, key: str) -> list[StoreFile]:
    """The file at the key, or those below it. Without a key: the identity and all heads. Raises
    InvalidRequestError for a key that no file can have, ObjectNotFoundError, StoreError."""
    key = key.strip("/")
    if not key:
        shard_count = StoreIdentity.open(store).shard_count
        layouts = [StoreLayout(None), *map(StoreLayout, range(shard_count))]
        keys = [IDENTITY_KEY, *(layout.head_key for layout in layouts)]
    elif not is_key(key):
        raise InvalidRequestError("this is not the key of a file in a store; see `--help`", key=key[:100])
    else:
        below = [found.key for found in store.list(f"{key}/") if _folder_of(found.key)]
        keys = below or [key]
    found = [file for one in keys if (file := store_file(store, one)) is not None]
    if not found:
        raise ObjectNotFoundError(
            "there is no file of a store here; give the key of a head, such as shards/0000/head",
            key=key,
            store=store.url,
        )
    return found


def split_path(path: str) -> tuple[str, str]:
    """The root of the store that a local path lies in, and the key below it; the directory and the name of
    the file where the path shows no store."""
    match = re.fullmatch(r"(.*?)/((?:catalog|shards)(?:/.*)?)", path)
    if match is not None and match[1]:
        return match[1], match[2]
    directory, _, name = path.rpartition("/")
    return directory or "/", name


def _folder_of(key: str) -> str:
    """The folder of a shard or of the catalog in which the key lies, `head` for a head; else empty."""
    match = _TREE.fullmatch(key)
    return "" if match is None else match[1] or match[2]
