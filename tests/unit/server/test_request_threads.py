"""Threads for requests that may hang: real threads, synchronised by events and queues only."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from stratalog.server import request_threads
from stratalog.server.request_threads import RequestThreads

PATIENCE_S = 30.0


class Requests:
    """Requests that note their threads, and may hang."""

    def __init__(self) -> None:
        self.threads = RequestThreads()
        self.ran: SimpleQueue[threading.Thread] = SimpleQueue()
        self.may_end = threading.Event()

    def run(self) -> threading.Thread:
        """The thread that runs the next request."""
        self.threads.run(lambda: self.ran.put(threading.current_thread()))
        return self.ran.get(timeout=PATIENCE_S)

    def hang(self) -> threading.Thread:
        """The thread of a request that hangs until `may_end`."""

        def hang() -> None:
            self.ran.put(threading.current_thread())
            self.may_end.wait(PATIENCE_S)

        self.threads.run(hang)
        return self.ran.get(timeout=PATIENCE_S)

    def await_idle(self, count: int) -> None:
        """Wait until so many threads are idle."""
        while len(self.threads._idle) != count:  # pyright: ignore[reportPrivateUsage]  # no other sign of it
            threading.Event().wait(0.001)


def test_a_thread_that_is_done_runs_the_next_request() -> None:
    requests = Requests()
    first = requests.run()
    requests.await_idle(1)
    assert requests.run() is first
    assert first.daemon, "the end of the process does not wait for it"


def test_no_request_waits_for_one_that_hangs() -> None:
    requests = Requests()
    hanging = {requests.hang() for _ in range(request_threads.MAX_IDLE_COUNT + 2)}
    assert len(hanging) == request_threads.MAX_IDLE_COUNT + 2
    assert requests.run() not in hanging
    requests.may_end.set()
    requests.await_idle(request_threads.MAX_IDLE_COUNT)


def test_idle_threads_end_with_the_server_and_later_requests_still_run() -> None:
    requests = Requests()
    first = requests.run()
    requests.await_idle(1)
    requests.threads.close()
    first.join(PATIENCE_S)
    assert not first.is_alive()
    later = requests.run()
    later.join(PATIENCE_S)
    assert not later.is_alive()
