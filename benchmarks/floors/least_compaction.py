"""The floor of `compaction.py`: the least that a job in Python can do on the same inputs.

It sends the requests of a job, two GETs an input and the parts of the output, with the same threads, decodes
the directory of each input, and encodes and decodes one of as many slices as the job writes. It decides
nothing, looks at no batch, and plans and commits nothing: the data of the inputs are dropped as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stratalog.base.filesystem import Buffer
from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.directory_codec import decode_directory, encode_directory
from stratalog.remote.objects.object_directory import parse_directory
from stratalog.remote.objects.object_ref import ObjectRef

_CHUNK_BYTES = 1 << 20


def least_job(
    store: ObjectStore,
    inputs: Sequence[tuple[str, ObjectRef]],
    output_key: str,
    output_bytes: int,
    part_bytes: int,
    threads: ThreadPoolExecutor,
) -> None:
    """Run the job over `inputs`, keys with references, all of which are asked for at once."""

    def key_part(one: tuple[str, ObjectRef]) -> bytes:
        key, ref = one
        pieces = list[Buffer]()
        _read(store, key, ref.directory_position, ref.key_streams_end, pieces.append)
        return b"".join(pieces)

    directories = [
        parse_directory(memoryview(part)[: ref.directory_bytes], ref)
        for part, (_, ref) in zip(threads.map(key_part, inputs), inputs, strict=True)
    ]
    data = [
        threads.submit(_read, store, key, ref.data_position, ref.directory_position, _drop)
        for key, ref in inputs
    ]
    part, crc = bytes(part_bytes), 0
    upload = store.open_upload(output_key)
    whole, rest = divmod(output_bytes, part_bytes)
    for number in range(whole):
        crc = content_crc([part], crc)
        upload.put_part(number + 1, [part])
    for one in data:
        one.result()
    decode_directory(encode_directory(directories[-1]))
    last = part[: max(rest, 1)]
    upload.put_part(whole + 1, [last])
    upload.complete(content_crc([last], crc))


def _read(store: ObjectStore, key: str, begin: int, end: int, take: Callable[[Buffer], None]) -> None:
    stream = store.open_range(key, begin, end - begin)
    try:
        while data := stream.read(_CHUNK_BYTES):
            take(data)
    finally:
        stream.close()


def _drop(_data: Buffer) -> None:
    """The floor looks at no data."""
