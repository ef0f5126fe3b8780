"""The alerts and the dashboard in deploy/ ask for metrics and labels that the server exports.

docs/metrics.md has those; `test_service_metrics.py` compares it with a running server. Prometheus' own tool
plays the rules over time, against the series in `alerts_test.yml`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.engine.component_settings import uploader_settings
from tests.support.places import DOCS, REPOSITORY

promql_parser: Any = pytest.importorskip("promql_parser")
yaml: Any = pytest.importorskip("yaml")

DEPLOY = REPOSITORY / "deploy"
OF_PROMETHEUS = frozenset({"job", "instance"})
"""The labels that Prometheus adds."""
_INNER = ("lhs", "rhs", "expr", "vector_selector", "args")
"""The names of an expression's parts."""


def exported() -> Mapping[str, frozenset[str]]:
    """The labels of each sample by its name, from the document."""
    row = r"^\| `((?:stratalog|process)_[a-z_]+)` \| ([a-z]+) \| ([^|]*?) ?\|"
    samples = {"up": OF_PROMETHEUS}
    for name, kind, labels in re.findall(row, (DOCS / "metrics.md").read_text(), re.MULTILINE):
        own = OF_PROMETHEUS | set(re.findall(r"`([a-z_]+)`", labels))
        if kind == "histogram":
            samples |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            samples[name] = own
    return samples


SAMPLES = exported()


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    document = json.loads((DEPLOY / "grafana" / "stratalog.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Each expression with its place."""
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "5m")


def complaints(expression: str) -> list[str]:
    """The names and labels of an expression that the server does not export. Raises ValueError for one that
    Prometheus would not take."""
    found: list[str] = []
    _labels_of(promql_parser.parse(expression), found)
    return found


def _parts(inner: Any) -> list[Any]:
    return [*inner] if isinstance(inner, list) else [inner]


def _labels_of(node: Any, found: list[str]) -> frozenset[str]:
    """The labels that the samples of the expression may have; notes complaints."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        if node.name not in SAMPLES:
            found.append(f"unknown metric {node.name}")
            return frozenset()
        matched = {matcher.name for matcher in node.matchers.matchers}
        found += sorted(f"{node.name} has no label {one}" for one in matched - SAMPLES[node.name])
        return SAMPLES[node.name]
    labels: frozenset[str] = frozenset()
    for name in _INNER:
        inner: Any = getattr(node, name, None)
        for one in _parts(inner):
            labels |= frozenset() if one is None else _labels_of(one, found)
    if kind == "AggregateExpr" and node.modifier is not None:
        asked = frozenset(node.modifier.labels)
        found += sorted(f"nothing below `by` has the label {one}" for one in asked - labels)
        return asked & labels
    return labels


@pytest.mark.parametrize(("place", "expression"), list(queries()))
def test_what_is_asked_for_is_exported(place: str, expression: str) -> None:
    assert complaints(expression) == [], place


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(stratalog_server_method_call_total[5m])", "unknown metric stratalog_server_method_call_total"),
        ("stratalog_server_open_calls{method='x'}", "stratalog_server_open_calls has no label method"),
        (
            "sum by (shard) (rate(stratalog_server_calls_total[5m])) > 0",
            "nothing below `by` has the label shard",
        ),
        (
            "1 - (up and -stratalog_server_method_duration_secs)",
            "unknown metric stratalog_server_method_duration_secs",
        ),
    ],
)
def test_what_is_not_exported_is_found(expression: str, complaint: str) -> None:
    assert complaints(expression) == [complaint]


def test_the_text_of_an_alert_names_labels_that_its_expression_has() -> None:
    for alert in alerts():
        labels = _labels_of(promql_parser.parse(alert["expr"]), [])
        text = alert["annotations"]["summary"]
        asked = set(re.findall(r"\$labels\.(\w+)", text))
        assert asked <= labels, alert["alert"]
        assert text.endswith("."), alert["alert"]
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]


def test_the_legend_of_a_panel_names_labels_that_its_expression_has() -> None:
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            labels = _labels_of(promql_parser.parse(expression), [])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]


def test_a_disk_is_nearly_short_where_uploads_are_hurried() -> None:
    [expression] = [one["expr"] for one in alerts() if one["alert"] == "StratalogDiskNearlyShort"]
    [factor] = re.findall(r"\(([0-9.]+) \* stratalog_log_manager_min_free_bytes\)", expression)
    config = BrokerConfig(min_free_bytes=1000)
    assert uploader_settings(config).short_below_bytes == 1000 * float(factor)


def test_each_alert_has_a_row_that_says_what_to_do() -> None:
    section = (DOCS / "operating.md").read_text().partition("\n### Alerts\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(Stratalog\w+)` \| (.+) \|$", section, re.MULTILINE))
    assert list(rows) == [alert["alert"] for alert in alerts()]
    assert all(len(text.split()) >= 10 for text in rows.values())


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())[
        "tests"
    ]
    return found


def test_each_alert_has_a_case_in_which_it_comes_and_one_in_which_it_does_not() -> None:
    assert [case["name"] for case in cases()] == [alert["alert"] for alert in alerts()]
    for case in cases():
        expected = [one["exp_alerts"] for one in case["alert_rule_test"]]
        assert {one["alertname"] for one in case["alert_rule_test"]} == {case["name"]}
        assert expected[0] == [], f"{case['name']} waits, or begins later"
        [[alert]] = expected[1:]
        servers = set(re.findall('instance="([a-z]+)"', str(case["input_series"])))
        assert servers == {"ill", "well"}, case["name"]
        assert alert["exp_labels"]["instance"] == "ill", case["name"]


def test_the_series_of_a_case_are_exported() -> None:
    for case in cases():
        for one in case["input_series"]:
            assert complaints(one["series"]) == [], case["name"]


def test_the_alerts_come_and_stay_away_as_their_cases_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    path = DEPLOY / "prometheus" / "alerts_test.yml"
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    document = json.loads((DEPLOY / "grafana" / "stratalog.json").read_text())
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for panel in document["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_scrape_configuration_has_the_job_and_the_rules() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert [one["job_name"] for one in document["scrape_configs"]] == ["stratalog"]
    assert document["rule_files"] == ["alerts.yml"]
