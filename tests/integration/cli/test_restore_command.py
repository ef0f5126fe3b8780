"""`stratalog tier restore` from directory to directory: what it says, and a second attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stratalog.base.clock import SystemClock
from stratalog.base.errors import PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.cli.store_access.store_actor import store_actor
from stratalog.cli.store_repair import byte_progress
from stratalog.objectstore.open_store import open_store
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.store_identity import StoreIdentity
from tests.support.tiered.restore_world import RestoreWorld


@pytest.fixture
def source(tmp_path: Path) -> str:
    """The URL of a store with a few objects."""
    world = RestoreWorld(3)
    for name in ("upload", "upload", "compact", "fold", "upload"):
        world.step(name)
    return stored(world, tmp_path)


def stored(world: RestoreWorld, tmp_path: Path) -> str:
    """The URL of a directory with the files of a bucket."""
    url = f"file://{tmp_path}/source"
    store = open_store(url, clock=SystemClock())
    for info in world.bucket.list(""):
        store.put(info.key, world.bucket.get(info.key).data)
    return url


def restore(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["tier", "restore", *arguments], catch_exceptions=False)


def test_objects_that_are_there_are_not_copied_again(source: str, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/target"
    first = restore(source, target)
    assert first.exit_code == 0, first.output
    count = first.output.split("copied ")[1].split()[0]
    assert f"0 by the store itself, {count} through this machine, 0 by an earlier attempt" in first.output
    again = json.loads(restore(source, target, "--json").stdout)
    assert again["written"]
    assert again["copied"]["there_count"] == again["object_count"] == int(count)
    assert again["copied"]["damages"] == []
    assert json.loads(restore(source, "--plan", "--json").stdout)["copied"] is None


def test_the_same_command_goes_on_with_the_moment_of_an_interrupted_attempt(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source goes on in between."""
    target = f"file://{tmp_path}/target"
    plan = json.loads(restore(source, "--plan", "--json").stdout)
    with monkeypatch.context() as patch:

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(StoreIdentity, "encode", dies)
        assert restore(source, target).exit_code == 130
    with store_actor(source, "test") as actor:
        Catalog.open(actor).create("later", 1, {})
    after = json.loads(restore(source, "--plan", "--json").stdout)
    assert after["catalog_seq"] == plan["catalog_seq"] + 1
    with pytest.raises(PreconditionFailedError) as refused:
        restore(source, target, "--until", f"catalog:{after['catalog_seq']}")
    assert refused.value.fields["catalog_commit"] == plan["catalog_seq"]
    done = restore(source, target, "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("goes on with the restore that was interrupted, and with its moment")
    assert json.loads(done.stdout)["catalog_seq"] == plan["catalog_seq"]
    assert json.loads(done.stdout)["copied"]["there_count"] == plan["object_count"]


def test_a_plan_names_the_topic_of_what_is_gone(tmp_path: Path) -> None:
    world = RestoreWorld(3)
    world.upload()
    world.tiered.metadata.fold()
    topic = world.tiered.catalog.create("k", 1)
    tip = TopicIdPartition(topic.topic_id, 0)
    batch = encode_batch([Record(0, 0, b"key", b"value")], base_offset=0, leader_epoch=1)
    lost_name = world.tiered.upload({tip: [batch]})
    [*_, known] = [live for one in world.tips for live in world.tiered.partition(one).slices]
    world.lose(*map(world.tiered.layout.data_key, (lost_name, known.object_name)))
    lines = restore(stored(world, tmp_path), "--plan").stdout.splitlines()
    assert ["k", "0", "-", "-", "-"] in [line.split() for line in lines]
    assert (
        "no longer there: partition 0 of topic k; nothing tells which offsets it had, if any, and the"
        " restored one begins empty at offset 0"
    ) in lines
    place = f"partition {known.entry.partition} of topic {known.entry.topic}, offsets 0-{known.end_offset}"
    assert f"no longer there: {place}" in lines


def test_an_object_that_is_damaged_in_the_source_is_named(source: str, tmp_path: Path) -> None:
    names = sorted((tmp_path / "source/shards/0000/data").iterdir())
    for path in names:
        data = bytearray(path.read_bytes())
        data[100] ^= 1  # a record, or the list of inputs
        path.write_bytes(data)
    done = restore(source, f"file://{tmp_path}/target")
    assert done.exit_code == 0, done.output
    assert "copied with its damage: " in done.output
    for path in (tmp_path / "target/shards/0000/data").iterdir():
        assert path.read_bytes() == (tmp_path / "source/shards/0000/data" / path.name).read_bytes()


def test_without_a_terminal_lines_tell_of_the_progress(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_progress, "_LINE_INTERVAL_S", 0.0)
    done = restore(source, f"file://{tmp_path}/target")
    lines = [line for line in done.stderr.splitlines() if line.startswith("copied ")]
    assert lines[0].startswith("copied 1 object, ")
    assert len(lines) == len(list((tmp_path / "target/shards/0000/data").iterdir()))
    size = lines[-1].partition(", ")[2]
    assert size.split(" of ")[0] == size.split(" of ")[1]
