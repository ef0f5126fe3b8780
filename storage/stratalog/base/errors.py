"""The tree of errors that a caller can act on.

Every leaf has its own remedy; failures with the same remedy share a leaf and differ in their fields. The
message is one lower-case sentence that says what failed and what to do; the values are fields, and follow the
message as ``name=`value```. One table, ``stratalog.server.rpc.status``, chooses the status codes of the wire.

    LogStoreError
    +-- InvalidRequestError               fix the request
    |   +-- InvalidConfigError            fix a configuration value
    |   +-- UnsupportedOperationError     ask for something else: this version cannot do it
    |   +-- InvalidTimestampError         give the record a time inside the bounds in the fields
    |   +-- RecordTooLargeError           send less at once, or raise the topic's limit
    |   +-- InvalidRecordError            encode the batch again
    +-- AuthenticationFailedError         give the credentials of a principal that the server knows
    +-- AuthorizationFailedError          use another principal, or have this one's permissions extended
    +-- CorruptRecordError                stored or fetched bytes are damaged: restore them from a copy
    +-- UnknownTopicOrPartitionError      create it, or correct the name
    +-- UnknownOperationError             look at the work itself: the server has forgotten the operation
    +-- TopicAlreadyExistsError           choose another name
    +-- OffsetOutOfRangeError             go on from an offset inside the range in the fields
    +-- NotOwnerError                     another server took over: use that one
    +-- InconsistentTopicIdError          another topic has the name: look its id up again
    +-- FencedLeaderEpochError            the server of this epoch was replaced: look the epoch up again
    +-- UnknownLeaderEpochError           ask again (retriable): the server does not know of its successor
    +-- LogTruncatedError                 go on from `end_offset`: the log never had what was read above it
    +-- ProducerFencedError               another producer took over its id: stop, or begin with a new epoch
    +-- CoordinatorFencedError            another transaction coordinator took over: stop
    +-- OutOfOrderSequenceError           send again from the expected sequence on, or begin with a new epoch
    +-- UnknownProducerIdError            get an id with InitProducer, and begin with sequence 0
    +-- UnexpectedOffsetError             read what others appended, then decide
    +-- FencingTokenMismatchError         the partition has another token: stop, or fence it
    +-- InvalidTxnStateError              end the producer's open transaction first
    +-- PrecedingAppendFailedError        decide about the failed append, then send this one with `resume`
    +-- LimitExceededError                remove something, or have the limit in the fields raised
    +-- OverloadedError                   send it again after a pause (retriable): it had no effect
    |   +-- LowDiskSpaceError             the same, but an operator has to free space on the server's disk
    |   +-- StartingError                 the same: the server opens its logs
    +-- RecordsLostError                  send the records again as new ones, if they are still wanted
    +-- StoppingError                     the server is stopping: connect again (retriable)
    +-- DataDirectoryError                an operator has to look at the local disk or its settings
    |   +-- DataDirectoryInUseError       stop the other process, or use another directory
    +-- StoreError                        the object store
        +-- StoreUnavailableError         try again later (retriable)
        +-- StoreAccessDeniedError        correct credentials or permissions
        |   +-- DeletionRefusedError      wait until the lock of the objects ends, or allow their deletion
        +-- StoreNotUsableError           wrong bucket, wrong store, newer format, or no conditional writes
        +-- ObjectNotFoundError           the object is missing
        +-- ObjectArchivedError           restore the object, and end the rule that archived it
        +-- PreconditionFailedError       another writer was first (or an earlier try of ours landed)
        +-- StoreCorruptError             the store contradicts itself: stop, keep everything, investigate

``assert`` is for defects of ours; these classes are for all other failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

ERROR_DOMAIN = "stratalog"
"""The namespace of the codes where errors leave the process: `domain` of a `google.rpc.ErrorInfo`."""


class LogStoreError(Exception):
    """Base of all errors that leave the engine. `fields` are the values that a program may act on."""

    code: ClassVar[str] = "UNKNOWN"
    retriable: bool = False
    """Whether the same request may succeed later, by the class; a client sets it by the server's answer."""
    retry_delay_s: float = 0.0
    """The shortest pause before a retry, if the server asks for one."""

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        if not self.fields:
            return self.message
        return self.message + " " + " ".join(f"{name}=`{value}`" for name, value in self.fields.items())


def forget_frames(error: BaseException) -> None:
    """Drop the traceback and the causes of an error that waits to be answered. Their frames hold the bytes of
    its request. An error outside the tree is a defect and keeps them for the log."""
    if isinstance(error, LogStoreError):
        error.__traceback__ = error.__cause__ = error.__context__ = None


class InvalidRequestError(LogStoreError):
    """The request can never succeed as it is."""

    code = "INVALID_REQUEST"


class InvalidConfigError(InvalidRequestError):
    """A configuration value is unknown, malformed or out of its range. Fields: name, value, allowed."""

    code = "INVALID_CONFIG"


class UnsupportedOperationError(InvalidRequestError):
    """A well-formed request that this version does not support."""

    code = "UNSUPPORTED_OPERATION"


class InvalidTimestampError(InvalidRequestError):
    """The topic refuses the time of a record. Fields: batch_index (the batch's index in its request),
    record_index (in its batch), timestamp_ms, earliest_ms, latest_ms."""

    code = "INVALID_TIMESTAMP"


class RecordTooLargeError(InvalidRequestError):
    """A batch or a request exceeds its limit. Fields: size_bytes (if known), max_bytes."""

    code = "RECORD_TOO_LARGE"


class InvalidRecordError(InvalidRequestError):
    """The batches of a request violate their format or their checksum. Fields: position (in the request) or
    base_offset, batch_index, and those of the rule that is broken."""

    code = "INVALID_RECORD"


class AuthenticationFailedError(LogStoreError):
    """The call has no credentials, or none of a principal that the server knows."""

    code = "AUTHENTICATION_FAILED"


class AuthorizationFailedError(LogStoreError):
    """The principal may not do this. Says nothing about whether the topic exists. Fields: principal,
    operation, and topic if the call is about one."""

    code = "AUTHORIZATION_FAILED"


class CorruptRecordError(LogStoreError):
    """Bytes from the disk, the object store or a fetch violate their format or their checksum. Parsers raise
    it for any bytes; where a request's own bytes are judged, it becomes InvalidRecordError."""

    code = "CORRUPT_RECORD"


class UnknownTopicOrPartitionError(LogStoreError):
    """The topic does not exist, or has fewer partitions. Fields: topic, partition, and partition_count if the
    topic exists."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"


class UnknownOperationError(LogStoreError):
    """The server has no operation of this id, or has forgotten it. Fields: operation_id."""

    code = "UNKNOWN_OPERATION"


class TopicAlreadyExistsError(LogStoreError):
    """The name is taken. Fields: topic."""

    code = "TOPIC_ALREADY_EXISTS"


class OffsetOutOfRangeError(LogStoreError):
    """The offset lies outside [log_start_offset, log_end_offset]. Fields: offset, log_start_offset,
    log_end_offset."""

    code = "OFFSET_OUT_OF_RANGE"


class NotOwnerError(LogStoreError):
    """Another server has claimed the shard: this one must stop. Fields, all of the new owner: owner, endpoint
    (HOST:PORT for clients; empty if it has none), epoch."""

    code = "NOT_OWNER"


class InconsistentTopicIdError(LogStoreError):
    """The name belongs to another topic than the request means. Fields: topic, topic_id (that of the
    request), current_topic_id."""

    code = "INCONSISTENT_TOPIC_ID"


class FencedLeaderEpochError(LogStoreError):
    """The leader epoch of the request has ended. Fields: leader_epoch (that of the request),
    current_leader_epoch."""

    code = "FENCED_LEADER_EPOCH"


class UnknownLeaderEpochError(LogStoreError):
    """The leader epoch of the request is newer than that of this server, which was replaced and has not
    noticed yet. The request had no effect. Fields: leader_epoch (that of the request),
    current_leader_epoch."""

    code = "UNKNOWN_LEADER_EPOCH"
    retriable = True


class LogTruncatedError(LogStoreError):
    """The log parted from the log that the client has read. Fields: epoch (the last one that both may have),
    end_offset (the end of what is the same, exclusive), and those of the request: offset, last_fetched_epoch.
    """

    code = "LOG_TRUNCATED"


class ProducerFencedError(LogStoreError):
    """The producer id has a newer epoch, and with it another owner. Fields: producer_id, epoch,
    current_epoch."""

    code = "PRODUCER_FENCED"


class CoordinatorFencedError(LogStoreError):
    """A transaction marker is from a coordinator that was replaced. Fields: producer_id, coordinator_epoch,
    current_coordinator_epoch."""

    code = "COORDINATOR_FENCED"


class OutOfOrderSequenceError(LogStoreError):
    """A producer's batch does not follow the last one that is stored. Fields: producer_id, epoch, sequence,
    expected_sequence."""

    code = "OUT_OF_ORDER_SEQUENCE"


class UnknownProducerIdError(LogStoreError):
    """No server has given this producer id. Fields: producer_id."""

    code = "UNKNOWN_PRODUCER_ID"


class UnexpectedOffsetError(LogStoreError):
    """The log does not end at the offset that the append names, so nothing was stored. Fields:
    expected_offset, log_end_offset."""

    code = "UNEXPECTED_OFFSET"


class PlanChangedError(LogStoreError):
    """A plan has changed since its page before, so the pages would not fit together: begin again with the
    first one."""

    code: ClassVar[str] = "PLAN_CHANGED"


class FencingTokenMismatchError(LogStoreError):
    """The partition has another fencing token than the request names. Fields: fencing_token (of the request),
    current_token (empty if there is none)."""

    code = "FENCING_TOKEN_MISMATCH"


class InvalidTxnStateError(LogStoreError):
    """The batch does not fit the state of its producer's transaction. Fields: producer_id, epoch,
    current_txn_first_offset."""

    code = "INVALID_TXN_STATE"


class PrecedingAppendFailedError(LogStoreError):
    """An earlier append of the same stream to the same partition failed, so this one was not applied."""

    code = "PRECEDING_APPEND_FAILED"


class LimitExceededError(LogStoreError):
    """There would be more of something than there may be. The request had no effect, and a pause does not
    help. Fields: the number that there would be, and the largest one."""

    code = "LIMIT_EXCEEDED"


class OverloadedError(LogStoreError):
    """The server has no room for the request now. The request had no effect, so any request may be
    repeated."""

    code = "OVERLOADED"
    retriable = True


class LowDiskSpaceError(OverloadedError):
    """The partition's log directory has less free space than its floor. The append had no effect. Fields:
    partition, free_bytes, min_free_bytes."""

    code = "LOW_DISK_SPACE"


class StartingError(OverloadedError):
    """The server is not open yet: it recovers its logs, or waits for the store. The request had no effect."""

    code = "STARTING"


class RecordsLostError(LogStoreError):
    """Records of an append are not in the log any more: the local disk has lost them before their commit in
    the object store, or they were deleted. Fields: topic, partition, base_offset, end_offset."""

    code = "RECORDS_LOST"


class StoppingError(LogStoreError):
    """The stopping server has ended the call early. Commits up to then stay."""

    code = "STOPPING"
    retriable = True


class DataDirectoryError(LogStoreError):
    """The data directory cannot be used. Fields: path."""

    code = "DATA_DIRECTORY_ERROR"


class DataDirectoryInUseError(DataDirectoryError):
    """Another process holds the directory's lock. Fields: path."""

    code = "DATA_DIRECTORY_IN_USE"


class StoreError(LogStoreError):
    """Base of the object store's errors. Fields: key, if the error is about one."""

    code = "STORE_ERROR"


class StoreUnavailableError(StoreError):
    """The store is unreachable, too slow, or answers with server errors. The outcome of a write is
    unknown."""

    code = "STORE_UNAVAILABLE"
    retriable = True


class StoreAccessDeniedError(StoreError):
    """The store refuses these credentials."""

    code = "STORE_ACCESS_DENIED"


class DeletionRefusedError(StoreAccessDeniedError):
    """The store keeps objects that were to be deleted: they are locked, or these credentials may not delete
    them. All others of the same call are gone. Fields: key (the first of them), refused_count, store_code."""

    code = "DELETION_REFUSED"

    def __init__(self, message: str, keys: Sequence[str] = (), **fields: object) -> None:
        super().__init__(message, **fields)
        self.keys = frozenset(keys)
        """The keys that are still there; empty where the error came over the wire."""


class StoreNotUsableError(StoreError):
    """The bucket is missing, holds another store or a newer format, or lacks conditional writes."""

    code = "STORE_NOT_USABLE"


class ObjectNotFoundError(StoreError):
    """No object has this key. Fields: key."""

    code = "OBJECT_NOT_FOUND"


class ObjectArchivedError(StoreError):
    """The object is in an archive of the store (Glacier, Deep Archive, an archive tier), which answers no
    reads. It is not lost. Fields: key."""

    code = "OBJECT_ARCHIVED"


class PreconditionFailedError(StoreError):
    """A conditional write was refused. Fields: key. An earlier try of the same write may have landed."""

    code = "PRECONDITION_FAILED"


class StoreCorruptError(StoreError):
    """An object that must be in the store is missing, or contradicts a commit."""

    code = "STORE_CORRUPT"
