"""The HTTP endpoint that Prometheus asks: it has a thread of its own, and one for each request."""

from __future__ import annotations

from prometheus_client import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.settings import listen_address


class MetricsEndpoint:
    """Used by one thread; open from its beginning to `close`."""

    def __init__(self, listen: str, collector: Collector) -> None:
        """Raises InvalidConfigError where the address cannot be had."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = listen_address(listen, "metrics-listen")
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]"), registry)
        except OSError as error:
            raise InvalidConfigError(
                "cannot listen there for metrics; stop the process that has the port, or choose another"
                " address",
                name="metrics-listen",
                value=listen,
                reason=error.strerror or str(error),
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Nobody is answered any more when this returns."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
