"""Messages of the control plane become plain values, those of newer servers, too."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.client import values
from stratalog.client.values import admin_values, operation_values, partition_values, tier_values
from stratalog.client.values.conversion import value_of, values_of, wire_number
from stratalog.server.rpc.status import status_of_error
from stratalog.v1 import admin_pb2, operation_pb2, partition_pb2, tier_pb2

MODULES = (
    (admin_values, admin_pb2),
    (operation_values, operation_pb2),
    (partition_values, partition_pb2),
    (tier_values, tier_pb2),
)
NAMES_OF_ANSWERS = {
    "CleanerStatus": "CleanerStatusResponse",
    "CompactionPlan": "PlanCompactionResponse",
    "FinalizedMetadata": "FinalizeMetadataResponse",
    "LogDirs": "DescribeLogDirsResponse",
    "ServerInfo": "ServerInfoResponse",
    "TierStatus": "TierStatusResponse",
}


def pairs_of(kind: type) -> list[tuple[Any, Any]]:
    """Each value class or enum, and its message or enum on the wire."""
    return [
        (one, getattr(wire, NAMES_OF_ANSWERS.get(name, name)))
        for module, wire in MODULES
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, kind) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize(("value_class", "message_class"), pairs_of(tuple))
def test_a_value_has_the_fields_of_an_empty_message(
    value_class: type[tuple[Any, ...]], message_class: type[Message]
) -> None:
    value = value_of(value_class, message_class())

    for name, field in zip(value_class.__annotations__, value, strict=True):
        declared = message_class.DESCRIPTOR.fields_by_name.get(name)
        if declared is None or field is None:
            continue
        if declared.is_repeated:
            assert field in ((), {})
        elif declared.enum_type is not None:
            assert field.name == "UNKNOWN"
        elif declared.message_type is None:
            assert field == declared.default_value


@pytest.mark.parametrize(("members", "wire_enum"), pairs_of(enum.StrEnum))
def test_members_have_the_names_of_the_wire(members: type[enum.StrEnum], wire_enum: Any) -> None:
    numbers = {wire_number(wire_enum, member) for member in members}

    assert numbers == set(wire_enum.values())
    assert wire_number(wire_enum, members["UNKNOWN"]) == 0


def test_a_number_that_only_newer_servers_know_is_unknown() -> None:
    newer = admin_pb2.LogDir(state=99)  # type: ignore[arg-type]  # a number of a newer server

    assert value_of(values.LogDir, newer).state is values.LogDirState.UNKNOWN
    assert (
        value_of(values.LogDir, admin_pb2.LogDir(state=admin_pb2.LOG_DIR_STATE_LIVE)).state
        is values.LogDirState.LIVE
    )


def test_members_are_their_words() -> None:
    assert f"{values.CleaningFailureKind.FULL_DISK}" == "full-disk"


def test_lists_become_tuples_and_maps_are_sorted() -> None:
    names = [f"key-{number}" for number in range(50)]
    offline = admin_pb2.OfflinePartition(topic="t", partition=1)
    message = admin_pb2.Topic(config=dict.fromkeys(reversed(names), "x"), offline_partitions=[offline])
    [topic] = values_of(values.Topic, [message])

    assert [*topic.config] == sorted(names)
    assert topic.offline_partitions == (values.OfflinePartition("t", 1, "", ""),)


def test_a_message_that_may_be_missing_is_none() -> None:
    assert value_of(values.PartitionLog, admin_pb2.PartitionLog()).offline is None
    offline = admin_pb2.PartitionLog(offline=admin_pb2.OfflinePartition(partition=1))
    assert value_of(values.PartitionLog, offline).offline == values.OfflinePartition("", 1, "", "")


def test_a_text_that_may_be_missing_is_none() -> None:
    assert value_of(values.ConfigEntry, admin_pb2.ConfigEntry()).value is None
    assert value_of(values.ConfigEntry, admin_pb2.ConfigEntry(value="")).value == ""


def test_a_status_becomes_its_error() -> None:
    status = status_of_error(DataDirectoryError("the disk failed", partition="t-1"))
    failed = value_of(values.RolledPartition, partition_pb2.RolledPartition(partition=2, error=status))

    assert isinstance(failed.error, DataDirectoryError)
    assert failed.error.fields == {"partition": "t-1"}
    assert value_of(values.RolledPartition, partition_pb2.RolledPartition()).error is None


def test_the_result_of_an_operation_is_the_one_that_is_set() -> None:
    upload = operation_pb2.UploadResult(object_count=3)
    ended = value_of(values.Operation, operation_pb2.Operation(upload=upload, error=Status(message="late")))

    assert ended.result == values.UploadResult(
        object_count=3,
        slice_count=0,
        size_bytes=0,
        deleted_segment_count=0,
        failed_partitions=(),
        failed_partition_count=0,
        left_out_shards=(),
    )
    assert isinstance(ended.error, LogStoreError)
    assert value_of(values.Operation, operation_pb2.Operation()).result is None


def test_names_are_those_of_the_modules() -> None:
    assert values.Topic is admin_values.Topic
    with pytest.raises(AttributeError):
        values.Nothing  # noqa: B018
