"""`stratalog log dump` of damaged files: what it finds, and that it goes on."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.cli.commands.log_commands import log
from stratalog.cli.log_dump import segment_rows
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, DumpOptions, Row
from stratalog.cli.log_dump.file_kinds import known_file, known_files_in
from stratalog.manager.directories.manifest import Manifest, PartitionEntry
from stratalog.manager.directories.meta_properties import (
    DIRECTORY_ID,
    META_FILE,
    META_VERSION,
    STORE_ID,
    VERSION,
    format_meta_properties,
)
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BATCH_LENGTH_POSITION,
    CRC_POSITION,
    LEADER_EPOCH_POSITION,
    MAX_TIMESTAMP_POSITION,
)
from stratalog.record.record import Record
from stratalog.remote.metadata.ownership.claims import ClaimsFile
from stratalog.remote.metadata.ownership.seen_heads import SeenHead, format_seen_heads
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.edited_manifest import format_manifest
from tests.support.logs.log_machine import PARTITION_DIR
from tests.support.logs.varied_log import VariedLog
from tests.support.places import GOLDEN

DATA = GOLDEN / "data"
CODECS = DATA / "g1-codecs-0"
COMPACTED = DATA / "g1-compacted-0"
TXN = DATA / "g1-txn-0"
FIRST = f"{0:020}"
DIRECTORY = "/log"
EVERYTHING = DumpOptions(with_records=True, compares_indexes=True)


def dump_bytes(
    name: str, data: bytes, *, beside: Path | None = None, options: DumpOptions = EVERYTHING
) -> list[DumpItem]:
    """Dump a file with these contents, with the other files of `beside` in its directory."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories(DIRECTORY)
    for path in beside.iterdir() if beside is not None else ():
        write(filesystem, path.name, path.read_bytes())
    write(filesystem, name, data)
    return items_of(filesystem, f"{DIRECTORY}/{name}", options)


def items_of(filesystem: FileSystem, path: str, options: DumpOptions = EVERYTHING) -> list[DumpItem]:
    known = known_file(filesystem, path)
    assert known is not None
    return list(known.items(options))


def write(filesystem: MemoryFileSystem, name: str, data: bytes) -> None:
    file = filesystem.open_append(f"{DIRECTORY}/{name}")
    file.truncate(0)
    file.append([data])
    file.close()


def corrupt(items: list[DumpItem]) -> list[CorruptPlace]:
    return [item for item in items if isinstance(item, CorruptPlace)]


def base_offsets(items: list[DumpItem]) -> list[object]:
    return [item.fields["base_offset"] for item in items if isinstance(item, Row) and item.type == "batch"]


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every one of the bits, each alone, with the position of its byte."""
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)


def test_every_flipped_bit_of_a_segment_is_found_but_for_two_fields_upwards() -> None:
    name = f"{6081:020}.log"
    data = (COMPACTED / name).read_bytes()
    starts = [position for position, _ in batches(data)]
    unseen = {
        position - max(start for start in starts if start <= position)
        for position, changed in flipped(data)
        if not corrupt(dump_bytes(name, changed))
    }
    # The checksum leaves these out, and nothing in the file says where the last batch ends.
    base_offset = range(BASE_OFFSET_POSITION, BATCH_LENGTH_POSITION)
    leader_epoch = range(LEADER_EPOCH_POSITION, LEADER_EPOCH_POSITION + 4)
    assert unseen <= {*base_offset, *leader_epoch}


@pytest.mark.parametrize(
    ("path", "suffix"), [(CODECS, ".index"), (CODECS, ".timeindex"), (COMPACTED, ".index")]
)
def test_every_flipped_bit_of_an_index_is_found_beside_its_segment(path: Path, suffix: str) -> None:
    data = (path / f"{FIRST}{suffix}").read_bytes()
    assert not corrupt(dump_bytes(f"{FIRST}{suffix}", data, beside=path))
    for position, changed in flipped(data):
        assert corrupt(dump_bytes(f"{FIRST}{suffix}", changed, beside=path)), position


def test_a_transaction_index_is_held_against_the_markers() -> None:
    name = f"{2:020}.txnindex"
    data = (TXN / name).read_bytes()
    assert not corrupt(dump_bytes(name, data, beside=TXN))
    for position, changed in flipped(data[:34]):
        # First offset and last stable offset are not said by the marker.
        is_found = bool(corrupt(dump_bytes(name, changed + data[34:], beside=TXN)))
        assert is_found or 10 <= position < 18 or 26 <= position < 34, position
    commit = struct.pack(">hqqqq", 0, 2, 0, 2, 3)
    [place] = corrupt(dump_bytes(name, commit, beside=TXN))
    assert "does not abort" in place.reason


def test_a_seal_is_held_against_the_files_beside_it() -> None:
    varied = VariedLog()
    filesystem = varied.disk({})
    known_files = known_files_in(filesystem, PARTITION_DIR)
    files = [known.file for known in known_files if known.file.name.endswith(".seal")]
    assert len([file for file in files if filesystem.exists(file.beside(".txnindex"))]) > 1
    for file in files:
        seal = SegmentSeal.from_bytes(varied.file(file.path))
        [item] = items_of(filesystem, file.path)
        assert isinstance(item, Row)
        assert (item.type, item.fields["log_size_bytes"]) == ("seal", seal.log_size_bytes)
        beside = [file.beside(suffix) for suffix in (".index", ".timeindex", ".txnindex", ".log")]
        present = [path for path in beside if filesystem.exists(path)]
        for path in (file.path, *present[:-1]):
            changed = (
                varied.file(path)[:-1] + bytes([varied.file(path)[-1] ^ 1]) if varied.file(path) else b"?"
            )
            assert corrupt(items_of(varied.disk({path: changed}), file.path))
        for path in present:
            [place] = corrupt(items_of(varied.disk({path: None}), file.path))
            assert path.rpartition("/")[2] in place.reason
        longer = varied.disk({present[-1]: varied.file(present[-1]) + b"\0"})
        [place] = corrupt(items_of(longer, file.path))
        assert str(seal.log_size_bytes + 1) in place.reason
        assert not corrupt(items_of(longer, file.path, DumpOptions()))


def test_the_manifest_is_shown(tmp_path: Path) -> None:
    entry = PartitionEntry(
        UUID(int=7), log_start_offset=105_823, import_epoch=12, horizon_ms=1_700_000_000_000
    )
    manifest = format_manifest(Manifest("id", {}, {TopicPartition("orders", 0): entry}))
    (tmp_path / "manifest").write_bytes(manifest)
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"manifest: manifest of a log directory, {len(manifest)} bytes",
        "TOPIC   PARTITION  TOPIC ID                              STATE  LOG START OFFSET  IMPORT EPOCH"
        "  CLEAN DUE",
        "orders          0  00000000-0000-0000-0000-000000000007  live             105823            12"
        "  2023-11-14T22:13:20.000Z",
    ]
    for _, changed in flipped(manifest):
        assert corrupt(dump_bytes("manifest", changed))


def test_claims_are_shown(tmp_path: Path) -> None:
    ClaimsFile(PosixFileSystem(), str(tmp_path), 3).write(frozenset({UUID(int=9), UUID(int=5)}))
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "claims-0003: claims of a shard, 74 bytes",
        "CLAIM",
        str(UUID(int=5)),
        str(UUID(int=9)),
    ]
    [place] = corrupt(dump_bytes("claims-0003", b"neither\n"))
    assert place.unreached_bytes == len(b"neither\n")


def test_the_heads_that_were_seen_are_shown(tmp_path: Path) -> None:
    data = format_seen_heads({3: SeenHead(118, UUID(int=5), 4, UUID(int=9))})
    (tmp_path / "seen-heads").write_bytes(data)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == f"seen-heads: newest heads that were seen, {len(data)} bytes"
    assert result.stdout.splitlines()[2].split() == ["3", "118", str(UUID(int=5)), "4", str(UUID(int=9))]
    [place] = corrupt(dump_bytes("seen-heads", data[:-1]))
    assert place.unreached_bytes == len(data) - 1


def test_what_is_behind_a_wrong_checksum_is_shown() -> None:
    data = bytearray((CODECS / f"{FIRST}.log").read_bytes())
    data[5647 + 70] ^= 1
    items = dump_bytes(f"{FIRST}.log", bytes(data))
    assert base_offsets(items) == [0, 68, 69, 179, 243, 361]
    [place] = corrupt(items)
    assert (place.position, place.unreached_bytes) == (5647, 0)
    assert "checksum" in place.reason
    offsets = [item.fields["offset"] for item in items if isinstance(item, Row) and "offset" in item.fields]
    assert offsets == [offset for offset in range(438) if offset != 68]


@pytest.mark.parametrize(("has_index", "resumed"), [(True, [243, 361]), (False, [])])
def test_where_no_batch_can_begin_the_index_tells_where_to_go_on(has_index: bool, resumed: list[int]) -> None:
    data = bytearray((CODECS / f"{FIRST}.log").read_bytes())
    data[11626 + BATCH_LENGTH_POSITION] = 0x7F
    items = dump_bytes(f"{FIRST}.log", bytes(data), beside=CODECS if has_index else None)
    assert base_offsets(items) == [0, 68, 69, *resumed]
    [place] = corrupt(items)
    assert place.position == 11626
    assert place.unreached_bytes == (16481 if has_index else len(data)) - 11626
    assert "the length of the batch is wrong" in place.reason


def test_a_segment_may_be_cut_anywhere() -> None:
    name = f"{6081:020}.log"
    data = (COMPACTED / name).read_bytes()
    ends = [position + header.size_in_bytes for position, header in batches(data)]
    for size_bytes in range(len(data) + 1):
        items = dump_bytes(name, data[:size_bytes])
        whole = [end for end in ends if end <= size_bytes]
        assert len(base_offsets(items)) == len(whole)
        rest_bytes = size_bytes - max(whole, default=0)
        assert sum(place.unreached_bytes for place in corrupt(items)) == rest_bytes


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_may_be_cut_anywhere(suffix: str) -> None:
    name = f"{2:020}{suffix}"
    data = (TXN / name).read_bytes()
    entry_size = {".index": 8, ".timeindex": 12, ".txnindex": 34}[suffix]
    for size_bytes in range(len(data) + 1):
        items = dump_bytes(name, data[:size_bytes], beside=TXN)
        whole_count, rest_bytes = divmod(size_bytes, entry_size)
        assert len(items) - len(corrupt(items)) == whole_count
        assert [place.unreached_bytes for place in corrupt(items)] == [rest_bytes] * (rest_bytes > 0)


def test_offsets_and_epochs_that_go_back_are_found_at_the_batch_that_does() -> None:
    def batch(base_offset: int, leader_epoch: int) -> bytes:
        return encode_batch([Record(0, 5, None, b"v")], base_offset=base_offset, leader_epoch=leader_epoch)

    data = [batch(10, 3), batch(9, 3), batch(11, 2), batch(2**31 + 10, 2)]
    places = corrupt(dump_bytes(f"{10:020}.log", b"".join(data)))
    assert [(place.position or 0) // len(data[0]) for place in places] == [1, 2, 3]
    assert ["below 11" in places[0].reason, "below 3" in places[1].reason] == [True, True]
    assert "too far" in places[2].reason
    [place] = corrupt(dump_bytes(f"{11:020}.log", data[0]))
    assert "below that of the file's name" in place.reason


@pytest.mark.parametrize(
    ("path", "suffix", "entry_size"),
    [(CODECS, ".index", 8), (CODECS, ".timeindex", 12), (TXN, ".txnindex", 34)],
)
def test_entries_that_do_not_ascend_are_found_without_the_segment(
    path: Path, suffix: str, entry_size: int
) -> None:
    name = f"{0 if path is CODECS else 86:020}{suffix}"
    data = (path / name).read_bytes()
    assert not corrupt(dump_bytes(name, data, options=DumpOptions()))
    swapped = data[entry_size : 2 * entry_size] + data[:entry_size] + data[2 * entry_size :]
    assert corrupt(dump_bytes(name, swapped, options=DumpOptions()))[0].position == entry_size


def test_zeros_behind_the_last_entry_are_what_a_broker_preallocates() -> None:
    for suffix in (".index", ".timeindex"):
        data = (CODECS / f"{FIRST}{suffix}").read_bytes()
        items = dump_bytes(f"{FIRST}{suffix}", data + bytes(len(data) * 1000), beside=CODECS)
        assert not corrupt(items)
        assert items[-1] == Row("preallocated", {"position": len(data), "size_bytes": len(data) * 1000})
        [only] = dump_bytes(f"{FIRST}{suffix}", bytes(240))
        assert only == Row("preallocated", {"position": 0, "size_bytes": 240})
        assert corrupt(dump_bytes(f"{FIRST}{suffix}", data + bytes(len(data)) + data, beside=CODECS))
    data = (TXN / f"{2:020}.txnindex").read_bytes()
    assert corrupt(dump_bytes(f"{2:020}.txnindex", data + bytes(34)))


def test_a_zero_timestamp_may_be_the_first_of_an_index() -> None:
    [entry] = dump_bytes(f"{FIRST}.timeindex", bytes(12), beside=None)[:1]
    assert entry == Row("time_index_entry", {"offset": 0, "timestamp": 0})


def test_a_time_index_holds_the_highest_timestamp_so_far(tmp_path: Path) -> None:
    times = [9, 5]
    batch_bytes = [
        encode_batch([Record(0, time, None, b"v")], base_offset=offset) for offset, time in enumerate(times)
    ]
    (tmp_path / f"{FIRST}.log").write_bytes(b"".join(batch_bytes))
    [place] = corrupt(dump_bytes(f"{FIRST}.timeindex", struct.pack(">qi", 5, 1), beside=tmp_path))
    assert place.reason == "a batch before it has the timestamp 9"
    assert not corrupt(dump_bytes(f"{FIRST}.timeindex", struct.pack(">qi", 9, 0), beside=tmp_path))


def test_an_index_without_a_segment_says_so() -> None:
    data = (CODECS / f"{FIRST}.index").read_bytes()
    places = corrupt(dump_bytes(f"{FIRST}.index", data))
    assert len(places) == len(data) // 8
    assert all("there is no segment beside the index" in place.reason for place in places)


def test_a_batch_that_would_grow_without_bound_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_rows, "MAX_BATCH_BYTES", 1_000_000)
    bomb = encode_batch([Record(0, 5, None, bytes(2_000_000))], codec=Codec.ZSTD)
    assert len(bomb) < 1000
    items = dump_bytes(f"{FIRST}.log", bomb + encode_batch([Record(0, 5, None, b"v")], base_offset=1))
    assert base_offsets(items) == [0, 1]
    [place] = corrupt(items)
    assert "max_bytes=`1000000`" in place.reason


def test_a_batch_that_is_too_large_is_proved_but_its_records_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_rows, "MAX_BATCH_BYTES", 1000)
    large = encode_batch([Record(0, 5, None, bytes(2000))])
    [batch, place] = dump_bytes(f"{FIRST}.log", large)
    assert isinstance(batch, Row)
    assert batch.fields["crc_matches"] is True
    assert isinstance(place, CorruptPlace)
    assert "larger than 1000 bytes" in place.reason


def summed(batch: bytearray) -> bytes:
    """The batch with the checksum that its bytes have now."""
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc32c(batch[ATTRIBUTES_POSITION:]).to_bytes(4, "big")
    return bytes(batch)


def test_a_header_that_its_records_contradict_is_found_with_them() -> None:
    batch = bytearray(encode_batch([Record(0, 5, None, b"v")]))
    batch[MAX_TIMESTAMP_POSITION + 7] = 6
    items = dump_bytes(f"{FIRST}.log", summed(batch))
    assert [item.type for item in items if isinstance(item, Row)] == ["batch", "record"]
    [place] = corrupt(items)
    assert "highest timestamp" in place.reason


def test_records_before_a_broken_one_are_shown() -> None:
    batch = bytearray(encode_batch([Record(0, 5, None, bytes([65 + number])) for number in range(3)]))
    last_record_bytes = 8
    batch[-last_record_bytes] = 0x7F
    items = dump_bytes(f"{FIRST}.log", summed(batch))
    values = [item.fields["value"] for item in items if isinstance(item, Row) and item.type == "record"]
    assert values == ["A", "B"]
    assert len(corrupt(items)) == 1


SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".seal", ".snapshot")

OF_OURS = {
    *(f"{FIRST}.seal", "manifest", "claims-0000", "seen-heads"),
}

NEVER_EMPTY = {f"{FIRST}.snapshot", "partition.metadata", "meta.properties", *OF_OURS}


NAMES = [
    *(f"{FIRST}{suffix}" for suffix in SUFFIXES),
    "leader-epoch-checkpoint",
    "partition.metadata",
    "replication-offset-checkpoint",
    "manifest",
    "meta.properties",
    "claims-0000",
    "seen-heads",
]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=300))
def test_garbage_is_said_to_be_garbage_and_nothing_else_happens(name: str, data: bytes) -> None:
    for item in dump_bytes(name, data, beside=CODECS):
        if isinstance(item, Row):
            json.dumps(item.fields)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_has_nothing_or_is_not_one_of_its_kind(name: str) -> None:
    found = dump_bytes(name, b"")
    assert bool(corrupt(found)) == (name in NEVER_EMPTY), (
        "a broker makes the others before it has anything to write"
    )


# --- as the command ----------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(log, ["dump", *map(str, arguments)])


def test_damage_is_marked_counted_and_ends_in_exit_code_one(tmp_path: Path) -> None:
    data = bytearray((CODECS / f"{FIRST}.log").read_bytes())
    data[100] ^= 1
    (tmp_path / f"{FIRST}.log").write_bytes(data + b"torn")
    result = run(tmp_path)
    assert isinstance(result.exception, CorruptRecordError)
    assert str(result.exception.fields["first"]) == f"{FIRST}.log@0"
    marked = [line for line in result.stdout.splitlines() if line.startswith("CORRUPT")]
    assert marked[0] == "CORRUPT at position 0: its checksum does not match its bytes"
    assert marked[1].startswith(f"CORRUPT at position {len(data)}: ")
    assert marked[1].endswith("; 4 bytes not reached")
    assert result.stdout.count("WRONG") == 1
    documents = [json.loads(line) for line in run("--json", tmp_path).stdout.splitlines()]
    assert [
        (item["position"], item["unreached_bytes"]) for item in documents if item["type"] == "corrupt"
    ] == [
        (0, 0),
        (len(data), 4),
    ]


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / f"{FIRST}.log").mkdir()
    result = run(tmp_path / f"{FIRST}.log")
    assert isinstance(result.exception, DataDirectoryError)


@pytest.mark.parametrize("offset", [2**63, 10**40, -1])
def test_an_offset_that_no_log_has_is_marked(offset: int) -> None:
    items = dump_bytes("replication-offset-checkpoint", f"0\n1\nt 0 {offset}\n".encode())
    [place] = corrupt(items)
    assert "out of range" in place.reason
    assert not corrupt(dump_bytes("replication-offset-checkpoint", f"0\n1\nt 0 {2**63 - 1}\n".encode()))


EMPTY_AT_FIRST = [
    *("cleaner-offset-checkpoint", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint"),
    *("replication-offset-checkpoint", "t-0/leader-epoch-checkpoint"),
]


@pytest.mark.parametrize("name", EMPTY_AT_FIRST)
def test_what_a_broker_has_not_written_yet_is_no_damage_and_in_a_server_s_directory_it_is(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / name).touch()

    def exit_code() -> int:
        return CliRunner().invoke(log, ["dump", str(tmp_path / name), "--json"]).exit_code

    assert exit_code() == 0
    properties = {VERSION: META_VERSION, DIRECTORY_ID: "d"}
    (tmp_path / META_FILE).write_text(format_meta_properties({**properties, "cluster.id": "x"}))
    assert exit_code() == 0
    (tmp_path / META_FILE).write_text(format_meta_properties({**properties, STORE_ID: "x"}))
    assert exit_code() == 1
