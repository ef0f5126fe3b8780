"""Metric families: samples of one metric with its name and help, in Prometheus' client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isinf

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from stratalog.base.histogram import HistogramCounts

PREFIX = "stratalog_"


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels; `text` is its help."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels; its samples get the suffix `_total`."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with one label, by the values of the label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def counters(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    """A counter with labels, by their values."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def histograms(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], HistogramCounts]]
) -> Metric:
    """A histogram with labels, by their values; without any, `values` has one with an empty key."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for key, counts in values:
        family.add_metric(key, list(_buckets(counts)), counts.total)
    return family


def _buckets(counts: HistogramCounts) -> Iterator[tuple[str, float]]:
    """The upper bounds as Prometheus writes them, each with the number of values up to it."""
    seen_count = 0
    for bound, count in zip((*counts.bounds, inf), counts.counts, strict=True):
        seen_count += count
        yield "+Inf" if isinf(bound) else str(bound), seen_count
