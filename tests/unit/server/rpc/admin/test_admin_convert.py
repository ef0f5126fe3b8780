"""States of the engine have a value each on the wire."""

from __future__ import annotations

from uuid import UUID

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from stratalog.base.errors import InvalidRequestError
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.plan.compaction_job import JobReason
from stratalog.log.retention.retention_outlook import ExpiryRule
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.moves.log_move import MoveState
from stratalog.server.configuration.broker_config import UpdateMode
from stratalog.server.configuration.config_entry import ConfigSource
from stratalog.server.operations.operation import OperationKind, OperationState, OperationView
from stratalog.server.operations.operation_results import CompactionResult
from stratalog.server.rpc.admin.admin_convert import configured_topic
from stratalog.server.rpc.admin.operation_convert import view_message
from stratalog.v1 import admin_pb2, operation_pb2, tier_pb2


@pytest.mark.parametrize(
    ("prefix", "wire", "names"),
    [
        ("LOG_DIR_STATE_", admin_pb2.LogDirState, {one.name for one in DirectoryState}),
        ("PARTITION_MOVE_STATE_", admin_pb2.PartitionMoveState, {one.name for one in MoveState}),
        ("CLEANING_FAILURE_KIND_", admin_pb2.CleaningFailureKind, {one.name for one in FailureKind}),
        ("CONFIG_UPDATE_MODE_", admin_pb2.ConfigUpdateMode, {one.name for one in UpdateMode}),
        ("OPERATION_KIND_", operation_pb2.OperationKind, {one.name for one in OperationKind}),
        ("OPERATION_STATE_", operation_pb2.OperationState, {one.name for one in OperationState}),
        ("COMPACTION_REASON_", tier_pb2.CompactionReason, {one.name for one in JobReason}),
        ("RETENTION_RULE_", tier_pb2.RetentionRule, {one.name for one in ExpiryRule}),
        ("CONFIG_SOURCE_", admin_pb2.ConfigSource, {one.value for one in ConfigSource}),
    ],
)
def test_each_state_of_the_engine_has_a_value(prefix: str, wire: EnumTypeWrapper, names: set[str]) -> None:
    assert set(wire.keys()) == {prefix + name for name in names | {"UNSPECIFIED"}}


def test_a_resource_is_a_topic_or_the_server() -> None:
    server = admin_pb2.ConfigResource(server=admin_pb2.ConfigResource.Server())

    assert configured_topic(server) is None
    assert configured_topic(admin_pb2.ConfigResource(topic="t")) == "t"
    assert configured_topic(admin_pb2.ConfigResource(topic="")) == "", "an empty name is no server"
    with pytest.raises(InvalidRequestError):
        configured_topic(admin_pb2.ConfigResource())


def test_a_job_is_committed_or_refused() -> None:
    reports = tuple(CompactionReport(refused=reason) for reason in (None, "inputs are gone"))
    view = OperationView(UUID(int=1), 1, OperationKind.COMPACTION, (), 0, result=CompactionResult(reports))
    committed, refused = view_message(view, lambda _: True).compaction.jobs

    assert (committed.outcome, committed.reason) == (operation_pb2.COMPACTION_OUTCOME_COMMITTED, "")
    assert (refused.outcome, refused.reason) == (operation_pb2.COMPACTION_OUTCOME_REFUSED, "inputs are gone")
