"""The endpoint of the metrics among strangers who connect and stay."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stratalog.base.clock import SystemClock
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from stratalog.server.metrics.endpoint import MAX_CONNECTION_COUNT, MetricsEndpoint
from stratalog.server.metrics.families import gauge
from tests.support.access.certificates import Authority

PATIENCE_S = 30.0
STRANGER_COUNT = 2 * MAX_CONNECTION_COUNT


class One(Collector):
    def collect(self) -> Iterator[Metric]:
        yield gauge("one", "One.", 1)


@pytest.mark.parametrize("has_tls", [False, True])
def test_strangers_take_a_bounded_number_of_threads_and_hold_up_no_scrape(
    tmp_path: Path, has_tls: bool
) -> None:
    authority = Authority(tmp_path, "ca")
    tls = ServerTls(TlsPaths(*authority.issue("server", "127.0.0.1")), SystemClock()) if has_tls else None
    context = ssl.create_default_context(cafile=authority.path) if has_tls else None
    before_count = threading.active_count()
    endpoint = MetricsEndpoint("127.0.0.1:0", One(), tls)
    try:
        with ExitStack() as stack:
            strangers: list[socket.socket] = []
            for _ in range(STRANGER_COUNT):
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
                stranger.settimeout(PATIENCE_S)
                strangers.append(stranger)
            # Which of the first ones began to be served first is chance, so it is their number that counts.
            deadline_s = time.monotonic() + PATIENCE_S
            while threading.active_count() - before_count > MAX_CONNECTION_COUNT + 1:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            for stranger in strangers[: MAX_CONNECTION_COUNT // 2]:
                assert stranger.recv(1) == b""
            url = f"http{'s' if has_tls else ''}://127.0.0.1:{endpoint.port}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
                assert "stratalog_one 1.0" in answer.read().decode()
    finally:
        endpoint.close()
