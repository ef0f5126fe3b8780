"""The form of a decision, which a later version has to read."""

from __future__ import annotations

import json

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.pipeline.sink.decision_log import ChosenTask, Decision, TargetPlan, TopicCount
from stratalog.pipeline.sink.staging_topic import staged_batch, staging_config, target_headers
from stratalog.pipeline.sink.target_batches import Target, TargetBatch
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record

DECISION = Decision(
    batch=7,
    producer_id=12,
    producer_epoch=3,
    tasks=(ChosenTask("a", 5, 9, 2),),
    plans=(TargetPlan(Target("t", "id", 1), 20, 100),),
)
TEXT = (
    '{"version": 1, "batch": 7, "producer_id": 12, "producer_epoch": 3, "tasks": [["a", 5, 9, 2]],'
    ' "plans": [["t", "id", 1, 20, 100]], "is_applied": false, "record_count": null, "topics": []}'
)


def test_a_decision_is_read_as_it_was_written() -> None:
    assert DECISION.to_json() == TEXT
    for decision in (DECISION, DECISION.applied()):
        assert Decision.from_json(decision.to_json().encode()) == decision
    assert not DECISION.applied().tasks
    assert not DECISION.applied().plans
    assert DECISION.applied().record_count == 20
    assert DECISION.applied().topics == (TopicCount("t", "id", 20),)


def test_the_number_of_rows_of_an_older_version_is_unknown() -> None:
    """It is not in the decision of a batch that is applied."""
    text = TEXT.replace(', "record_count": null, "topics": []', "")
    pending = Decision.from_json(text.encode())
    assert pending == DECISION
    assert pending.applied().record_count == 20
    applied = json.loads(text) | {"tasks": [], "plans": [], "is_applied": True}
    older = DECISION.applied()._replace(record_count=None, topics=())
    assert Decision.from_json(json.dumps(applied).encode()) == older


@pytest.mark.parametrize("text", [None, b"", b"{}", b"7", TEXT.replace("1", "2", 1).encode()])
def test_what_is_no_decision_is_refused(text: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        Decision.from_json(text)


def test_a_staged_batch_is_read_as_it_was_written() -> None:
    target = Target("t", "id", 3)
    batch = encode_batch([Record(0, 0, None, b"1"), Record(0, 0, None, b"2")])
    assert staged_batch(target_headers(target), batch) == TargetBatch(target, batch, 2)
    with pytest.raises(CorruptRecordError) as refused:
        staged_batch((("topic", b"t"),), batch)
    assert refused.value.fields == {"headers": "topic"}


def test_staged_rows_are_as_durable_as_the_rows_have_to_be() -> None:
    weak, strong = staging_config(is_object_durable=False), staging_config(is_object_durable=True)
    assert (weak["min.durability"], weak["remote.storage.enable"]) == ("disk", False)
    assert (strong["min.durability"], strong["remote.storage.enable"]) == ("object", True)
    assert weak["retention.ms"] == strong["retention.bytes"] == -1
