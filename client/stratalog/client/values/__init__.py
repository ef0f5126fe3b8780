"""Values of the control plane: results and enums of `Client.admin`, `topics` and `operations`.

They can be imported from here. Their modules are loaded when they are first used. Generated
from the .proto files by `scripts/client_values.py`: edit these, then `make proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.client.values.admin_values import CleanerStatus as CleanerStatus
    from stratalog.client.values.admin_values import CleaningFailureKind as CleaningFailureKind
    from stratalog.client.values.admin_values import ConfigEntry as ConfigEntry
    from stratalog.client.values.admin_values import ConfigSource as ConfigSource
    from stratalog.client.values.admin_values import ConfigSynonym as ConfigSynonym
    from stratalog.client.values.admin_values import ConfigUpdateMode as ConfigUpdateMode
    from stratalog.client.values.admin_values import LogDir as LogDir
    from stratalog.client.values.admin_values import LogDirs as LogDirs
    from stratalog.client.values.admin_values import LogDirState as LogDirState
    from stratalog.client.values.admin_values import OfflinePartition as OfflinePartition
    from stratalog.client.values.admin_values import OwnedShard as OwnedShard
    from stratalog.client.values.admin_values import PartitionLog as PartitionLog
    from stratalog.client.values.admin_values import PartitionMove as PartitionMove
    from stratalog.client.values.admin_values import PartitionMoveState as PartitionMoveState
    from stratalog.client.values.admin_values import ServerInfo as ServerInfo
    from stratalog.client.values.admin_values import ServerLimits as ServerLimits
    from stratalog.client.values.admin_values import Topic as Topic
    from stratalog.client.values.admin_values import TopicListing as TopicListing
    from stratalog.client.values.admin_values import UncleanablePartition as UncleanablePartition
    from stratalog.client.values.operation_values import CollectionResult as CollectionResult
    from stratalog.client.values.operation_values import CompactionJob as CompactionJob
    from stratalog.client.values.operation_values import CompactionOutcome as CompactionOutcome
    from stratalog.client.values.operation_values import CompactionProgress as CompactionProgress
    from stratalog.client.values.operation_values import CompactionResult as CompactionResult
    from stratalog.client.values.operation_values import DroppedFile as DroppedFile
    from stratalog.client.values.operation_values import FailedPartition as FailedPartition
    from stratalog.client.values.operation_values import FindingKind as FindingKind
    from stratalog.client.values.operation_values import LeftOutShard as LeftOutShard
    from stratalog.client.values.operation_values import MoveResult as MoveResult
    from stratalog.client.values.operation_values import Operation as Operation
    from stratalog.client.values.operation_values import OperationKind as OperationKind
    from stratalog.client.values.operation_values import OperationProgress as OperationProgress
    from stratalog.client.values.operation_values import OperationResult as OperationResult
    from stratalog.client.values.operation_values import OperationState as OperationState
    from stratalog.client.values.operation_values import OrphanFile as OrphanFile
    from stratalog.client.values.operation_values import OrphanKind as OrphanKind
    from stratalog.client.values.operation_values import OrphanTotal as OrphanTotal
    from stratalog.client.values.operation_values import RecordedLoss as RecordedLoss
    from stratalog.client.values.operation_values import RefusedPartition as RefusedPartition
    from stratalog.client.values.operation_values import RetainedPartition as RetainedPartition
    from stratalog.client.values.operation_values import RetentionResult as RetentionResult
    from stratalog.client.values.operation_values import UploadResult as UploadResult
    from stratalog.client.values.operation_values import VerificationFinding as VerificationFinding
    from stratalog.client.values.operation_values import VerificationResult as VerificationResult
    from stratalog.client.values.partition_values import DeletedRecords as DeletedRecords
    from stratalog.client.values.partition_values import FlushedPartition as FlushedPartition
    from stratalog.client.values.partition_values import ProducerState as ProducerState
    from stratalog.client.values.partition_values import RolledPartition as RolledPartition
    from stratalog.client.values.partition_values import Segment as Segment
    from stratalog.client.values.partition_values import Slice as Slice
    from stratalog.client.values.tier_values import CacheContents as CacheContents
    from stratalog.client.values.tier_values import CacheStatus as CacheStatus
    from stratalog.client.values.tier_values import CompactionCost as CompactionCost
    from stratalog.client.values.tier_values import CompactionPlan as CompactionPlan
    from stratalog.client.values.tier_values import CompactionReason as CompactionReason
    from stratalog.client.values.tier_values import ExcludedPartition as ExcludedPartition
    from stratalog.client.values.tier_values import ExpiredRange as ExpiredRange
    from stratalog.client.values.tier_values import ExplainedPartition as ExplainedPartition
    from stratalog.client.values.tier_values import FinalizedHead as FinalizedHead
    from stratalog.client.values.tier_values import FinalizedMetadata as FinalizedMetadata
    from stratalog.client.values.tier_values import IdleTopic as IdleTopic
    from stratalog.client.values.tier_values import NextExpiry as NextExpiry
    from stratalog.client.values.tier_values import PassBacklog as PassBacklog
    from stratalog.client.values.tier_values import PassStatus as PassStatus
    from stratalog.client.values.tier_values import PlannedJob as PlannedJob
    from stratalog.client.values.tier_values import PlannedRun as PlannedRun
    from stratalog.client.values.tier_values import RetentionRule as RetentionRule
    from stratalog.client.values.tier_values import RetentionTier as RetentionTier
    from stratalog.client.values.tier_values import ShardStatus as ShardStatus
    from stratalog.client.values.tier_values import ShortLogDir as ShortLogDir
    from stratalog.client.values.tier_values import StorePrices as StorePrices
    from stratalog.client.values.tier_values import Takeover as Takeover
    from stratalog.client.values.tier_values import TieredTopicStatus as TieredTopicStatus
    from stratalog.client.values.tier_values import TierStatus as TierStatus

_MODULES = {
    "CacheContents": "tier_values",
    "CacheStatus": "tier_values",
    "CleanerStatus": "admin_values",
    "CleaningFailureKind": "admin_values",
    "CollectionResult": "operation_values",
    "CompactionCost": "tier_values",
    "CompactionJob": "operation_values",
    "CompactionOutcome": "operation_values",
    "CompactionPlan": "tier_values",
    "CompactionProgress": "operation_values",
    "CompactionReason": "tier_values",
    "CompactionResult": "operation_values",
    "ConfigEntry": "admin_values",
    "ConfigSource": "admin_values",
    "ConfigSynonym": "admin_values",
    "ConfigUpdateMode": "admin_values",
    "DeletedRecords": "partition_values",
    "DroppedFile": "operation_values",
    "ExcludedPartition": "tier_values",
    "ExpiredRange": "tier_values",
    "ExplainedPartition": "tier_values",
    "FailedPartition": "operation_values",
    "FinalizedHead": "tier_values",
    "FinalizedMetadata": "tier_values",
    "FindingKind": "operation_values",
    "FlushedPartition": "partition_values",
    "IdleTopic": "tier_values",
    "LeftOutShard": "operation_values",
    "LogDir": "admin_values",
    "LogDirState": "admin_values",
    "LogDirs": "admin_values",
    "MoveResult": "operation_values",
    "NextExpiry": "tier_values",
    "OfflinePartition": "admin_values",
    "Operation": "operation_values",
    "OperationKind": "operation_values",
    "OperationProgress": "operation_values",
    "OperationResult": "operation_values",
    "OperationState": "operation_values",
    "OrphanFile": "operation_values",
    "OrphanKind": "operation_values",
    "OrphanTotal": "operation_values",
    "OwnedShard": "admin_values",
    "PartitionLog": "admin_values",
    "PartitionMove": "admin_values",
    "PartitionMoveState": "admin_values",
    "PassBacklog": "tier_values",
    "PassStatus": "tier_values",
    "PlannedJob": "tier_values",
    "PlannedRun": "tier_values",
    "ProducerState": "partition_values",
    "RecordedLoss": "operation_values",
    "RefusedPartition": "operation_values",
    "RetainedPartition": "operation_values",
    "RetentionResult": "operation_values",
    "RetentionRule": "tier_values",
    "RetentionTier": "tier_values",
    "RolledPartition": "partition_values",
    "Segment": "partition_values",
    "ServerInfo": "admin_values",
    "ServerLimits": "admin_values",
    "ShardStatus": "tier_values",
    "ShortLogDir": "tier_values",
    "Slice": "partition_values",
    "StorePrices": "tier_values",
    "Takeover": "tier_values",
    "TierStatus": "tier_values",
    "TieredTopicStatus": "tier_values",
    "Topic": "admin_values",
    "TopicListing": "admin_values",
    "UncleanablePartition": "admin_values",
    "UploadResult": "operation_values",
    "VerificationFinding": "operation_values",
    "VerificationResult": "operation_values",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
