"""`stratalog log dump` of the files of a store: by URL and key, by path, copied, and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import zstandard
from click.testing import CliRunner, Result

from stratalog.base.errors import CorruptRecordError, ObjectNotFoundError
from stratalog.cli.commands.log_commands import log
from stratalog.cli.log_dump.document_rows import HIDDEN
from stratalog.cli.log_dump.partial_json import read_partial_object
from stratalog.objectstore.open_store import open_store
from stratalog.record.record import Record
from stratalog.remote.json_document import format_json
from stratalog.remote.objects.object_format import (
    FOOTER,
    ObjectHeader,
    ObjectKind,
    encode_header,
)
from stratalog.remote.store_layout import StoreLayout
from tests.support.stored_heads import head_bytes, head_fields
from tests.support.tiered.metadata_example import example_store
from tests.support.tiered.tiered_site import TieredSite

SHARD = StoreLayout(0)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(log, ["dump", *map(str, arguments)])


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The directory of the example store: only its objects are not what they seem."""
    root = tmp_path / "data.store"
    copied = open_store(f"file://{root}")
    example = example_store().store
    for found in example.list(""):
        copied.put(found.key, example.get(found.key).data)
    return root


def documents(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and "data" not in path.parts and path.name != ".lock"
    )


def test_every_document_is_printed_whole(store: Path) -> None:
    found = documents(store)
    assert len(found) == 9
    for path in found:
        key = str(path.relative_to(store))
        by_url = run(f"file://{store}", "--key", key, "--json")
        assert by_url.exit_code == 0, by_url.output
        by_path = run(path, "--json")
        assert by_path.stdout == by_url.stdout
        first, *rest = rows(by_url)
        text = path.read_bytes()
        text = text if text.startswith(b"{") else zstandard.decompress(text)
        document, *values = map(json.loads, text.splitlines())
        if values:
            assert len(values) == len(document["lines"])
            document["rows"] = [None] * document["row_count"]
        for field, row_type in (("commits", "commit"), ("pages", "page"), ("rows", "page_row")):
            items = document.pop(field, [])
            assert len([row for row in rest if row["type"] == row_type]) == len(items)
        assert {name: first[name] for name in document} == document
        assert run(path).exit_code == 0


def test_secrets_are_not_printed(store: Path) -> None:
    result = run(f"file://{store}", "--key", "catalog/head", "--json")
    actions = [action for row in rows(result)[1:] for action in row["actions"]]
    secrets = [action["hash_key"] for action in actions if action["action"] == "create"]
    assert secrets == [HIDDEN, HIDDEN]
    text = (store / "catalog" / "head").read_text()
    for action in (one for commit in json.loads(text)["commits"] for one in commit["actions"]):
        if action["action"] == "create":
            assert action["hash_key"] not in result.stdout + run(store).stdout


def test_a_store_is_printed_by_its_identity_and_heads(store: Path) -> None:
    for place in (store, f"file://{store}"):
        result = run(place)
        assert result.exit_code == 0, result.output
        titles = [line for line in result.stdout.splitlines() if " byte" in line]
        assert [title.partition(",")[0] for title in titles] == [
            "stratalog.json: identity of a store",
            "catalog/head: head",
            "shards/0000/head: head",
        ]
    pages = run(f"file://{store}", "--key", "shards/0000/pages", "--json")
    assert {row["type"] for row in rows(pages)} == {"page_file", "page_row"}
    assert len({row["file"] for row in rows(pages)}) == 4
    missing = run(f"file://{store}", "--key", "shards/0001/head")
    assert isinstance(missing.exception, ObjectNotFoundError)


def test_a_page_by_columns_is_printed_by_rows(store: Path) -> None:
    pages = (store / "shards/0000/pages").iterdir()
    [path] = [path for path in pages if b'"kind":"slices"' in path.read_bytes()]
    printed = rows(run(path, "--json"))[1:]
    assert [
        (row["partition"], row["base_offset"], row["end_offset"], row["index"], row["leader_epochs"])
        for row in printed
    ] == [(0, 0, 700, [4796, 64, 5], [[1, 0]]), (1, 0, 50, [34796, 64, 5], [[1, 0]])]
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:2], "[1]", *lines[3:]]))
    *found, corrupt = rows(run(path, "--json"))
    assert corrupt["type"] == "corrupt"
    assert len(found) == len(lines), "a line for each column, because the rows are unknown"
    assert [row["line"][0] for row in found[1:4]] == ["topic_id", "partition", "base_offset"]


def test_a_copied_document_is_known(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes((store / "shards/0000/head").read_bytes())
    [head, *commits] = rows(run(copy, "--json"))
    assert (head["type"], head["seq"], len(commits)) == ("head", 18, 12)


def test_a_document_that_is_cut_off_is_printed_up_to_there(store: Path) -> None:
    path = store / "shards/0000/head"
    whole = rows(run(path, "--json"))
    text = path.read_bytes()
    text = text if text.startswith(b"{") else zstandard.decompress(text)
    counts: list[int] = []
    for end in range(0, len(text), 97):
        path.write_bytes(text[:end])
        result = run(path, "--json")
        assert isinstance(result.exception, CorruptRecordError)
        *found, corrupt = rows(result)
        assert corrupt["type"] == "corrupt"
        assert found[1:] == whole[1 : len(found)], "the commits before the cut"
        counts.append(len(found))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(whole) - 1)


def test_a_frame_that_is_cut_off_is_printed_up_to_there(store: Path) -> None:
    path = store / "shards/0000/head"
    data = path.read_bytes()
    document = json.loads(data if data.startswith(b"{") else zstandard.decompress(data))
    random = Random(7)
    document["commits"] = [
        document["commits"][-1] | {"seq": seq, "uuid": str(UUID(int=random.getrandbits(128)))}
        for seq in range(7, 20_000)
    ]
    data = zstandard.compress(format_json(document).encode())
    path.write_bytes(data[: len(data) // 2])
    *found, corrupt = rows(run(path, "--json"))
    assert corrupt["type"] == "corrupt"
    assert 100 < len(found) < 20_000


def test_a_document_that_contradicts_itself_is_printed_with_the_reason(store: Path) -> None:
    path = store / "shards/0000/head"
    document = head_fields(path.read_bytes())
    document["commits"][3]["seq"] = 99
    path.write_bytes(head_bytes(document))
    result = run(path, "--json")
    *found, corrupt = rows(result)
    assert len(found) == 13
    assert "commits do not reach" in corrupt["reason"]
    text = run(path)
    assert "CORRUPT: " in text.stdout
    assert "commits do not reach" in text.stdout


def test_a_head_is_printed_with_its_checksum_and_whether_that_is_right(store: Path) -> None:
    path = store / "catalog/head"
    data = path.read_bytes()
    crc = head_fields(data)["crc"]
    assert rows(run(path, "--json"))[0]["crc"] == crc
    path.write_bytes(data.replace(b'"cleanup.policy":"compact"', b'"cleanup.policy":"compacu"', 1))
    first, *_, corrupt = rows(run(path, "--json"))
    assert first["crc"] == crc
    assert f"expected_crc=`{crc}`" in corrupt["reason"]


def test_an_object_is_printed_as_far_as_it_is_sound(tmp_path: Path) -> None:
    header = ObjectHeader(
        store_id=UUID(int=1), shard=0, epoch=3, kind=ObjectKind.UPLOAD, name=f"{7:020}-{UUID(int=2)}"
    )
    path = tmp_path / "object"
    path.write_bytes(encode_header(header))
    [row, corrupt] = rows(run(path, "--json"))
    assert (row["type"], row["name"], row["epoch"], row["kind"]) == (
        "object_header",
        header.name,
        3,
        "upload",
    )
    assert "magic" in corrupt["reason"]


def test_damage_of_an_object_is_placed(tmp_path: Path) -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    [opened] = logs.logs.values()
    logs.append(opened, [Record(0, 1000 + n, b"k%d" % n, b"v" * 50) for n in range(20)])
    logs.seal()
    logs.upload()
    [key] = [found.key for found in site.bucket.list(SHARD.data_prefix)]
    path = tmp_path / "object"
    data = site.bucket.get(key).data
    path.write_bytes(data)
    whole = rows(run(path, "--json"))
    footer = whole[1]
    assert [row["type"] for row in whole] == ["object_header", "object_footer", "slice"]
    assert whole[2]["record_count"] > 0
    for position, kept, marked in (
        (20, ["object_footer", "slice"], 0),
        (footer["directory_position"] + 40, ["object_header", "object_footer", "slice"], None),
        (len(data) - FOOTER.size_bytes + 1, ["object_header"], len(data) - FOOTER.size_bytes),
    ):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        found = rows(run(path, "--json"))
        assert [row["type"] for row in found if row["type"] != "corrupt"] == kept
        [corrupt] = [row for row in found if row["type"] == "corrupt"]
        assert corrupt["position"] == (footer["directory_position"] if marked is None else marked)


def test_a_partial_object_has_what_comes_before_its_fault() -> None:
    text = '{"a": 1, "b": [1, {"c": "}"}, 3], "d": null}'
    whole = json.loads(text)
    assert read_partial_object(text) == (whole, None)
    for end in range(len(text)):
        fields, fault = read_partial_object(text[:end])
        assert fault is not None
        for name, value in fields.items():
            known = whole[name]
            assert value == (known[: len(value)] if isinstance(value, list) else known)
