"""The code does what docs/operating.md and docs/protocol.md say."""

from __future__ import annotations

import re

import click

from stratalog.cli.server.start_command import start
from stratalog.log.config_key import MAX_VALUE_LENGTH
from stratalog.log.log_config import LogConfig
from stratalog.record.codecs.compression import LEAST_SENT_BYTES
from stratalog.remote.metadata.catalog.topic_entry import MAX_FENCING_TOKEN_BYTES, MAX_NAME_LENGTH
from stratalog.server.append.append_pipeline import MAX_IN_FLIGHT_COUNT, MAX_LANE_COUNT
from stratalog.server.background_tasks import start_background_tasks
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.setting import toml_text
from stratalog.server.configuration.settings import (
    MAX_CHECK_CALL_COUNT,
    MAX_CONNECTION_WATCH_COUNT,
    ServerSettings,
)
from stratalog.server.configuration.settings_table import SETTINGS
from stratalog.server.health_servicer import PATIENCE_S
from stratalog.server.operations.operation_registry import MAX_WAITING_COUNT
from stratalog.server.rpc.call_guard import MAX_DECODED_BYTES, MAX_ELEMENT_COUNT
from stratalog.server.rpc.log_servicer import MAX_FETCH_PARTITION_COUNT, MAX_OFFSET_QUERY_COUNT
from stratalog.server.rpc.metadata_servicer import MAX_TOPIC_COUNT
from stratalog.server.rpc.read.record_reads import MAX_READ_PARTITION_COUNT
from stratalog.server.rpc.status import INTERNAL_CODE, STATUS_BY_ERROR
from tests.support.places import DOCS


def test_the_table_of_errors_is_the_table_of_the_server() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \|", (DOCS / "protocol.md").read_text(), re.MULTILINE)
    expected = {error.code: status.name for error, status in STATUS_BY_ERROR.items()}
    assert dict(rows) == {**expected, INTERNAL_CODE: "INTERNAL"}
    assert len(rows) == len(expected) + 1


def test_the_tables_of_settings_are_those_of_the_server() -> None:
    text = (DOCS / "operating.md").read_text()
    with_option = re.findall(r"^\| `(--[a-z-]+)` \| `([A-Z_]+)` \| ([^|]+) \|", text, re.MULTILINE)
    without = re.findall(r"^\| `([a-z][a-z-]+)` \| `([A-Z_]+)` \| ([^|]+) \|", text, re.MULTILINE)
    options = [option for option in start.params if isinstance(option, click.Option)]
    names = {setting.option or setting.name: setting for setting in SETTINGS.values()}
    beside = {"--config": "STRATALOG_CONFIG", "--config-file": "STRATALOG_CONFIG_FILE"}
    documented = {name: (variable, default) for name, variable, default in with_option + without}
    assert {name: variable for name, (variable, _) in documented.items()} == {
        **{name: setting.variable for name, setting in names.items()},
        **beside,
    }
    assert {option.opts[0] for option in options} == {name for name, _, _ in with_option}
    for name, setting in names.items():
        if name not in ("--data-dir", "--store"):
            default = toml_text(setting.default).strip('"') if setting.default not in ("", ()) else "none"
            assert documented[name][1].strip().strip("`") == default, name


FIXED = {
    "health checks that are open, beside eight of each connection": MAX_CHECK_CALL_COUNT,
    "milliseconds until the message of a call about the health has come": int(PATIENCE_S * 1000),
    "streams of one connection that watch the health": MAX_CONNECTION_WATCH_COUNT,
    "bytes of a message without records": MAX_DECODED_BYTES,
    "elements of a message without records": MAX_ELEMENT_COUNT,
    "partitions of a fetch": MAX_FETCH_PARTITION_COUNT,
    "partitions of a `Read`": MAX_READ_PARTITION_COUNT,
    "offsets of a `ListOffsets`": MAX_OFFSET_QUERY_COUNT,
    "topics of a `Metadata`": MAX_TOPIC_COUNT,
    "requests of a stream of appends that are under way": MAX_IN_FLIGHT_COUNT,
    "failed partitions of a stream of appends": MAX_LANE_COUNT,
    "characters of the name of a topic": MAX_NAME_LENGTH,
    "characters of the value of a configuration key": MAX_VALUE_LENGTH,
    "bytes of a fencing token": MAX_FENCING_TOKEN_BYTES,
    "operations of one kind that wait for their turn": MAX_WAITING_COUNT,
}
"""The bounds that no setting changes."""


def test_the_table_of_bounds_has_every_bound_with_its_default() -> None:
    section = (DOCS / "operating.md").read_text().partition("\n## Bounds\n")[2]
    rows = re.findall(r"^\| ([a-z][^|]+) \| (\d+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    fixed = {name: int(value) for name, value, setting, _ in rows if setting == "fixed"}
    assert fixed == FIXED
    names = {setting.option or setting.name: setting for setting in SETTINGS.values()}
    of_settings = {setting.strip("`"): int(value) for _, value, setting, _ in rows if setting != "fixed"}
    assert of_settings.pop("max.message.bytes` of the topic") == LogConfig().max_message_bytes
    assert of_settings.pop("max.message.bytes` of the topic, where it is more") == LEAST_SENT_BYTES
    assert of_settings == {name: names[name].default for name in of_settings}
    bounds = {name for name in names if name.lstrip("-").startswith("max-")} - {"--max-silence"}
    assert bounds <= set(of_settings), "a bound is missing in the table"
    codes = {error.code for error in STATUS_BY_ERROR}
    named = {code for _, _, _, seen in rows for code in re.findall(r"`([A-Z_]+)`", seen)}
    assert named <= codes


class NotedTasks:
    """A scheduler that only notes what it is asked to do."""

    def __init__(self) -> None:
        self.period_ms_by_name: dict[str, int] = {}

    def every(self, name: str, task: object, period_ms: int, delay_ms: int = 0) -> None:
        assert callable(task)
        is_local = name in ("local-retention", "flush", "rolled-flush") or name.endswith("-checkpoint")
        assert delay_ms == (30_000 if is_local else period_ms), "nothing runs before the server serves"
        self.period_ms_by_name[name] = period_ms


class AnyEngine:
    """Has every method, and a configuration of defaults."""

    current = BrokerConfig()

    def __getattr__(self, name: str) -> AnyEngine:
        return self

    def __call__(self, *_: object) -> AnyEngine:
        return self


def test_the_table_of_tasks_is_what_is_scheduled() -> None:
    rows = re.findall(
        r"^\| ([a-z -]+) \| (\d+) (s|min) \|", (DOCS / "operating.md").read_text(), re.MULTILINE
    )
    units_ms = {"s": 1000, "min": 60_000}
    documented = {name.replace(" ", "-"): int(number) * units_ms[unit] for name, number, unit in rows}
    scheduler = NotedTasks()
    settings = ServerSettings(data_dir="d")
    start_background_tasks(scheduler, AnyEngine(), settings)  # type: ignore[arg-type]  # stand-ins
    assert scheduler.period_ms_by_name == documented
    # Those of the process: of access, of freed memory, of expired producers, and of the cleaner.
    assert len(documented) + 4 < settings.task_thread_count, "one for each, and some for work that is once"
