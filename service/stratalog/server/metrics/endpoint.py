"""The HTTP endpoint for Prometheus."""

from __future__ import annotations

from prometheus_client import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.settings import listen_address


class MetricsEndpoint:
    """Serves a collector over HTTP until `close`, on threads of its own. Belongs to one thread."""

    def __init__(self, listen: str, collector: Collector) -> None:
        """Listen for requests for metrics. Raises InvalidConfigError if the address is not free."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = listen_address(listen, "metrics-listen")
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]"), registry)
        except OSError as error:
            raise InvalidConfigError(
                "cannot listen on this address for metrics; stop the process that has the port, or choose"
                " another address",
                name="metrics-listen",
                value=listen,
                reason=error.strerror or str(error),
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
