"""`stratalog log dump` of what a real broker wrote, beside what Kafka's own DumpLogSegments says of it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.commands.log_commands import log
from stratalog.cli.log_dump.file_kinds import known_file
from tests.support.places import GOLDEN

DATA = GOLDEN / "data"
TOPICS = ["appendtime", "codecs", "compacted", "recompressed", "txn"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(log, ["dump", *map(str, arguments)])


def dumped(*arguments: str | Path) -> list[dict[str, Any]]:
    """The JSON lines of a dump in which nothing is wrong."""
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert lines == [json.dumps(item, ensure_ascii=False, sort_keys=True) for item in documents]
    return documents


def files_of(topic: str, suffix: str) -> list[Path]:
    return sorted((DATA / f"g1-{topic}-0").glob(f"*{suffix}"))


ALL_FILES = [path for topic in TOPICS for path in files_of(topic, "")]


def kafka_sections(topic: str) -> dict[str, list[dict[str, str]]]:
    """The output of Kafka's tool for each file: names and values of each line."""
    sections: dict[str, list[dict[str, str]]] = {}
    lines: list[dict[str, str]] = []
    for line in (GOLDEN / "expected" / f"{topic}.dump.txt").read_text().splitlines():
        if line.startswith("Dumping "):
            lines = sections.setdefault(line.rpartition("/")[2], [])
        elif not line.startswith("Log starting offset"):
            lines.append(dict(re.findall(r"(\w+): (\S+)", line)))
    return sections


def optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def as_kafka_prints_a_batch(batch: dict[str, Any]) -> dict[str, str]:
    shown = {
        "baseOffset": batch["base_offset"],
        "lastOffset": batch["last_offset"],
        "count": batch["records_count"],
        "baseSequence": batch["base_sequence"],
        "lastSequence": batch["last_sequence"],
        "producerId": batch["producer_id"],
        "producerEpoch": batch["producer_epoch"],
        "partitionLeaderEpoch": batch["leader_epoch"],
        "isTransactional": str(batch["is_transactional"]).lower(),
        "isControl": str(batch["is_control"]).lower(),
        "deleteHorizonMs": optional(batch["delete_horizon_ms"]),
        "position": batch["position"],
        batch["timestamp_type"]: batch["max_timestamp"],
        "size": batch["size_bytes"],
        "magic": batch["magic"],
        "compresscodec": batch["codec"],
        "crc": batch["crc"],
        "isvalid": str(batch["crc_matches"]).lower(),
    }
    return {name: str(value) for name, value in shown.items()}


def as_kafka_prints_a_producer(producer: dict[str, Any]) -> dict[str, str]:
    shown = {
        "producerId": producer["producer_id"],
        "producerEpoch": producer["producer_epoch"],
        "coordinatorEpoch": producer["coordinator_epoch"],
        "currentTxnFirstOffset": optional(producer["current_txn_first_offset"]),
        "lastTimestamp": producer["last_timestamp"],
    }
    if producer["last_offset"] is not None:
        shown |= {
            "firstSequence": producer["first_sequence"],
            "lastSequence": producer["last_sequence"],
            "lastOffset": producer["last_offset"],
            "offsetDelta": producer["last_offset"] - producer["first_offset"],
            "timestamp": producer["last_timestamp"],
        }
    return {name: str(value) for name, value in shown.items()}


def as_kafka_prints_an_abort(transaction: dict[str, Any]) -> dict[str, str]:
    return {
        "version": "0",
        "producerId": str(transaction["producer_id"]),
        "firstOffset": str(transaction["first_offset"]),
        "lastOffset": str(transaction["last_offset"]),
        "lastStableOffset": str(transaction["last_stable_offset"]),
    }


@pytest.mark.parametrize("topic", TOPICS)
def test_everything_is_what_kafkas_tool_prints(topic: str) -> None:
    printers = {
        "batch": as_kafka_prints_a_batch,
        "producer": as_kafka_prints_a_producer,
        "aborted_transaction": as_kafka_prints_an_abort,
    }
    sections = kafka_sections(topic)
    ours: dict[str, list[dict[str, str]]] = {name: [] for name in sections}
    for item in dumped(DATA / f"g1-{topic}-0"):
        if item["type"] in printers:
            ours[item["file"]].append(printers[item["type"]](item))
    assert ours == sections
    assert any(sections.values())


@pytest.mark.parametrize("topic", TOPICS)
def test_records_are_those_that_kafkas_consumer_got(topic: str) -> None:
    control, records = set[int](), list[dict[str, Any]]()
    for item in dumped("--records", DATA / f"g1-{topic}-0"):
        if item["type"] == "batch" and item["is_control"]:
            control |= {item["base_offset"]}
        elif item["type"] == "record" and item["offset"] not in control:
            records.append(item)
    text = (GOLDEN / "expected" / f"{topic}.read_uncommitted.jsonl").read_text()
    expected = [json.loads(line) for line in text.splitlines()]
    # The log start has moved on inside a batch.
    records = [record for record in records if record["offset"] >= expected[0]["offset"]]
    assert [as_consumed(record) for record in records] == [
        {name: value for name, value in record.items() if name != "timestamp_type"} for record in expected
    ]


def as_consumed(record: dict[str, Any]) -> dict[str, Any]:
    """A record as the expected lines have it: every byte string in base64."""
    return {
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "key": as_base64(record["key"]),
        "value": as_base64(record["value"]),
        "headers": [[header["key"], as_base64(header["value"])] for header in record["headers"]],
    }


def as_base64(value: str | dict[str, str] | None) -> str | None:
    if isinstance(value, dict):
        return value["base64"]
    return None if value is None else base64.b64encode(value.encode()).decode()


def test_markers_say_how_their_transactions_ended() -> None:
    items = dumped(DATA / "g1-txn-0")
    aborted = {item["last_offset"] for item in items if item["type"] == "aborted_transaction"}
    markers = {item["base_offset"]: item for item in items if item.get("is_control")}
    assert {offset for offset, item in markers.items() if item["control_type"] == "abort"} == aborted
    assert {item["control_type"] for item in markers.values()} == {"abort", "commit"}
    assert {item["coordinator_epoch"] for item in markers.values()} == {0}
    assert {item["control_type"] for item in items if item.get("is_control") is False} == {None}


@pytest.mark.parametrize("topic", TOPICS)
def test_indexes_of_a_broker_agree_with_their_segments(topic: str) -> None:
    items = dumped("--index-sanity-check", DATA / f"g1-{topic}-0")
    sizes = {"offset_index_entry": 8, "time_index_entry": 12, "aborted_transaction": 34}
    suffixes = {"offset_index_entry": ".index", "time_index_entry": ".timeindex"}
    for entry_type, size_bytes in sizes.items():
        files = files_of(topic, suffixes.get(entry_type, ".txnindex"))
        found = [item for item in items if item["type"] == entry_type]
        assert len(found) == sum(path.stat().st_size for path in files) // size_bytes


def test_files_of_the_data_directory() -> None:
    items = dumped(DATA)
    offsets = {
        name: {(item["topic"], item["partition"]): item["offset"] for item in items if item["file"] == name}
        for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint")
    }
    assert offsets["log-start-offset-checkpoint"] == {("g1-recompressed", 0): 37}
    assert offsets["replication-offset-checkpoint"] == {
        (f"g1-{topic}", 0): end for topic, end in zip(TOPICS, [150, 438, 6083, 200, 259], strict=True)
    }
    known = {path.name for path in DATA.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert {item["file"] for item in items} == known
    properties = {item["name"]: item["value"] for item in items if item["type"] == "property"}
    assert properties["directory.id"] == "66OiJamjSDoWdGb695vWvA"
    directory = DATA / "g1-txn-0"
    assert dumped(directory / "leader-epoch-checkpoint") == [
        {"file": "leader-epoch-checkpoint", "type": "leader_epoch", "leader_epoch": 0, "start_offset": 0}
    ]
    [metadata] = dumped(directory / "partition.metadata")
    kafka_id = (directory / "partition.metadata").read_text().rpartition(" ")[2].strip()
    assert bytes.fromhex(metadata["topic_id"].replace("-", "")) == base64.urlsafe_b64decode(kafka_id + "==")


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_text_says_what_json_says_and_nothing_is_changed(path: Path) -> None:
    before = path.read_bytes()
    text = run(path)
    assert text.exit_code == 0
    heading, *rows = text.stdout.splitlines()
    assert heading.startswith(f"{path.name}: ")
    assert f"{len(before):,} bytes" in heading
    items = dumped(path)
    assert len(rows) == (len(items) + 1 if items else 0)
    for item, row in zip(items, rows[1:], strict=True):
        words = set(re.split(r"[ :,=.]+", row))
        names = ("position", "base_offset", "last_offset", "crc", "producer_id", "leader_epoch", "topic_id")
        shown = {str(item[name]) for name in names if item.get(name, -1) not in {-1, None}}
        assert shown <= words, row
        assert not {"-1", "-1:-1", "-1..-1"} & set(row.split()), "Kafka's none is a dash"
    assert path.read_bytes() == before


def test_a_part_of_a_file() -> None:
    [segment] = files_of("codecs", ".log")
    batches = dumped(segment)
    assert dumped("--offset", "178", segment) == batches[2:]
    assert dumped("--offset", "179", "--max", "2", segment) == batches[3:5]
    assert dumped("--offset", "438", segment) == []
    some = dumped("--records", "--max", "2", segment)
    assert [item for item in some if item["type"] == "batch"] == batches[:2]
    assert len(some) == 2 + 69
    [index] = files_of("codecs", ".index")
    assert [item["offset"] for item in dumped("--offset", "69", index)] == [242, 360, 437]
    assert [item["offset"] for item in dumped("--max", "1", index)] == [68]


def test_a_long_table_grows_with_its_cells_and_keeps_its_order(tmp_path: Path) -> None:
    index = tmp_path / f"{0:020}.index"
    entries = [(number * 1000, number * 997) for number in range(1, 3000)]
    index.write_bytes(b"".join(part.to_bytes(4, "big") for entry in entries for part in entry))
    rows = run(index).stdout.splitlines()[2:]
    assert [tuple(map(int, row.split())) for row in rows] == entries


@pytest.mark.parametrize(
    "name", ["orders.log", "1.log", f"{2**63:020}.log", f"{0:020}.bak", "meta", ".log", "quorum-state"]
)
def test_a_name_that_says_nothing_is_refused(tmp_path: Path, name: str) -> None:
    assert known_file(PosixFileSystem(), name) is None
    (tmp_path / name).write_bytes(files_of("codecs", ".log")[0].read_bytes())
    result = run(tmp_path / name)
    assert isinstance(result.exception, DataDirectoryError)


@pytest.mark.parametrize("suffix", [".deleted", ".swap", ".cleaned"])
def test_files_of_an_interrupted_step_are_known_as_what_they_were(tmp_path: Path, suffix: str) -> None:
    for path in files_of("codecs", "0.*"):
        shutil.copy(path, tmp_path / f"{path.name}{suffix}")
    items = dumped("--index-sanity-check", tmp_path)
    assert [item["base_offset"] for item in items if item["type"] == "batch"] == [0, 68, 69, 179, 243, 361]
    known = known_file(PosixFileSystem(), f"/x/{7:020}.txnindex{suffix}")
    assert known is not None
    assert (known.kind.title, known.file.offset) == ("transaction index", 7)
    assert known.file.beside(".log") == f"/x/{7:020}.log{suffix}"


def test_a_directory_without_a_file_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "notes.txt").write_text("nothing")
    result = run(tmp_path)
    assert isinstance(result.exception, DataDirectoryError)
