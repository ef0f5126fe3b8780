"""A stop at every place where work looks for one, one place at a time.

Example::

    watched = StopAtLook(at=0)                  # never; counts the places
    work(watched)
    for at in range(1, watched.look_count + 1):
        with pytest.raises(StoppingError):
            work(StopAtLook(at))
"""

from __future__ import annotations

from stratalog.base.stop_signal import StopSignal


class StopAtLook(StopSignal):
    """Sets itself when it is looked at for the time number `at`; 0: never. Belongs to one thread."""

    __slots__ = ("_at", "look_count")

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at
        self.look_count = 0

    def check(self) -> None:
        self.look_count += 1
        if self.look_count == self._at:
            self.set()
        super().check()
