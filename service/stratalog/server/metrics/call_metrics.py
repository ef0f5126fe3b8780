"""The metrics of calls: each method's rate, durations, bytes and ends, and the caps of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from stratalog.server.call_counts import CallCounts, CallKind
from stratalog.server.meters.call_meter import MethodName
from stratalog.server.meters.error_counts import AnsweredError
from stratalog.server.meters.method_counts import MethodCounts
from stratalog.server.metrics.families import PREFIX, counters, gauge, gauges, histograms

_METHOD = ("service", "method")


def of_call_kinds(calls: Mapping[CallKind, CallCounts], awaited_request_count: int) -> Iterator[Metric]:
    """Yield the calls of each kind beside their caps, and the number of those whose request has not come."""
    yield gauges(
        "server_open_calls",
        "Calls and streams that are open.",
        "kind",
        {kind.value: counts.open_count for kind, counts in calls.items()},
    )
    yield gauges(
        "server_max_open_calls",
        "Calls and streams that may be open at once.",
        "kind",
        {kind.value: counts.limit for kind, counts in calls.items()},
    )
    yield gauge("server_awaited_requests", "Open calls whose request has not come.", awaited_request_count)
    for name, text, measure in _COUNTERS_OF_A_KIND:
        yield counters(name, text, ("kind",), (((kind.value,), measure(one)) for kind, one in calls.items()))


def of_methods(methods: Mapping[MethodName, MethodCounts]) -> Iterator[Metric]:
    """Yield the calls of each method that was called."""
    for name, text, measure in _COUNTERS_OF_A_METHOD:
        yield counters(name, text, _METHOD, ((method, measure(one)) for method, one in methods.items()))
    opened = GaugeMetricFamily(PREFIX + "server_method_open_calls", "Calls that are open.", labels=_METHOD)
    for method, one in methods.items():
        opened.add_metric(method, one.open_count)
    yield opened
    yield histograms(
        "server_method_duration_secs",
        "Seconds from the begin of a call to its end, streams and waits of fetches included.",
        _METHOD,
        ((method, one.durations.counts()) for method, one in methods.items()),
    )
    yield counters(
        "server_method_ends",
        "Calls that have ended, by status code and reason.",
        (*_METHOD, "code", "reason"),
        (
            ((*method, *end), count)
            for method, one in methods.items()
            for end, count in one.ends.copy().items()
        ),
    )


def of_errors(errors: Mapping[AnsweredError, int]) -> Iterator[Metric]:
    """Yield the errors that were answered, those of single partitions included."""
    yield counters("server_errors", "Errors in answers.", ("code", "reason"), errors.items())


_COUNTERS_OF_A_KIND: Sequence[tuple[str, str, Callable[[CallCounts], int]]] = (
    ("server_calls", "Calls that were let in.", lambda one: one.accepted_count),
    ("server_refused_calls", "Calls that were refused as too many.", lambda one: one.refused_count),
)
_COUNTERS_OF_A_METHOD: Sequence[tuple[str, str, Callable[[MethodCounts], int]]] = (
    ("server_method_calls", "Calls that have begun.", lambda one: one.started_count),
    ("server_method_received_messages", "Messages of requests.", lambda one: one.received_count),
    ("server_method_received_bytes", "Their size.", lambda one: one.received_bytes),
    ("server_method_sent_messages", "Messages of answers.", lambda one: one.sent_count),
    ("server_method_sent_bytes", "Their size.", lambda one: one.sent_bytes),
)
