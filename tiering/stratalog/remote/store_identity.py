"""The identity of a store: `stratalog.json`, written once and never changed.

    {"format":"stratalog-store","read_version":N,"write_version":N,"store_id":UUID,"shard_count":N,"crc":N}

It ends with its checksum. Every head has the id of the store, but nothing else has the number of shards, and
with a smaller one partitions would be looked for in shards that never had them, and found empty. A file
without a checksum was written by earlier software, and is believed.

It is put only if it is absent, and only into a store without catalog and shards: a store with those has lost
its identity, and a new one would contradict every head. If two processes create a store at the same time,
one wins and both read the same file. A put of unknown outcome needs no settling: the file that is read
afterwards is the store's identity, whichever process wrote it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from uuid import UUID

from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    JsonFields,
    decode_fields,
    format_json,
    plain_bytes,
    plain_text,
    prove_checksum,
    with_checksum,
)
from stratalog.remote.store_layout import IDENTITY_KEY, MAX_SHARD_COUNT

_FORMAT = "stratalog-store"
_CREATE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Contents of `stratalog.json`. Immutable."""

    store_id: UUID
    shard_count: int
    read_version: int = FORMAT_VERSION
    """Lowest format version whose software may read the store."""
    write_version: int = FORMAT_VERSION
    """Lowest format version whose software may write to it."""

    @staticmethod
    def open(store: ObjectStore) -> StoreIdentity:
        """Read the identity. Raises StoreNotUsableError if there is no store or it needs newer software,
        StoreCorruptError if only the identity is missing.
        """
        identity = StoreIdentity.find(store)
        if identity is None:
            raise StoreNotUsableError(
                "there is no stratalog store here; correct the URL, or start a server with it to create one",
                store=store.url,
            )
        return identity

    @staticmethod
    def find(store: ObjectStore) -> StoreIdentity | None:
        """Read the identity; None if there is no store. Raises as `open`."""
        try:
            return StoreIdentity.decode(store.get(IDENTITY_KEY).data)
        except ObjectNotFoundError:
            _require_empty(store)
            return None

    @staticmethod
    def open_or_create(store: ObjectStore, ids: IdGenerator, shard_count: int | None = None) -> StoreIdentity:
        """Read the identity, or create it with `shard_count` shards (default 1).

        Raises StoreNotUsableError if the store has another number of shards,
        StoreCorruptError if only the identity is missing, StoreUnavailableError.
        """
        assert shard_count is None or 1 <= shard_count <= MAX_SHARD_COUNT, "settings are checked at the edge"
        identity = StoreIdentity.find(store) or _create(store, StoreIdentity(ids.uuid(), shard_count or 1))
        identity.require_shard_count(shard_count)
        return identity

    def require_shard_count(self, shard_count: int | None) -> None:
        """Raise StoreNotUsableError if the store has another number of shards than this one, if any."""
        if shard_count is not None and self.shard_count != shard_count:
            raise StoreNotUsableError(
                "the number of shards is fixed when a store is created; use the store's number",
                shard_count=shard_count,
                store_shard_count=self.shard_count,
            )

    @staticmethod
    def decode(data: bytes) -> StoreIdentity:
        """Decode an identity. Raises StoreCorruptError, StoreNotUsableError if it needs newer software."""
        try:
            fields = _proven_fields(data)
            return StoreIdentity(
                store_id=fields.uuid("store_id"),
                shard_count=fields.integer("shard_count", minimum=1, maximum=MAX_SHARD_COUNT),
                read_version=fields.integer("read_version", minimum=1),
                write_version=fields.integer("write_version", minimum=1),
            )
        except StoreCorruptError as error:
            raise StoreCorruptError(
                "the identity of the store is damaged; write nothing to the store, and restore it from the"
                " bucket's versions or a copy, or write it by hand: `docs/store_repairs.md` says how",
                **{"key": IDENTITY_KEY, "reason": error.message} | error.fields,
            ) from error

    def encode(self) -> bytes:
        text = format_json(
            {
                "format": _FORMAT,
                "read_version": self.read_version,
                "write_version": self.write_version,
                "store_id": str(self.store_id),
                "shard_count": self.shard_count,
            }
        )
        return with_checksum(text.removesuffix("}").encode())


def _create(store: ObjectStore, identity: StoreIdentity) -> StoreIdentity:
    for attempt in itertools.count(1):
        _require_empty(store)
        try:
            store.put(IDENTITY_KEY, identity.encode(), if_absent=True)
        except PreconditionFailedError:
            pass
        except StoreUnavailableError:
            if attempt == _CREATE_ATTEMPTS:
                raise
        try:
            return StoreIdentity.decode(store.get(IDENTITY_KEY).data)
        except ObjectNotFoundError:
            # The put failed. Sending the same bytes again is safe: the first that lands stays.
            if attempt == _CREATE_ATTEMPTS:
                raise StoreUnavailableError(
                    "the store accepted its identity and does not return it; try again later",
                    key=IDENTITY_KEY,
                ) from None
    raise AssertionError("unreachable: the loop counts for ever")


def _require_empty(store: ObjectStore) -> None:
    for prefix in ("catalog/", "shards/"):
        for found in store.list(prefix):
            # Another process may have created identity and head meanwhile: look once more.
            try:
                store.get(IDENTITY_KEY)
            except ObjectNotFoundError:
                raise StoreCorruptError(
                    "the store has data but no identity; repeat its `stratalog tier restore` if that was"
                    " interrupted, else restore stratalog.json, or correct the URL",
                    key=IDENTITY_KEY,
                    found=found.key,
                ) from None
            return


def _proven_fields(data: bytes) -> JsonFields:
    """The fields of an identity, whose checksum is compared first. Raises StoreCorruptError,
    StoreNotUsableError."""
    plain = plain_bytes(data, IDENTITY_KEY)
    has_checksum = prove_checksum(plain)
    fields = decode_fields(plain_text(plain, IDENTITY_KEY), IDENTITY_KEY, format_name=_FORMAT)
    if not has_checksum and "crc" in fields.values:
        raise StoreCorruptError("its checksum is not at its end")
    return fields
