"""The benchmark of a compaction's memory: at a size that says nothing of memory, and the files beneath it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compaction_memory import CASES, GIB, OBJECTS, Inputs, compact, fill, open_store
from stratalog.base.types import TopicIdPartition
from tests.support.packed_files import PackedFileSystem


@pytest.mark.parametrize("seed", range(3))
def test_packed_files_hold_what_was_appended(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    filesystem = PackedFileSystem()
    path = str(tmp_path / "file")
    written = b""
    for _ in range(4):
        file = filesystem.open_append(path)
        assert file.size() == len(written)
        for _ in range(4):
            size = random.choice((1, 100, 64 << 10, 100_000))
            part = random.choice((bytes(size), random.randbytes(size)))
            assert file.append([part, b"x"]) == size + 1
            written += part + b"x"
            position = random.randrange(len(written))
            assert file.read_at(position, 70_000) == written[position : position + 70_000]
        file.close()
        assert filesystem.file_size(path) == len(written)
    assert filesystem.read_file(path) == written


def test_a_compaction_of_the_inputs_keeps_each_key_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = Inputs(partition_count=2, key_count=100, total_bytes=1 << 20)
    fill(str(tmp_path), inputs)
    assert len(list((tmp_path / "store").rglob("data/*"))) == OBJECTS
    compact(str(tmp_path), inputs)
    assert float(capsys.readouterr().out) > 0
    tiered = open_store(str(tmp_path))
    (topic,) = tiered.catalog.topics().values()
    for number in range(2):
        records = tiered.records(TopicIdPartition(topic.topic_id, number))
        assert len({record.key for record in records}) == len(records) == 50


def test_a_partition_of_more_full_objects_has_longer_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = CASES[-1].part(512)
    fill(str(tmp_path), inputs)
    compact(str(tmp_path), inputs)
    assert float(capsys.readouterr().out) > 0
    tiered = open_store(str(tmp_path))
    (topic,) = tiered.catalog.topics().values()
    partition = tiered.partition(TopicIdPartition(topic.topic_id, 0))
    assert partition.compacted_upto > partition.tiered_end_offset // 2


def test_the_cases_have_the_promised_size() -> None:
    assert [inputs.total_bytes // GIB for inputs in CASES] == [8, 8, 8, 2]
    for inputs in CASES:
        record_count = inputs.total_bytes // (30 + inputs.value_bytes)
        assert record_count >= inputs.key_count
