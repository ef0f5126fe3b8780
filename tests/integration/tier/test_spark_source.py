"""Topics in Spark: real PySpark over real objects, in a local directory and in an S3 server."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.client.append_record import AppendRecord
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN
from tests.support.service.server_process import ServerProcess
from tests.support.spark.plain_store import PlainStore
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_store import TieredStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
GOLDEN_TOPICS = ("txn", "compacted")
NOW_MS = 1_700_000_000_000
STATE_COLUMNS = "key binary, partition int, offset bigint, value binary, timestamp timestamp"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalObjectStore(PosixFileSystem(), ManualClock(NOW_MS), SequentialIds(1), str(tmp_path / "store"))


class Topic:
    """A topic of two partitions, with the records that were written to it."""

    def __init__(self, store: ObjectStore, tmp_path: Path) -> None:
        self.tiered = TieredStore(
            PosixFileSystem(),
            store,
            ManualClock(NOW_MS),
            SequentialIds(2),
            directory=str(tmp_path / "tiered"),
        )
        entry = self.tiered.catalog.create("state", 2, {"cleanup.policy": "compact"})
        self.partitions = [TopicIdPartition(entry.topic_id, number) for number in range(2)]
        self.written: dict[int, list[Record]] = {0: [], 1: []}

    def upload(self, codec: Codec, *records: tuple[int, bytes, bytes | None]) -> None:
        """One object: (partition, key, value) of each record."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for tip in self.partitions:
            before = self.written[tip.partition]
            new = [
                Record(
                    len(before) + index,
                    NOW_MS + len(before) + index,
                    key,
                    value,
                    (("source", b"test"), ("empty", None)) if value else (),
                )
                for index, (_, key, value) in enumerate(r for r in records if r[0] == tip.partition)
            ]
            if new:
                slices[tip] = [encode_batch(new, codec=codec, base_offset=new[0].offset)]
                before += new
        self.tiered.upload(slices)

    def expected_rows(self, log_start_offsets: dict[int, int] | None = None) -> list[dict[str, Any]]:
        return [
            {
                "key": record.key,
                "value": record.value,
                "topic": "state",
                "partition": partition,
                "offset": record.offset,
                "timestamp": (EPOCH + dt.timedelta(milliseconds=record.timestamp_ms)).replace(tzinfo=None),
                "timestampType": 0,
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                "tombstone": record.value is None,
            }
            for partition, records in self.written.items()
            for record in records
            if record.offset >= (log_start_offsets or {}).get(partition, 0)
        ]


@pytest.fixture
def topic(store: ObjectStore, tmp_path: Path) -> Topic:
    topic = Topic(store, tmp_path)
    topic.upload(Codec.NONE, (0, b"a", b"1"), (0, b"b", b"2"), (1, b"c", b"3"))
    topic.upload(Codec.ZSTD, (0, b"a", None), (1, b"c", b"4"), (1, b"d", b"5"))
    topic.upload(Codec.GZIP, (0, b"b", b"6"))
    return topic


def source_of(spark: SparkSession, topic: Topic, name: str = "state") -> DataFrameReader:
    return spark.read.format("stratalog").option("store", topic.tiered.store.url).option("topic", name)


def load(spark: SparkSession, topic: Topic, name: str = "state", **options: str) -> DataFrame:
    return source_of(spark, topic, name).options(includeHeaders="true", **options).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """In the order of partition and offset, values as plain Python."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    for row in rows:
        row["key"] = bytes(row["key"])
        row["value"] = None if row["value"] is None else bytes(row["value"])
        for header in row.get("headers") or ():
            header["value"] = None if header["value"] is None else bytes(header["value"])
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_every_column_of_every_record(spark: SparkSession, topic: Topic) -> None:
    assert rows_of(load(spark, topic)) == topic.expected_rows()


def test_one_task_a_slice_reads_the_same(spark: SparkSession, topic: Topic) -> None:
    frame = load(spark, topic, maxPartitionBytes="1")
    assert frame.rdd.getNumPartitions() == 5
    assert rows_of(frame) == topic.expected_rows()


def test_latest_state_is_the_same_before_and_after_compaction(spark: SparkSession, topic: Topic) -> None:
    from stratalog.pipeline.latest_state import latest_state

    def state() -> dict[bytes, tuple[int, bytes | None]]:
        rows = latest_state(load(spark, topic)).collect()
        return {
            bytes(row["key"]): (row["offset"], None if row["tombstone"] else bytes(row["value"]))
            for row in rows
        }

    expected = {b"a": (2, None), b"b": (3, b"6"), b"c": (1, b"4"), b"d": (2, b"5")}
    assert state() == expected
    assert topic.tiered.compactor().run()
    assert rows_of(load(spark, topic)) == [
        row
        for row in topic.expected_rows()
        if (row["partition"], row["offset"]) in {(0, 2), (0, 3), (1, 1), (1, 2)}
    ]
    assert state() == expected


def test_latest_state_keeps_topics_apart(spark: SparkSession, topic: Topic) -> None:
    from stratalog.pipeline.latest_state import latest_state

    other = TopicIdPartition(topic.tiered.catalog.create("other", 1).topic_id, 0)
    topic.tiered.upload({other: [encode_batch([Record(0, NOW_MS, b"a", b"9")])]})
    both = latest_state(load(spark, topic, "state,other"))
    found = {(row["topic"], bytes(row["key"])): row["offset"] for row in both.collect()}
    of_state = {("state", b"a"): 2, ("state", b"b"): 3, ("state", b"c"): 1, ("state", b"d"): 2}
    assert found == {**of_state, ("other", b"a"): 0}
    alone = latest_state(source_of(spark, topic).schema(f"{STATE_COLUMNS}, tombstone boolean").load())
    assert {(bytes(row["key"]), row["offset"]) for row in alone.collect()} == {
        (key, offset) for (_, key), offset in of_state.items()
    }


def test_a_schema_of_few_columns_reads_only_those(spark: SparkSession, topic: Topic) -> None:
    source = source_of(spark, topic)
    frame = source.schema("offset bigint, key binary").load()
    assert frame.columns == ["offset", "key"]
    assert sorted((bytes(row["key"]), row["offset"]) for row in frame.collect()) == sorted(
        (row["key"], row["offset"]) for row in topic.expected_rows()
    )


def test_times_have_a_zone_whatever_sessions_take_for_timestamps(spark: SparkSession, topic: Topic) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = load(spark, topic)
        assert dict(frame.dtypes)["timestamp"] == "timestamp"
        assert rows_of(frame) == topic.expected_rows()
        few = source_of(spark, topic).option("columns", "timestamp").load()
        assert few.count() == len(topic.expected_rows())
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_a_topic_without_tiered_data_is_empty(spark: SparkSession, topic: Topic) -> None:
    topic.tiered.catalog.create("fresh", 3, {})
    frame = load(spark, topic, "fresh")
    assert frame.count() == 0
    assert "tombstone" in frame.columns


def test_headers_are_a_column_where_they_are_asked_for(spark: SparkSession, topic: Topic) -> None:
    assert "headers" not in source_of(spark, topic).load().columns
    assert "headers" in load(spark, topic).columns


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"topic": ""}, "topic"),
        ({"store": "ftp://x"}, "store"),
        ({"maxPartitionBytes": "many"}, "maxPartitionBytes"),
        ({"server": "nowhere"}, "server"),
        ({"isolationLevel": "serializable"}, "isolationLevel"),
        (
            {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "isolationLevel",
        ),
    ],
)
def test_a_wrong_option_is_named(topic: Topic, options: dict[str, str], name: str) -> None:
    """Spark's JVM takes no part: the next test has that."""
    with pytest.raises(InvalidConfigError) as error:
        rows_without_jvm({"store": topic.tiered.store.url, "topic": "state", **options})
    assert error.value.fields["name"] == name


def test_spark_shows_what_is_wrong(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(Exception, match="no such topic"):
        load(spark, topic, "missing").collect()


def rows_without_jvm(options: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a query, from the source's classes as Spark calls them."""
    from pyspark.sql.types import StructType

    from stratalog.pipeline.source.data_source import StratalogDataSource

    source = StratalogDataSource(options)
    schema = StructType.fromDDL(source.schema())
    assert isinstance(schema, StructType)
    reader: Any = source.reader(schema)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store that has logs of a broker in many small slices, markers behind records."""
    clock = ManualClock(NOW_MS)
    folder = tmp_path_factory.mktemp("golden")
    store = LocalObjectStore(PosixFileSystem(), clock, SequentialIds(1), str(folder))
    logs = TieredLogs(MemoryFileSystem(), store, clock, SequentialIds(2), max_object_bytes=2000)
    for name in GOLDEN_TOPICS:
        logs.create_topic(name, 1)
        log = logs.logs[TopicPartition(name, 0)]
        for path in sorted((GOLDEN / "data" / f"g1-{name}-0").glob("*.log")):
            log.roll()
            log.appender.append_as_follower(path.read_bytes())
    logs.seal()
    assert not logs.upload().failed
    return store.url


ISOLATIONS: list[tuple[dict[str, str], str]] = [
    ({}, "read_uncommitted"),
    ({"isolationLevel": "read_uncommitted"}, "read_uncommitted"),
    ({"isolationLevel": "read_committed"}, "read_committed"),
    ({"kafka.isolation.level": "read_committed", "maxPartitionBytes": "1"}, "read_committed"),
]


@pytest.mark.parametrize(("options", "isolation_level"), ISOLATIONS)
@pytest.mark.parametrize("name", GOLDEN_TOPICS)
def test_a_brokers_topics_are_what_kafkas_consumer_read(
    golden_store: str, name: str, options: dict[str, str], isolation_level: str
) -> None:
    rows = rows_without_jvm({"store": golden_store, "topic": name, "includeHeaders": "true", **options})
    assert golden(rows) == golden_records(GOLDEN, name, isolation_level)


def test_spark_has_a_brokers_committed_records(spark: SparkSession, golden_store: str) -> None:
    options, isolation_level = ISOLATIONS[2]
    source = spark.read.format("stratalog").options(store=golden_store, topic="txn", includeHeaders="true")
    rows = [row.asDict(recursive=True) for row in source.options(**options).load().collect()]
    for row in rows:
        row["timestamp"] = row["timestamp"].replace(tzinfo=dt.UTC)
    assert golden(rows) == golden_records(GOLDEN, "txn", isolation_level)


def golden(rows: list[dict[str, Any]]) -> list[Record]:
    """The records of rows, in their order."""
    return [
        Record(
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            tuple((one["key"], one["value"] and bytes(one["value"])) for one in row["headers"] or ()),
        )
        for row in sorted(rows, key=lambda row: row["offset"])
    ]


def test_a_column_that_a_topic_does_not_have(spark: SparkSession, topic: Topic) -> None:
    source = source_of(spark, topic)
    with pytest.raises(Exception, match="no such column"):
        source.schema("colour string").load().collect()


def test_filters_are_pushed_to_slices_where_both_sides_allow_it(spark: SparkSession, topic: Topic) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        frame = load(spark, topic, pushdown="true", maxPartitionBytes="1")
        late = dt.datetime.fromtimestamp((NOW_MS + 2) / 1000, dt.UTC)
        found = frame.where(f"partition = 0 and offset >= 1 and timestamp >= timestamp '{late.isoformat()}'")
        assert found.rdd.getNumPartitions() == 2
        assert rows_of(found) == [
            row for row in topic.expected_rows() if row["partition"] == 0 and row["offset"] >= 2
        ]
    finally:
        spark.conf.unset(name)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """The options that name a server and its store."""
    directory = str(tmp_path_factory.mktemp("served") / "data")
    with ServerProcess(directory) as server:
        yield {"server": server.address, "store": f"file://{directory}.store"}


class Served:
    """A topic of a server, with its records. Not thread-safe: one test uses it."""

    def __init__(self, service: dict[str, str], client: SyncClient, name: str) -> None:
        self.client = client
        self.options = {**service, "topic": name}
        self.name = name
        client.topics.create(name, partitions=2)
        self.places: list[tuple[int, int]] = []

    def append(self, partition: int, count: int) -> None:
        records = [AppendRecord(b"k%d" % number, b"v") for number in range(count)]
        ack = self.client.append(self.name, partition, records)
        self.places += [(partition, ack.base_offset + number) for number in range(count)]


def test_a_query_has_the_tail_of_the_service(spark: SparkSession, service: dict[str, str]) -> None:
    with SyncClient(service["server"]) as client:
        served = Served(service, client, "queried")
        served.append(0, 5)
        client.admin.upload(["queried"], delete_local=True)
        served.append(0, 3)
        served.append(1, 2)
        source = spark.read.format("stratalog").options(**served.options)
        rows = source.option("columns", "partition,offset").load().where("offset >= 1").collect()
        places = sorted((row["partition"], row["offset"]) for row in rows)
        assert places == sorted(place for place in served.places if place[1] >= 1)


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, service: dict[str, str], tmp_path: Path
) -> None:
    """Two runs of a query, the second a new one as after a crash: what was the tail is tiered by then."""
    found: list[list[tuple[int, int]]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.append([(row["partition"], row["offset"]) for row in batch.collect()])

    def run() -> None:
        source = spark.readStream.format("stratalog").options(**served.options)
        frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6").load()
        writer = frame.select("partition", "offset").writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    with SyncClient(service["server"]) as client:
        served = Served(service, client, "streamed")
        served.append(0, 4)
        client.admin.upload(["streamed"], delete_local=True)
        served.append(0, 1)
        served.append(1, 3)
        run()
        assert len(found) == 2, "the limit divides what there is"
        client.admin.upload(["streamed"], delete_local=True)
        served.append(1, 2)
        run()
        assert sorted(found[-1]) == [(1, 3), (1, 4)]
        assert sorted(place for batch in found for place in batch) == sorted(served.places)


def test_tasks_find_credentials_themselves(
    moto_server: S3Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the store's URL travels to the executors."""
    from stratalog.pipeline.source.read_options import parse_options
    from stratalog.pipeline.source.topic_reader import TopicReader

    secrets = moto_server.environment()
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    store = moto_server.open_store(s3_prefix)
    found = PlainStore(store)
    found.create("t", 3)
    found.upload({("t", number): 20 for number in range(3)})
    options = {"store": moto_server.store_url(s3_prefix), "topic": "t"}
    reader = TopicReader(parse_options(options, is_stream=False), ("partition", "offset"))
    tasks = reader.partitions()
    travelling = pickle.dumps((reader, tasks))
    assert not any(secret.encode() in travelling for name, secret in secrets.items() if "SECRET" in name)
    reader, tasks = pickle.loads(travelling)
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert rows == [{"partition": number, "offset": offset} for number in range(3) for offset in range(20)]
    store.close()
