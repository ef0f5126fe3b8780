"""Quotas: what a principal uses in a second, over all its connections. They slow down first, then refuse.

Each limit is an account that fills with time, up to the amount of one second, and may be overdrawn: a call is
charged in full when it comes, and waits until what was charged before it is paid. So a request that is larger
than a second's amount passes, and those behind it wait for it. A call that would wait for longer than
`MAX_WAIT_S` is refused, without being charged, and learns when to come again. The accounts stay over a
reload, also with other limits.

Other limits bound what is open at once. A call counts from before its wait to its end. A principal without
a quota has such limits, too: a part of the calls of each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import OverloadedError
from stratalog.server.access.access_policy import Principal, Quota
from stratalog.server.call_counts import CallCounts, OpenCall

RATES = tuple(name for name in Quota._fields if name.endswith("_per_s"))
"""The limits that count in time, in the order of the fields of a `Use`."""

MAX_WAIT_S = 5.0
"""The longest wait of a call, or of a message in a stream, for its quota."""

MAX_WAITING_COUNT = 100
"""Calls of a principal that may wait at once, before they begin. Each takes one of the calls that it may have
open."""

MAX_RETRY_DELAY_S = 600.0


class Use(NamedTuple):
    """Amounts that are charged to a quota. 0 charges nothing, and waits for the account; None does not."""

    bytes_in: int | None = None
    bytes_out: int | None = None
    requests: int | None = None


@dataclass(slots=True)
class QuotaCounts:
    """Waits and refusals of a principal. The event loop alone changes it; other threads may read it."""

    throttled_count: int = 0
    throttled_s: float = 0.0
    refused_count: int = 0


class _Account:
    """One limit of one principal. Belongs to the event loop."""

    def __init__(self, now_s: float) -> None:
        self._balance = 0.0
        self._time_s = now_s

    def wait_s(self, limit: int, now_s: float) -> float:
        """The time until the account is not overdrawn."""
        if now_s > self._time_s:
            self._balance = min(float(limit), self._balance + (now_s - self._time_s) * limit)
            self._time_s = now_s
        return max(0.0, -self._balance / limit)

    def charge(self, amount: int) -> None:
        self._balance -= amount


class Quotas:
    """The accounts of all principals. Belongs to the event loop; other threads may read the counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._counts: dict[str, QuotaCounts] = {}

    @property
    def counts(self) -> Mapping[str, QuotaCounts]:
        """By the principal's name, of those that have met a limit."""
        return dict(self._counts)

    def charge(self, principal: Principal, use: Use, *, may_wait: bool = True) -> float:
        """Charge the use; returns the seconds that the call has to wait before it goes on. Raises
        OverloadedError, and charges nothing, if these are too many, or any where it may not wait."""
        limits = [
            (name, limit, amount)
            for name, amount in zip(RATES, use, strict=True)
            if (limit := getattr(principal.quota, name)) is not None and amount is not None
        ]
        if not limits:
            return 0.0
        now_s = self._clock.monotonic_s()
        waits_s = [
            (self._account(principal, name, now_s).wait_s(limit, now_s), name, limit)
            for name, limit, _ in limits
        ]
        wait_s, name, limit = max(waits_s)
        if wait_s > (MAX_WAIT_S if may_wait else 0.0):
            self._counts_of(principal).refused_count += 1
            error = OverloadedError(
                "the quota of the principal is used up; send it again after the pause that the error asks"
                " for, send less, or raise the quota in the server's access file",
                principal=principal.name,
                quota=name,
                limit=limit,
            )
            error.retry_delay_s = min(max(wait_s - MAX_WAIT_S / 2, wait_s / 2), MAX_RETRY_DELAY_S)
            raise error
        for name, _, amount in limits:
            self._account(principal, name, now_s).charge(amount)
        if wait_s > 0:
            counts = self._counts_of(principal)
            counts.throttled_count += 1
            counts.throttled_s += wait_s
        return wait_s

    def require_stream(self, principal: Principal, open_count: int) -> None:
        """Raise OverloadedError if the principal may not have another stream beside so many open ones."""
        limit = principal.quota.open_streams
        if limit is not None and open_count >= limit:
            raise self._too_many(principal, "streams", limit)

    def _too_many(self, principal: Principal, noun: str, limit: int) -> OverloadedError:
        """Count and return the refusal of one more of the open streams, or calls, of the principal."""
        self._counts_of(principal).refused_count += 1
        return OverloadedError(
            f"the principal has as many {noun} open as its quota allows; close some, send it again after a"
            " pause, or raise the quota in the server's access file",
            principal=principal.name,
            quota=f"open_{noun}",
            limit=limit,
        )

    def admit(self, principal: Principal, call: OpenCall, kinds: Iterable[CallCounts]) -> None:
        """Count the call as one of the principal, whose calls are among those of these kinds. Raises
        OverloadedError for one too many, and counts nothing then."""
        limit = principal.quota.open_calls
        if limit is not None and sum(one.principals.of(principal.name) for one in kinds) >= limit:
            raise self._too_many(principal, "calls", limit)
        if not call.enter_principal(principal.name):
            self._counts_of(principal).refused_count += 1
            call.counts.refused_count += 1
            kind = call.counts.kind.value
            raise OverloadedError(
                "the principal has as many calls of this kind open as one may have; close some, send it again"
                f" after a pause, or raise --max-{kind}-calls of the server, of which it may have three"
                " quarters",
                principal=principal.name,
                kind=kind,
                limit=call.counts.principals.limit,
            )

    def settle(self, principal: Principal, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Charge what a call has turned out to use: its answer, or more of its request. It has had its
        effect, so the next one waits for it."""
        for name, amount in (("bytes_in_per_s", bytes_in), ("bytes_out_per_s", bytes_out)):
            if amount and getattr(principal.quota, name) is not None:
                self._account(principal, name, self._clock.monotonic_s()).charge(amount)

    def keep(self, principals: Mapping[str, object]) -> None:
        """Forget the accounts of others than these principals."""
        for key in [key for key in self._accounts if key[0] not in principals]:
            del self._accounts[key]
        for name in [name for name in self._counts if name not in principals]:
            del self._counts[name]

    def _account(self, principal: Principal, name: str, now_s: float) -> _Account:
        key = principal.name, name
        if key not in self._accounts:
            self._accounts[key] = _Account(now_s)
        return self._accounts[key]

    def _counts_of(self, principal: Principal) -> QuotaCounts:
        return self._counts.setdefault(principal.name, QuotaCounts())
