"""S3 servers, Spark and Kafka's jars for integration tests: each worker has one of each that they need."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import uvloop

from stratalog.objectstore.s3 import S3ObjectStore
from tests.support.kafka.kafka_distribution import KafkaDistribution, KafkaMissingError
from tests.support.places import REPOSITORY
from tests.support.tiered.s3_servers import SERVERS, S3Server, ServerMissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION = uuid4().hex[:12]
_PREFIXES = itertools.count(1)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Servers in these tests run in the loop of the test, so that is the loop that a server's process has."""
    return {"uvloop": uvloop.new_event_loop}


def _served(name: str) -> Generator[S3Server]:
    server: AbstractContextManager[S3Server] = SERVERS[name]()
    try:
        running = server.__enter__()
    except ServerMissingError as missing:
        pytest.skip(str(missing))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def moto_server() -> Generator[S3Server]:
    """In-process; no tests of races on it."""
    yield from _served("moto")


@pytest.fixture(scope="session")
def seaweedfs_server() -> Generator[S3Server]:
    yield from _served("seaweedfs")


@pytest.fixture(scope="session")
def minio_server() -> Generator[S3Server]:
    yield from _served("minio")


@pytest.fixture(scope="session")
def external_server() -> Generator[S3Server]:
    """Whatever S3_ENDPOINT_URL points at."""
    yield from _served("external")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession]:
    """The one Spark session of a worker: a JVM takes longer to start than a test."""
    from stratalog.pipeline.local_session import start_local_session

    session = start_local_session("tests", str(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> KafkaDistribution:
    """Kafka's own programs; a test that asks for them skips where they cannot be had."""
    try:
        return KafkaDistribution.fetched(REPOSITORY / ".cache" / "kafka")
    except KafkaMissingError as missing:
        pytest.skip(str(missing))


def _is_asked_for(name: str) -> bool:
    """Whether the server is tested. The external one is left out unless the environment names it."""
    return name != "external" or "S3_ENDPOINT_URL" in os.environ


@pytest.fixture(scope="session", params=[name for name in SERVERS if _is_asked_for(name)])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Every server that can be had, one after the other."""
    server: S3Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def s3_prefix() -> str:
    """A part of the bucket for one test; it has the uuid of the session, because servers may outlive that."""
    return f"test-{_SESSION}/{next(_PREFIXES):05}"


@pytest.fixture(scope="session")
def shared_s3_store(s3_server: S3Server) -> Generator[S3ObjectStore]:
    """Making a store takes boto3 a tenth of a second, emptying one a hundredth."""
    store = s3_server.open_store(f"test-{_SESSION}/shared")
    yield store
    store.close()


@pytest.fixture
def s3_store(shared_s3_store: S3ObjectStore) -> Generator[S3ObjectStore]:
    """An empty store on every server."""
    yield shared_s3_store
    shared_s3_store.delete_many([info.key for info in shared_s3_store.list("")])
