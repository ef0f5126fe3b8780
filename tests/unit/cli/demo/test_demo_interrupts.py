"""An interrupt of the demonstration is an interrupt, whatever the library makes of it that it met."""

from __future__ import annotations

import os
import signal

import pytest

from stratalog.cli.demo import flights
from stratalog.cli.interrupts import interrupts_held_back


def test_a_parser_that_turns_an_interrupt_into_its_own_error_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_csv(_path: object) -> object:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        raise ValueError("Calling read(nbytes) on source failed.")

    monkeypatch.setattr("pandas.read_csv", read_csv)
    former = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        flights.load(1)
    assert signal.getsignal(signal.SIGINT) is former


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_held_back_comes_at_the_end(number: signal.Signals) -> None:
    done: list[str] = []

    def read() -> None:
        with interrupts_held_back():
            os.kill(os.getpid(), number)
            done.append("read")

    with pytest.raises(KeyboardInterrupt):
        read()
    assert done == ["read"]
