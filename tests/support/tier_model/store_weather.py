"""The faults that one process meets at its store, which a test turns on and off."""

from __future__ import annotations

from random import Random

from stratalog.testing.store_faults import FAULTS_OF_VERB, STOPS, Fault, Operation


class StoreWeather:
    """A plan of faults. Not thread-safe: one test changes it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.probability = 0.0
        """How often a request meets a fault that it survives."""
        self.fault: Fault | None = None
        """The only fault of a spell; None for all of them."""
        self.stops_in: int | None = None
        """The process dies at the request that comes after so many others."""
        self.stop: Fault | None = None
        """How it dies; None for either way."""
        self._flipped_heads: set[str] = set()
        """Heads whose last answer was flipped: a reader survives one, and asks again."""

    def __call__(self, operation: Operation) -> Fault:
        if self.stops_in is not None:
            self.stops_in -= 1
            if self.stops_in < 0:
                return self.stop or self._random.choice(STOPS)
        fault = self._survived(operation)
        if operation.verb == "GET" and operation.key.endswith("/head"):
            self._flipped_heads.discard(operation.key)
            if fault is Fault.IS_FLIPPED:
                self._flipped_heads.add(operation.key)
        return fault

    def _survived(self, operation: Operation) -> Fault:
        if self.probability == 0 or self._random.random() >= self.probability:
            return Fault.NONE
        faults = [one for one in FAULTS_OF_VERB[operation.verb] if one not in STOPS]
        if operation.verb == "GET" and operation.key not in self._flipped_heads:
            faults.append(Fault.IS_FLIPPED)
        if self.fault is not None:
            return self.fault if self.fault in faults else Fault.NONE
        return self._random.choice(faults)
