"""Transactions are refused as long as no coordinator here can end them.

The log takes them; but one that nobody can end holds back the last stable offset for ever, and with it the
upload to the object store.
"""

from __future__ import annotations

import struct

from stratalog.base.errors import UnsupportedOperationError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT

_ATTRIBUTES = struct.Struct(">h")


def refuse_transaction(batches: Buffer) -> None:
    """Raise UnsupportedOperationError for a transactional producer's request.

    It has one batch only, so nothing behind the first one is looked at; whether the bytes are a batch at all
    is for the log to say.
    """
    if len(batches) < HEADER_SIZE or batches[MAGIC_POSITION] != MAGIC:
        return
    (attributes,) = _ATTRIBUTES.unpack_from(batches, ATTRIBUTES_POSITION)
    if attributes & TRANSACTIONAL_BIT:
        raise UnsupportedOperationError(
            "transactional producers are not supported yet; send without a transaction"
        )
