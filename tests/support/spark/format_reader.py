"""A reader of topics in plain Python, written from docs/formats alone: it shares no code with Stratalog.

It reads all commits of the catalog and of a topic's shards, from history and heads, and the record batches of
the slices that these leave. It knows no transactions: all records count, but markers. Slow and strict.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import zstandard
from crc32c import crc32c

Get = Callable[[str], bytes]
"""Reads a file of the store by its name. Raises FileNotFoundError."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Row(NamedTuple):
    """A record, and where it lies."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Slice(NamedTuple):
    """A live slice: the place of its batches, and its valid range."""

    name: str
    base_offset: int
    end_offset: int
    data_position: int
    data_bytes: int
    data_crc: int


class Shard:
    """The live slices of a shard by (topic id, partition). Not thread-safe: belongs to one read."""

    def __init__(self, get: Get, number: int) -> None:
        self._get = get
        self._prefix = f"shards/{number:04}/"
        self.slices: dict[tuple[str, int], list[Slice]] = {}
        self.starts: dict[tuple[str, int], int] = {}
        for commit in commits_of(get, self._prefix):
            for action in commit["actions"]:
                self._apply(action)

    def rows(self, tip: tuple[str, int]) -> Iterator[Row]:
        """The records of a partition, in order."""
        for live in self.slices.get(tip, []):
            data = self._get(f"{self._prefix}data/{live.name}")
            data = data[live.data_position : live.data_position + live.data_bytes]
            assert crc32c(data) == live.data_crc
            first_offset = max(live.base_offset, self.starts.get(tip, 0))
            for row in batch_rows(data, tip[1]):
                if first_offset <= row.offset < live.end_offset:
                    yield row

    def _apply(self, action: dict[str, Any]) -> None:
        kind = action["action"]
        if kind == "add":
            for tip, live in self._entries(action["object"], action):
                self.slices.setdefault(tip, []).append(live)
        elif kind == "replace":
            self._replace(action)
        elif kind == "advance_log_start":
            for topic_id, number, offset in action["starts"]:
                tip = topic_id, number
                self.starts[tip] = offset
                self.slices[tip] = [one for one in self.slices.get(tip, []) if one.end_offset > offset]
        elif kind == "lower_tiered_end":
            for topic_id, number, offset in action["ends"]:
                tip = topic_id, number
                self.slices[tip] = [one for one in self.slices.get(tip, []) if one.end_offset <= offset]
        elif kind == "drop_partitions":
            self.slices = {tip: ones for tip, ones in self.slices.items() if tip[0] != action["topic_id"]}

    def _replace(self, action: dict[str, Any]) -> None:
        clipped = {(topic_id, number): offset for topic_id, number, offset in action.get("clipped", [])}
        made: dict[tuple[str, int], list[Slice]] = {}
        for ref in action["outputs"]:
            for tip, live in self._entries(ref, action):
                base_offset = max(live.base_offset, clipped.get(tip, 0))
                if base_offset < live.end_offset:
                    made.setdefault(tip, []).append(live._replace(base_offset=base_offset))
        for tip, slices in made.items():
            slices.sort(key=lambda one: one.base_offset)
            base_offset, end_offset = slices[0].base_offset, slices[-1].end_offset
            others = [
                one
                for one in self.slices.get(tip, [])
                if not base_offset <= one.base_offset < one.end_offset <= end_offset
            ]
            self.slices[tip] = sorted([*others, *slices], key=lambda one: one.base_offset)

    def _entries(
        self, ref: dict[str, Any], action: dict[str, Any]
    ) -> Iterator[tuple[tuple[str, int], Slice]]:
        """The slices of an object that are not refused; none of one that was replaced and deleted since."""
        refused = {(topic_id, number) for topic_id, number, _ in action.get("refused", [])}
        try:
            data = self._get(f"{self._prefix}data/{ref['name']}")
        except FileNotFoundError:
            return
        begin = ref["directory_position"]
        directory = data[begin : begin + ref["directory_bytes"]]
        assert crc32c(directory) == ref["directory_crc"]
        count, entry_bytes, flags, _, size = struct.unpack_from("<IIIIQ", directory, 0)
        assert flags == 0
        assert size == len(directory)
        for index in range(count):
            entry = directory[24 + index * entry_bytes :]
            tip = str(UUID(bytes=entry[:16])), struct.unpack_from("<I", entry, 16)[0]
            base_offset, end_offset, _, position, size_bytes = struct.unpack_from("<qqqqq", entry, 24)
            (data_crc,) = struct.unpack_from("<I", entry, 144)
            if tip not in refused:
                yield (
                    tip,
                    Slice(
                        name=ref["name"],
                        base_offset=base_offset,
                        end_offset=end_offset,
                        data_position=position,
                        data_bytes=size_bytes,
                        data_crc=data_crc,
                    ),
                )


def read_topic(get: Get, name: str) -> list[Row]:
    """All records of a topic, by partition and offset."""
    identity = json.loads(get("stratalog.json"))
    topics: dict[str, tuple[str, int]] = {}
    for commit in commits_of(get, "catalog/"):
        for action in commit["actions"]:
            if action["action"] == "create":
                topics[action["name"]] = action["topic_id"], action["partition_count"]
            elif action["action"] == "delete":
                topics = {key: value for key, value in topics.items() if value[0] != action["topic_id"]}
    topic_id, partition_count = topics[name]
    rows: list[Row] = []
    for number in range(partition_count):
        (first,) = struct.unpack(">I", UUID(topic_id).bytes[:4])
        shard = (first + number) % identity["shard_count"]
        rows += Shard(get, shard).rows((topic_id, number))
    return rows


def commits_of(get: Get, prefix: str) -> list[dict[str, Any]]:
    """All commits of a log, from the first one on."""
    try:
        head = document(get(f"{prefix}head"))
    except FileNotFoundError:
        return []
    parts = [head["commits"]]
    history = head["history"]
    while history is not None:
        part = document(get(f"{prefix}history/{history['name']}"))
        parts.append(part["commits"])
        history = part["predecessor"]
    commits: list[dict[str, Any]] = [commit for part in reversed(parts) for commit in part]
    assert [commit["seq"] for commit in commits] == list(range(1, head["seq"] + 1))
    return commits


def document(data: bytes) -> dict[str, Any]:
    """A JSON file, which may be a zstd frame."""
    if data.startswith(ZSTD_MAGIC):
        data = zstandard.ZstdDecompressor().decompress(data)
    parsed: dict[str, Any] = json.loads(data)
    return parsed


def batch_rows(data: bytes, partition: int) -> Iterator[Row]:
    """The records of record batches that are no markers."""
    position = 0
    while position < len(data):
        base_offset, length, _, magic, crc, attributes = struct.unpack_from(">qiibIh", data, position)
        (base_timestamp, max_timestamp) = struct.unpack_from(">qq", data, position + 27)
        (count,) = struct.unpack_from(">i", data, position + 57)
        end = position + 12 + length
        assert magic == 2
        assert crc32c(data[position + 21 : end]) == crc
        section = io.BytesIO(decompressed(attributes & 7, data[position + 61 : end]))
        is_append_time = bool(attributes & 8)
        for _ in range(0 if attributes & 32 else count):
            varint(section)
            section.read(1)
            timestamp_ms = base_timestamp + varint(section)
            offset = base_offset + varint(section)
            key, value = part(section), part(section)
            headers = tuple(((part(section) or b"").decode(), part(section)) for _ in range(varint(section)))
            if is_append_time:
                timestamp_ms = max_timestamp
            yield Row(
                partition=partition,
                offset=offset,
                timestamp_ms=timestamp_ms,
                timestamp_type=int(is_append_time),
                key=key,
                value=value,
                headers=headers,
            )
        position = end


def decompressed(codec: int, section: bytes) -> bytes:
    """A records section: uncompressed, gzip or zstd."""
    if codec == 1:
        return gzip.decompress(section)
    if codec == 4:
        return zstandard.ZstdDecompressor().decompressobj().decompress(section)
    assert codec == 0, "tests of this reader write no other codec"
    return section


def varint(section: io.BytesIO) -> int:
    """A zigzag number of variable length."""
    shift = number = 0
    while True:
        (byte,) = section.read(1)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)


def part(section: io.BytesIO) -> bytes | None:
    """A key, a value or a header's part, after its size; None for -1."""
    size = varint(section)
    return None if size < 0 else section.read(size)
