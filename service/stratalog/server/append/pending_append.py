"""An append on its way to the log, and the session that it may belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stratalog.base.errors import (
    DataDirectoryError,
    PrecedingAppendFailedError,
    StoppingError,
    forget_frames,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.log_identity import LogIdentity
from stratalog.server.request_memory import MemoryLease


class AppendSession:
    """Appends of a stream to one partition: after a failed one none of them is applied, and one that is in
    the log by then has the same failure. The partition's writer sets `failure` on its threads, and the event
    loop reads it; it is never reset.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: Exception | None = None
        """The reason of the first failure."""

    @property
    def is_broken(self) -> bool:
        """Whether one has failed."""
        return self.failure is not None

    def fail(self, error: Exception) -> None:
        """Let no later append be applied."""
        if self.failure is None:
            self.failure = error


class AppendConditions(NamedTuple):
    """Conditions of an append on the partition that it is applied to. None by default."""

    expected_offset: int | None = None
    """The offset that the first record must get."""
    fencing_token: str | None = None
    """The token that the partition must have; empty for none."""


NO_CONDITIONS = AppendConditions()


@dataclass(slots=True, eq=False)
class PendingAppend:
    """One request's worth of batches, waiting for its partition's writer. Guarded by being passed on: it is
    the event loop's until it is submitted, then the writer's, and the loop's again with its answer.
    """

    batches: Buffer | Callable[[], Buffer]
    """Encoded batches, or what encodes them: called on the writer's thread, may raise LogStoreError."""

    durability: Durability
    """The durability that the append needs before `future` is resolved. The writer raises it to the level of
    the topic."""

    future: asyncio.Future[AppendInfo]

    memory: MemoryLease
    """The memory of the batches."""

    identity: LogIdentity
    """The log that it is appended to, for the answer."""

    session: AppendSession | None = None
    """None if it fails alone."""

    conditions: AppendConditions = NO_CONDITIONS

    @property
    def size_bytes(self) -> int:
        """The size of the request on the wire."""
        return self.memory.leased_bytes

    def give_back_memory(self) -> None:
        """Give back the memory once there is an answer. May be called twice."""
        self.batches = b""
        self.memory.close()

    def break_session(self, error: Exception) -> None:
        """Let no later append of the session be applied, because of the failure of this one."""
        if self.session is not None:
            self.session.fail(error)

    @property
    def is_behind_failure(self) -> bool:
        """Whether its session has failed."""
        return self.session is not None and self.session.is_broken

    def require_session(self) -> None:
        """Raise the failure of the session, if it has one. For an append that is in the log, like the failed
        one perhaps: PrecedingAppendFailedError would say that it is not."""
        if self.session is not None and self.session.failure is not None:
            raise self.session.failure

    def failure(self) -> Exception | None:
        """The reason why it failed, or None. Call it when `future` is done."""
        error = self.future.exception()
        assert error is None or isinstance(error, Exception), "a writer fails appends with exceptions"
        return error

    def abandon(self) -> None:
        """Forget the outcome. The append may be applied, unless its session is broken."""
        if not self.future.cancel():
            # Retrieve the result, or asyncio warns about an exception that was never retrieved.
            self.future.exception()

    def encoded_batches(self) -> Buffer:
        """The encoded batches, which stay until `forget_batches`. Raises LogStoreError."""
        if callable(self.batches):
            self.batches = self.batches()
        return self.batches

    def forget_batches(self) -> None:
        """Forget the batches, so that an append that waits for its fsync does not hold written bytes."""
        self.batches = b""

    def put_back(self) -> None:
        """Forget the work so far: the append is validated anew, in another turn."""
        self.memory.unpacked_bytes = 0

    def require_wanted(self) -> None:
        """Raise StoppingError if the caller has left, and PrecedingAppendFailedError behind a failure of its
        session."""
        if self.future.cancelled():
            raise StoppingError("the call has ended, and its append was not applied; send it again")
        if self.is_behind_failure:
            raise preceding_append_failed()


def preceding_append_failed() -> PrecedingAppendFailedError:
    """The refusal of an append behind a failed one of its session. It is not in the log."""
    return PrecedingAppendFailedError(
        "an earlier append of the stream to this partition failed; send this one again with resume"
    )


def answer_error(error: BaseException) -> Exception:
    """The error to answer with; a refusal of the operating system says what to do."""
    if isinstance(error, OSError):
        return DataDirectoryError(
            "the local disk refused a write; look at its space and health",
            path=error.filename or "",
            reason=error.strerror or str(error),
        )
    return error if isinstance(error, Exception) else RuntimeError(str(error))


Outcome: TypeAlias = tuple[PendingAppend, AppendInfo | Exception]
"""An append with its offsets, or with the reason for its failure."""


def resolve(outcomes: Sequence[Outcome]) -> None:
    """Answer appends. On the event loop."""
    for append, outcome in outcomes:
        append.give_back_memory()
        if isinstance(outcome, Exception):
            forget_frames(outcome)
        # A caller that went away has cancelled its future; its append stays.
        if append.future.done():
            continue
        if isinstance(outcome, Exception):
            append.future.set_exception(outcome)
        else:
            append.future.set_result(outcome)
