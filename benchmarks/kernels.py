"""The record kernels, beside what a bare loop over the same bytes costs.

Kernels that read bytes stand beside CRC-32C of these bytes (the least that any reader of a batch does),
columns beside a plain copy, encode and decode beside joining and slicing in Python, sort and merge beside
numpy. At the top stands what the project promises of small records (16-byte keys, 100-byte values):
validation (checksum, framing of every record, hash of every key) as it is and beside a minimal loop in C, and
encoding from columns and from Python objects. The loop stands there twice: as one writes it first, with a
checksum that goes one step after the other, and 0.4 of its rate is promised (0.56 was measured); and with the
checksum of the kernels, which goes three ways at once, so that 0.25 of its rate is left. It is compiled when
it is needed; without a C compiler it is left out, and that is said.

All on one core, data in the cache, batches of 16 KiB. Run it with STRATALOG_PURE_KERNELS=1 to see the twins.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
from crc32c import crc32c

from report import Row, best_seconds, median_pair, promised, run
from stratalog.record.builder import encode_batch
from stratalog.record.columns import ColumnBuffers
from stratalog.record.native import batch_kernels, kernels
from stratalog.record.native.key_entries import KeyEntries, KeyWindow
from stratalog.record.record import Record

BATCH_BYTES = 16 << 10
HASH_KEY = bytes(range(16))
MAX_ROWS_BYTES = 256 << 10
ROW_BATCHES = 16
VALIDATED_PER_S = ENCODED_COLUMNS_PER_S = 8e6
ENCODED_OBJECTS_PER_S = 1.5e6


class Load:
    """One batch of records with 16-byte keys."""

    def __init__(self, value_bytes: int, random: Random) -> None:
        self.name = f"{value_bytes} B values"
        self.count = max(1, BATCH_BYTES // (value_bytes + 26))
        keys = [b"%016d" % random.randrange(10**16) for _ in range(self.count)]
        self.records = [
            Record(index, index, key, random.randbytes(value_bytes)) for index, key in enumerate(keys)
        ]
        self.payload = kernels.encode_records(self.records, 0)
        self.most_dropped = bytes(1 if index % 2 else 0 for index in range(self.count // 8 + 1))


def measure(quick: bool) -> Iterator[Row]:
    """Measure the native kernels against bare loops."""
    random = Random(1)
    repeats, rounds = (20, 100) if quick else (60, 500)
    yield from measure_promises(random, repeats)
    for load in (Load(100, random), Load(1024, random)):
        yield from measure_records(load, repeats, rounds)
    yield from measure_key_streams(random, 200_000 if quick else 2_000_000, 3 if quick else 6)


def measure_promises(random: Random, repeats: int) -> Iterator[Row]:
    load = Load(100, random)
    row = b"".join(
        encode_batch(load.records, base_offset=number * load.count) for number in range(ROW_BATCHES)
    )
    count = ROW_BATCHES * load.count

    def validate() -> None:
        scanned = batch_kernels.scan_batches(row, 0, len(row), 0)
        assert scanned.records_count == count
        batch_kernels.hash_batches(row, HASH_KEY, 0, KeyEntries())

    columns = ColumnBuffers()
    kernels.decode_columns(load.payload, load.count, 0, 0, None, 0, load.count, columns)
    assert kernels.encode_columns(columns, 0, load.count, 0) == load.payload
    # Without compiled kernels no row is taken.
    if kernels.NATIVE:
        validated_s = best_seconds(validate, int, repeats)[0]
        yield promised("validate 100 B values", "records/s", count / validated_s, VALIDATED_PER_S)
    minimal = minimal_walk()
    if minimal is None:
        print("no rows for the minimal loop in C: no C compiler works here", file=sys.stderr)
    else:
        for name, is_plain, target in (
            ("minimal C loop, CRC in one lane", True, 0.4),
            ("the same, CRC in our three lanes", False, 0.2),
        ):

            def walk(is_plain: bool = is_plain) -> None:
                assert minimal(row, len(row), is_plain) == count

            ours_s, minimal_s = median_pair(validate, walk, 3 * repeats)
            yield Row(
                work=f"validate 100 B values / {name}",
                unit="records/s",
                ours=count / ours_s,
                reference=count / minimal_s,
                target=target,
            )
    for name, encode, at_least in (
        ("columns", lambda: kernels.encode_columns(columns, 0, load.count, 0), ENCODED_COLUMNS_PER_S),
        ("Python objects", lambda: kernels.encode_records(load.records, 0), ENCODED_OBJECTS_PER_S),
    ):
        ours_s, _ = best_seconds(repeated(encode, ROW_BATCHES), lambda: None, repeats)
        yield promised(f"encode 100 B values from {name}", "records/s", count / ours_s, at_least)


def minimal_walk() -> Callable[[bytes, int, bool], int] | None:
    """`minimal_walk.c`, compiled beside the checksum of the kernels; None without a C compiler."""
    sources = Path(kernels.__file__).parent
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "minimal_walk.so")
        try:
            subprocess.run(
                [
                    *("cc", "-O3", "-shared", "-fPIC", f"-I{sources}", "-o", library),
                    *(Path(__file__).with_name("floors") / "minimal_walk.c", sources / "crc32c.c"),
                ],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        loaded = ctypes.CDLL(str(library))
    loaded.minimal_begin()
    walk: Callable[[bytes, int, bool], int] = loaded.minimal_walk
    loaded.minimal_walk.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool)
    loaded.minimal_walk.restype = ctypes.c_int64
    return walk


def measure_records(load: Load, repeats: int, rounds: int) -> Iterator[Row]:
    payload, count = load.payload, load.count
    columns = ColumnBuffers()

    def hash_keys() -> None:
        kernels.hash_keys(payload, count, HASH_KEY, 0, KeyEntries())

    def decode_columns() -> None:
        if columns.data_bytes > MAX_ROWS_BYTES:
            columns.clear()
        kernels.decode_columns(payload, count, 0, 0, None, 0, count, columns)

    def copy_few() -> None:
        kernels.copy_records(
            payload,
            count,
            load.most_dropped,
            0,
            first_offset_delta=0,
            end_offset_delta=count,
            drop_tombstones=False,
            timestamp_shift=0,
        )

    def slice_in_python() -> None:
        step = len(payload) // count
        for position in range(0, step * count, step):
            Record(
                position,
                position,
                payload[position : position + 16],
                payload[position + 16 : position + step],
            )

    def join() -> None:
        b"".join([part for record in load.records for part in (record.key, record.value) if part is not None])

    works: list[tuple[str, Callable[[], object], Callable[[], object], float]] = [
        (
            "scan / crc",
            lambda: kernels.scan_records(payload, count, count - 1),
            lambda: crc32c(payload),
            0.05,
        ),
        ("hash keys / crc", hash_keys, lambda: crc32c(payload), 0.06),
        ("copy one in 16 / crc", copy_few, lambda: crc32c(payload), 0.15),
        ("columns / copy", decode_columns, lambda: bytearray(payload), 0.02),
        ("encode / join", lambda: kernels.encode_records(load.records, 0), join, 0.3),
        ("decode / slice", lambda: kernels.decode_records(payload, count, 0, 0, None), slice_in_python, 1.0),
    ]
    for name, ours, reference, target in works:
        seconds = best_seconds(repeated(ours, rounds), repeated(reference, rounds), repeats)
        rates = [count * rounds / taken for taken in seconds]
        yield Row(
            work=f"{name}, {load.name}", unit="records/s", ours=rates[0], reference=rates[1], target=target
        )


def repeated(work: Callable[[], object], rounds: int) -> Callable[[], None]:
    def loop() -> None:
        for _ in range(rounds):
            work()

    return loop


def measure_key_streams(random: Random, count: int, repeats: int) -> Iterator[Row]:
    entries = KeyEntries()
    entries.hash_high = array("Q", random.randbytes(8 * count))
    entries.hash_low = array("Q", random.randbytes(8 * count))
    entries.ordinal = array("I", range(count))
    entries.tombstone = bytearray(count)
    high = np.frombuffer(entries.hash_high, np.uint64)
    low = np.frombuffer(entries.hash_low, np.uint64)
    ours, reference = best_seconds(
        lambda: kernels.sort_key_entries(entries), lambda: np.lexsort((low, high)), repeats
    )
    yield Row(
        work=f"sort {count} keys / numpy lexsort",
        unit="entries/s",
        ours=count / ours,
        reference=count / reference,
        target=1.5,
    )
    for stream_count, key_count in ((16, count // 15), (16, 3 * count)):
        yield measure_merge(stream_count, count // stream_count, key_count, repeats)


def measure_merge(stream_count: int, stream_entries: int, key_count: int, repeats: int) -> Row:
    """Streams of random draws from the same keys; the reference sorts the first halves of all hashes."""
    chance = np.random.default_rng(3)
    keys = chance.integers(0, 2**64, size=(key_count, 2), dtype=np.uint64)
    windows: list[KeyWindow] = []
    for _ in range(stream_count):
        drawn = keys[np.unique(chance.integers(0, key_count, size=stream_entries))]
        drawn = drawn[np.lexsort((drawn[:, 1], drawn[:, 0]))]
        ordinals = chance.permutation(stream_entries)[: len(drawn)].astype(np.uint32)
        columns = (drawn[:, 0].tobytes(), drawn[:, 1].tobytes(), ordinals.tobytes())
        windows.append(KeyWindow(*columns, b"", 0, len(drawn)))
    entries_count = sum(window.count for window in windows)
    halves = [np.frombuffer(bytes(window.hash_high), np.uint64) for window in windows]
    everything = np.concatenate(halves)

    def merge() -> None:
        kernels.merge_windows(windows, None, [bytearray(stream_entries // 8 + 1) for _ in windows])

    ours, reference = best_seconds(merge, lambda: np.sort(everything, kind="stable"), repeats)
    return Row(
        work=f"merge {stream_count} streams, {key_count} keys / sort",
        unit="entries/s",
        ours=entries_count / ours,
        reference=entries_count / reference,
        target=1.0,
    )


if __name__ == "__main__":
    sys.exit(run(measure, on_one_core=True))
