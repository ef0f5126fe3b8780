"""Codecs: what comes out is what went in, bombs and broken data are refused, memory stays bounded."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.record.codecs.compression import Codec, compress, decompress

SQUEEZING = [codec for codec in Codec if codec is not Codec.NONE]
LEVELLED = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
MEMBERED = [Codec.GZIP, Codec.ZSTD]
SNAPPY_HEADER_BYTES = 16

each_codec = pytest.mark.parametrize("codec", Codec)
each_squeezing = pytest.mark.parametrize("codec", SQUEEZING)


def streamed_zstd(data: bytes) -> bytes:
    """A frame that does not tell its size, as Kafka's Java client writes it."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


@each_codec
@given(
    data=st.binary(max_size=5_000), level=st.one_of(st.none(), st.integers(1, 9)), times=st.integers(0, 40)
)
def test_round_trip(codec: Codec, data: bytes, level: int | None, times: int) -> None:
    data *= times
    squeezed = compress(codec, data, level if codec in LEVELLED else None)
    assert decompress(codec, squeezed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(b"." + squeezed))[1:]) == data
    if data:
        with pytest.raises(CorruptRecordError):
            decompress(codec, squeezed, len(data) - 1)


@pytest.mark.parametrize(
    ("codec", "lowest", "highest"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, -131072, 22)]
)
def test_levels_are_checked(codec: Codec, lowest: int, highest: int) -> None:
    data = b"level " * 500
    for level in (lowest, highest):
        assert decompress(codec, compress(codec, data, level)) == data
    for level in (lowest - 1, highest + 1):
        with pytest.raises(InvalidRequestError):
            compress(codec, data, level)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_a_codec_without_levels_takes_none(codec: Codec) -> None:
    with pytest.raises(InvalidRequestError):
        compress(codec, b"", 1)


@each_squeezing
@given(data=st.binary(max_size=300), cut=st.integers(1, 400))
def test_what_is_cut_short_is_refused(codec: Codec, data: bytes, cut: int) -> None:
    for squeezed in {
        compress(codec, data),
        streamed_zstd(data) if codec is Codec.ZSTD else gzip.compress(data),
    }:
        # A snappy stream without blocks is whole, and holds nothing.
        if codec is Codec.SNAPPY and cut == len(squeezed) - SNAPPY_HEADER_BYTES:
            continue
        with pytest.raises(CorruptRecordError):
            decompress(codec, squeezed[:-cut])


@each_squeezing
@given(st.data())
def test_garbage_is_refused_or_bounded(codec: Codec, data: st.DataObject) -> None:
    squeezed = bytearray(compress(codec, data.draw(st.binary(max_size=200))))
    for _ in range(data.draw(st.integers(0, 3))):
        squeezed[data.draw(st.integers(0, len(squeezed) - 1))] = data.draw(st.integers(0, 255))
    squeezed += data.draw(st.binary(max_size=10))
    for garbage in (bytes(squeezed), data.draw(st.binary(max_size=100))):
        try:
            assert len(decompress(codec, garbage, 1_000)) <= 1_000
        except CorruptRecordError:
            pass


@pytest.mark.parametrize(
    ("codec", "squeeze"),
    [
        (Codec.GZIP, gzip.compress),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress),
        (Codec.ZSTD, streamed_zstd),
        (Codec.SNAPPY, partial(compress, Codec.SNAPPY)),
        (Codec.LZ4, partial(compress, Codec.LZ4)),
    ],
    ids=["gzip", "zstd", "zstd without size", "snappy", "lz4"],
)
def test_a_bomb_does_not_go_off(codec: Codec, squeeze: Callable[[bytes], bytes]) -> None:
    bomb = squeeze(bytes(100 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            decompress(codec, bomb, 2**20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # zstandard's own memory is not traced; what it hands out is.
    assert peak_bytes < 48 * 2**20


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = compress(Codec.ZSTD, bytes(100_000))
    size_position = honest.index((100_000 - 0).to_bytes(4, "little"))
    lying = bytearray(honest)
    lying[size_position : size_position + 4] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(CorruptRecordError):
        decompress(Codec.ZSTD, bytes(lying), 2**20)
    lying[size_position : size_position + 4] = (99_999).to_bytes(4, "little")
    with pytest.raises(CorruptRecordError):
        decompress(Codec.ZSTD, bytes(lying), 2**20)


def test_many_empty_members_take_no_quadratic_time() -> None:
    """A megabyte of members; copying the rest for each of them would take minutes."""
    for codec in MEMBERED:
        member = compress(codec, b"")
        assert decompress(codec, member * (2**20 // len(member))) == b""


@given(st.lists(st.binary(max_size=2_000), min_size=2, max_size=6), st.integers(1, 60))
def test_what_was_compressed_before_changes_nothing(batches: list[bytes], times: int) -> None:
    """Each thread keeps zstd's buffers for itself from one batch to the next."""
    for batch in batches:
        data = batch * times
        squeezed = compress(Codec.ZSTD, data)
        assert squeezed == zstandard.ZstdCompressor(level=3).compress(data)
        with pytest.raises(CorruptRecordError):
            decompress(Codec.ZSTD, squeezed[:-1])
        with pytest.raises(CorruptRecordError):
            decompress(Codec.ZSTD, streamed_zstd(data)[:-1])
        assert decompress(Codec.ZSTD, squeezed) == data


def test_many_threads_compress_at_once() -> None:
    def work(number: int) -> None:
        random = Random(number)
        for _ in range(200):
            data = random.randbytes(random.randrange(1, 300)) * random.randrange(1, 200)
            assert decompress(Codec.ZSTD, compress(Codec.ZSTD, data)) == data
            assert decompress(Codec.ZSTD, streamed_zstd(data)) == data

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(16)))


@pytest.mark.parametrize("data_bytes", [100, 200_000, 20_000_000])
def test_frames_that_take_more_than_the_usual_are_read(data_bytes: int) -> None:
    """More room, or a larger window."""
    data = Random(1).randbytes(50) * (data_bytes // 50)
    assert decompress(Codec.ZSTD, streamed_zstd(data)) == data
    parameters = zstandard.ZstdCompressionParameters(window_log=26)
    large = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert decompress(Codec.ZSTD, large.compress(data) + large.flush()) == data


@pytest.mark.parametrize("says_size", [True, False])
@pytest.mark.parametrize("has_checksum", [True, False])
@pytest.mark.parametrize("size_bytes", [1, 7, 5000, 300_000])
def test_nothing_behind_a_zstd_frame_is_passed_over(
    says_size: bool, has_checksum: bool, size_bytes: int
) -> None:
    """Java's clients write frames that do not say what they hold; random data, one byte many times, and
    both."""
    compressor = zstandard.ZstdCompressor(write_content_size=says_size, write_checksum=has_checksum)
    for data in (
        b"a" * size_bytes,
        random.Random(size_bytes).randbytes(size_bytes),
        bytes(size_bytes) + b"x",
    ):
        frame, other = compressor.compress(data), compressor.compress(b"b" * 10)
        assert decompress(Codec.ZSTD, frame) == data
        assert decompress(Codec.ZSTD, frame + other) == data + b"b" * 10
        for behind in (b"\0", b"garbage", other[:-1], frame[: len(frame) // 2]):
            with pytest.raises(CorruptRecordError):
                decompress(Codec.ZSTD, frame + behind)
