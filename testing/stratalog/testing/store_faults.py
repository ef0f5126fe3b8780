"""The faults of requests to an object store, and plans of when they happen.

A fault is about one request of one actor. For a write the question is always the same: did it land, and what
was the actor told?

    fault                 lands?                     the actor sees
    NONE                  yes                        success (or a rightful refusal)
    FAILS                 no                         StoreUnavailableError
    LANDS_UNKNOWN         yes                        StoreUnavailableError
    LANDS_LATE            when the test releases it  StoreUnavailableError, at once
    LANDS_AND_IS_REFUSED  yes, and is sent again     what the second sending gets: a refusal if conditional
    IS_CUT_OFF            a part of a bulk deletion  StoreUnavailableError, amid a body or a listing
    IS_FLIPPED            -                          a body in which one bit is another
    STOPS_BEFORE          no                         nothing any more: the actor has stopped for ever
    STOPS_AFTER           yes                        nothing any more

A plan is any callable from an `Operation` to a `Fault`; those here are deterministic, given their
`random.Random`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, NamedTuple


class Fault(enum.Enum):
    """A fault, as in the module's table. A trace shows its value."""

    NONE = "works"
    FAILS = "fails"
    LANDS_UNKNOWN = "lands unknown"
    LANDS_LATE = "lands late"
    LANDS_AND_IS_REFUSED = "lands and is sent again"
    IS_CUT_OFF = "is cut off"
    IS_FLIPPED = "has a flipped bit"
    STOPS_BEFORE = "stops before"
    STOPS_AFTER = "stops after"


class Operation(NamedTuple):
    """One call of an actor, before it is carried out."""

    number: int
    """Counts from 0 within a trace, so over all actors that share it."""
    actor: str
    verb: str
    """GET, PUT, LIST or DELETE."""
    key: str
    """A listing's prefix; the first key of a bulk deletion."""
    condition: str = ""
    """`if_match`, `if_absent` or `if_changed`; of an upload in parts `begin`, `part N`, `complete` or
    `abort`; else nothing."""

    def __str__(self) -> str:
        return " ".join(
            filter(None, (f"{self.number:04}", self.actor, self.verb, self.key or "''", self.condition))
        )


FaultPlan = Callable[[Operation], Fault]

STOPS: Final = (Fault.STOPS_BEFORE, Fault.STOPS_AFTER)
"""The faults that end an actor."""
FAULTS_OF_VERB: Final[Mapping[str, tuple[Fault, ...]]] = {
    "GET": (Fault.FAILS, Fault.IS_CUT_OFF, *STOPS),
    "LIST": (Fault.FAILS, Fault.IS_CUT_OFF, *STOPS),
    "PUT": (Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.LANDS_LATE, Fault.LANDS_AND_IS_REFUSED, *STOPS),
    "DELETE": (Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.LANDS_LATE, Fault.IS_CUT_OFF, *STOPS),
}
"""Which faults make a difference for which verb; a plan may ask for no other but `IS_FLIPPED` of a GET.

That one is for plans that know what they read: the identity of a store has no checksum, nor has a head before
metadata version 5, and of a damaged answer a reader survives one.
"""


def makes_a_difference(fault: Fault, verb: str) -> bool:
    """Whether a plan may ask for the fault at a request of that verb."""
    return fault in (Fault.NONE, *FAULTS_OF_VERB[verb]) or (fault is Fault.IS_FLIPPED and verb == "GET")


def no_faults(operation: Operation) -> Fault:  # noqa: ARG001 - the plan that looks at nothing
    """Everything works."""
    return Fault.NONE


class FaultsAt:
    """The given faults at the given numbers: for sweeps over every request. Immutable."""

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        self._faults = dict(faults)

    def __call__(self, operation: Operation) -> Fault:
        return self._faults.get(operation.number, Fault.NONE)


class FaultOn:
    """One fault at the `occurrence`-th (from 1) request of a verb and a key prefix. Not thread-safe."""

    def __init__(self, fault: Fault, verb: str, key_prefix: str = "", occurrence: int = 1) -> None:
        assert makes_a_difference(fault, verb), f"{fault} makes no difference for {verb}"
        self._fault = fault
        self._verb = verb
        self._key_prefix = key_prefix
        self._remaining_count = occurrence

    def __call__(self, operation: Operation) -> Fault:
        if operation.verb == self._verb and operation.key.startswith(self._key_prefix):
            self._remaining_count -= 1
            if self._remaining_count == 0:
                return self._fault
        return Fault.NONE


class RandomFaults:
    """One of its verb's faults for each operation, with a probability. Not thread-safe."""

    def __init__(self, random: Random, probability: float, *, stops: bool = False) -> None:
        self._random = random
        self._probability = probability
        self._stops = stops

    def __call__(self, operation: Operation) -> Fault:
        if self._random.random() >= self._probability:
            return Fault.NONE
        faults = [fault for fault in FAULTS_OF_VERB[operation.verb] if self._stops or fault not in STOPS]
        return self._random.choice(faults)
