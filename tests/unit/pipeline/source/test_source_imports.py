"""Spark imports the source in every process that looks data sources up, and once broke on one of them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.source.read_options import parse_options
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.plain_store import START_MS, PlainStore

pytest.importorskip("pyspark")

HEAVY = (
    "pyarrow",
    "pandas",
    "boto3",
    "botocore",
    "grpc",
    "google.protobuf",
    "stratalog.v1",
    "stratalog.client.client",
)


def modules_after(program: str, **environment: str) -> set[str]:
    """The modules of `HEAVY` that a fresh interpreter has loaded when it has run the program."""
    program += f"\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_module_that_spark_finds_is_light() -> None:
    program = "import pyspark_stratalog; assert pyspark_stratalog.DefaultSource.name() == 'stratalog'"
    # pyspark itself may load pyarrow.
    assert modules_after(program) <= modules_after("import pyspark.sql.datasource") | {"pyarrow"}
    assert "pyarrow" not in modules_after("import stratalog.pipeline.source.read_options")


def test_the_module_that_spark_finds_never_raises(tmp_path: Path) -> None:
    broken = tmp_path / "pyspark" / "__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise RuntimeError('a broken installation')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport pyspark_stratalog"
    assert modules_after(program) == set()


def test_an_older_pyspark_is_named() -> None:
    program = """
import pyspark.sql.datasource
del pyspark.sql.datasource.DataSource
try:
    import stratalog.pipeline.source.data_source
except ImportError as error:
    assert "PySpark 4" in str(error)
else:
    raise AssertionError
"""
    modules_after(program)


_OLDER = """
import sys
import pyspark.sql.datasource as interface
for name in ("DataSourceStreamArrowWriter", "Filter", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "In",
             "LessThan", "LessThanOrEqual")[:{lacking}]:
    delattr(interface, name)
sys.modules["pyspark.sql.streaming.datasource"] = None
import pyspark_stratalog
from pyspark.sql.types import StructType
from stratalog.base.errors import UnsupportedOperationError

def made(**options):
    given = {{"store": "file:///nowhere", "topic": "t", **options}}
    return pyspark_stratalog.DefaultSource(interface.CaseInsensitiveDict(given))

def refused(make, schema, version):
    try:
        make(schema)
    except UnsupportedOperationError as error:
        assert error.fields["needed_version"] == version, error
    else:
        raise AssertionError(version)

rows = StructType().add("offset", "long")
assert isinstance(made().reader(rows), interface.DataSourceReader)
for limit in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
    refused(made(**{{limit: "5"}}).streamReader, rows, "4.2")
import inspect
stream = made().streamReader(rows)
assert not inspect.signature(stream.latestOffset).parameters, "Spark gives none"
import stratalog.pipeline.sink.topic_writer
"""


def test_spark_4_0_reads_and_writes_without_what_it_lacks() -> None:
    """It has no filters, no limits of streams, and no streams' writers of Arrow batches."""
    program = """
refused(made(pushdown="true").reader, rows, "4.1")
rows = StructType().add("value", "binary")
writer = pyspark_stratalog.DefaultSource({"server": "localhost:1", "topic": "t"}).streamWriter(rows, False)
assert isinstance(writer, interface.DataSourceStreamWriter), "Spark requires it"
assert isinstance(writer, interface.DataSourceArrowWriter), "it gets Arrow batches then"
"""
    modules_after(_OLDER.format(lacking=8) + program)


def test_spark_4_1_has_no_limits_of_streams() -> None:
    program = """
assert hasattr(made(pushdown="true").reader(rows), "pushFilters")
"""
    modules_after(_OLDER.format(lacking=0) + program)


def test_a_task_loads_nothing_of_grpc_and_leaves_little_to_collect(tmp_path: Path) -> None:
    from stratalog.pipeline.source.stream_reader import TopicStreamReader
    from stratalog.pipeline.source.topic_reader import TopicReader

    url = str(tmp_path / "store")
    found = PlainStore(LocalObjectStore(PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), url))
    found.create("t")
    found.upload({("t", 0): 20})
    given = {"store": found.store.url, "topic": "t"}
    reader = TopicReader(parse_options(given, is_stream=False), ("offset",))
    stream = TopicStreamReader(parse_options(given, is_stream=True), ("offset",))
    (task,) = reader.partitions()
    for number, one in enumerate((reader, stream)):
        (tmp_path / str(number)).write_bytes(pickle.dumps((one, task)))
        program = (
            f"import pickle; reader, task = pickle.load(open({str(tmp_path / str(number))!r}, 'rb'))\n"
            "assert sum(batch.num_rows for batch in reader.read(task)) == 20\n"
            "import gc\n"
            "assert len(gc.get_objects()) < 5_000, 'Spark collects garbage after each task'"
        )
        assert modules_after(program) <= {"pyarrow"}


def test_what_travels_to_executors_has_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog.pipeline.source.topic_reader import TopicReader

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASENTINEL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-sentinel")
    url = str(tmp_path / "store")
    found = PlainStore(LocalObjectStore(PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), url))
    found.create("t", cleanup_policy="compact")
    found.upload({("t", 0): 20})
    options = parse_options(
        {"store": found.store.url, "topic": "t", "isolationLevel": "read_committed"}, is_stream=False
    )
    reader = TopicReader(options, ("offset",))
    tasks = reader.partitions()
    hash_key = found.tiered.topic(found.tips["t"][0]).hash_key
    travelling = pickle.dumps((reader, tasks))
    for secret in (b"AKIASENTINEL", b"secret-sentinel", hash_key):
        assert secret not in travelling
    assert repr(tasks[0]) == "SlicePartition(1 spans)"


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_task_that_writes_loads_nothing_of_grpc_before_its_first_row(tmp_path: Path, delivery: str) -> None:
    from pyspark.sql.types import StructType

    from stratalog.pipeline.source.data_source import StratalogDataSource

    source = StratalogDataSource({"server": "localhost:1", "topic": "t", "delivery": delivery})
    schema = StructType().add("value", "binary")
    writers = source.writer(schema, False), source.streamWriter(schema, False)
    (tmp_path / "writers").write_bytes(pickle.dumps(writers))
    program = (
        "import pickle, pyarrow as pa\n"
        f"job, stream = pickle.load(open({str(tmp_path / 'writers')!r}, 'rb'))\n"
        "job.write(iter([pa.RecordBatch.from_pydict({'value': pa.array([], pa.binary())})]))"
    )
    assert modules_after(program) <= {"pyarrow", "pandas"}
