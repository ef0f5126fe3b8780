"""Reads the input of a command beside its event loop, so that an interrupt ends the command at once."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from io import BytesIO
from typing import BinaryIO

CHUNK_BYTES = 1 << 18


async def input_chunk(file: BinaryIO) -> bytes:
    """The bytes that a pipe or a terminal has at hand, or gets next; empty at the end.

    Neither the caller nor the end of the process waits for a read that is given up, because its line may
    never come. The bytes of such a read are lost. Raises OSError.
    """
    if isinstance(file, BytesIO):
        return file.read1(CHUNK_BYTES)
    loop = asyncio.get_running_loop()
    read: asyncio.Future[bytes] = loop.create_future()

    def settle(chunk: bytes, failure: OSError | None) -> None:
        if read.done():
            return
        if failure is None:
            read.set_result(chunk)
        else:
            read.set_exception(failure)

    def wait() -> None:
        chunk, failure = b"", None
        try:
            # Not by the file: the end of the process would wait for its lock.
            chunk = os.read(file.fileno(), CHUNK_BYTES)
        except OSError as error:
            failure = error
        with suppress(RuntimeError):
            # The loop may have ended.
            loop.call_soon_threadsafe(settle, chunk, failure)

    threading.Thread(target=wait, name="stratalog-input", daemon=True).start()
    return await read
