"""The permission that each call needs. One table; a call that is not in it is refused.

Calls that name topics need their operation on each of them. Calls that name none, and are about all topics
then, need it on the server as a whole. Lists of topics are open to all principals, and show each what it may
describe.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stratalog.server.access.access_control import require_cluster, require_topic
from stratalog.server.access.access_policy import Principal
from stratalog.server.access.permissions import Operation
from stratalog.server.rpc.topic_gate import topics_of
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2


class Scope(enum.Enum):
    """The subject of a call."""

    TOPICS = "topics"
    """The topics that it names."""
    TOPICS_OR_ALL = "topics or all"
    """The topics that it names; all, and so the server as a whole, if it names none."""
    SOME_TOPIC = "some topic"
    """No topic yet: it prepares the operation on one."""
    CLUSTER = "cluster"
    """The server as a whole, also if it names a topic."""
    OPERATION = "operation"
    """The topics of the long work that it names by an id; the server as a whole if that has none."""
    SHOWN = "shown"
    """All that the principal may describe: the handler leaves out the rest."""


class CallPermission(NamedTuple):
    """The permission that a call needs."""

    scope: Scope
    operation: Operation = Operation.DESCRIBE
    second: Operation | None = None
    """Another operation that it needs on each topic that it names."""

    def require(self, principal: Principal, topics: Iterable[str]) -> None:
        """Raise AuthorizationFailedError unless the principal may make the call with these topics."""
        named = tuple(topics)
        if self.scope is Scope.SHOWN:
            return
        if self.scope is Scope.SOME_TOPIC:
            if not principal.permissions.allow_somewhere(self.operation):
                require_topic(principal, self.operation, "")
        elif self.scope is Scope.CLUSTER or (not named and self.scope is not Scope.TOPICS):
            require_cluster(principal, self.operation)
        else:
            # A call that should name a topic and does not is about one without a name.
            for topic in named or ("",):
                require_topic(principal, self.operation, topic)
                if self.second is not None:
                    require_topic(principal, self.second, topic)


_READ = CallPermission(Scope.TOPICS, Operation.READ)
_WRITE = CallPermission(Scope.TOPICS, Operation.WRITE)
_DELETE = CallPermission(Scope.TOPICS, Operation.DELETE)
_ALTER = CallPermission(Scope.TOPICS, Operation.ALTER)
_DESCRIBE = CallPermission(Scope.TOPICS, Operation.DESCRIBE)
_ALTER_OR_ALL = CallPermission(Scope.TOPICS_OR_ALL, Operation.ALTER)
_DESCRIBE_OR_ALL = CallPermission(Scope.TOPICS_OR_ALL, Operation.DESCRIBE)
_ALTER_CLUSTER = CallPermission(Scope.CLUSTER, Operation.ALTER)
_DESCRIBE_CLUSTER = CallPermission(Scope.CLUSTER, Operation.DESCRIBE)
_SHOWN = CallPermission(Scope.SHOWN)

_BY_SERVICE: Mapping[str, Mapping[str, CallPermission]] = {
    log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name: {
        "Append": _WRITE,
        "AppendStream": _WRITE,
        "CopyBatches": CallPermission(Scope.TOPICS, Operation.WRITE, Operation.READ),
        "Fetch": _READ,
        "FetchStream": _READ,
        "ListOffsets": _DESCRIBE,
        "Read": _READ,
        "InitProducer": CallPermission(Scope.SOME_TOPIC, Operation.WRITE),
        "Fence": _WRITE,
        "Metadata": _SHOWN,
    },
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name: {
        "CreateTopic": CallPermission(Scope.TOPICS, Operation.CREATE),
        "ListTopics": _SHOWN,
        "DescribeTopics": _DESCRIBE,
        "AddPartitions": _ALTER,
        "DeleteTopic": _DELETE,
        "DescribeConfigs": CallPermission(Scope.TOPICS_OR_ALL, Operation.DESCRIBE_CONFIGS),
        "AlterConfigs": CallPermission(Scope.TOPICS_OR_ALL, Operation.ALTER_CONFIGS),
        "DescribeLog": _DESCRIBE,
        "ListSegments": _DESCRIBE,
        "ListSlices": _DESCRIBE,
        "ListProducers": _READ,
        "DeleteRecords": _DELETE,
        "Roll": _ALTER,
        "Flush": _ALTER,
        "DescribeLogDirs": _DESCRIBE_CLUSTER,
        "CordonLogDir": _ALTER_CLUSTER,
        "UncordonLogDir": _ALTER_CLUSTER,
        "MovePartition": _ALTER_CLUSTER,
        "ForgetLogDir": _ALTER_CLUSTER,
        "CleanerStatus": _DESCRIBE_CLUSTER,
        "ResetCleaner": _ALTER,
        "ServerInfo": _DESCRIBE_CLUSTER,
    },
    operation_pb2.DESCRIPTOR.services_by_name["OperationService"].full_name: {
        "GetOperation": CallPermission(Scope.OPERATION, Operation.DESCRIBE),
        "ListOperations": _SHOWN,
        "WatchOperation": CallPermission(Scope.OPERATION, Operation.DESCRIBE),
        "CancelOperation": CallPermission(Scope.OPERATION, Operation.ALTER),
    },
    tier_pb2.DESCRIPTOR.services_by_name["TierService"].full_name: {
        "TierStatus": _DESCRIBE_CLUSTER,
        "StartUpload": _ALTER_OR_ALL,
        "StartCompaction": _ALTER_OR_ALL,
        "PlanCompaction": _DESCRIBE_OR_ALL,
        "ListExcludedPartitions": _DESCRIBE_CLUSTER,
        "ResetExcludedPartition": _ALTER,
        "StartRetention": _ALTER_OR_ALL,
        "ExplainRetention": _DESCRIBE_OR_ALL,
        "StartVerification": _ALTER_OR_ALL,
        "StartCollection": _ALTER_CLUSTER,
        "DescribeCaches": _DESCRIBE_CLUSTER,
        "EmptyCaches": _ALTER_CLUSTER,
        "FinalizeMetadata": _ALTER_CLUSTER,
    },
    # It describes the messages, not what is in the server: for any principal.
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _SHOWN},
}

CALL_PERMISSIONS: Mapping[str, CallPermission] = {
    f"/{service}/{name}": permission
    for service, permissions in _BY_SERVICE.items()
    for name, permission in permissions.items()
}
"""By the full name of the method."""


def named_topics(request: object) -> tuple[str, ...]:
    """The topics that a request names, also one that does not exist yet."""
    if isinstance(request, admin_pb2.CreateTopicRequest):
        return (request.name,)
    return tuple(topics_of(request))
