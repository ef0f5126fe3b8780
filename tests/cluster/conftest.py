"""A standalone cluster of two workers for all tests here, and S3 servers with the same credentials.

`make cluster` runs them, and `make simulate`; elsewhere they skip: six JVMs take a minute to start.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.pipeline.local_session import why_spark_cannot_run
from tests.support.logs.sampling import IS_WHOLE
from tests.support.spark.standalone_cluster import StandaloneCluster, standalone_cluster
from tests.support.tiered.s3_servers import S3Server, ServerMissingError, moto_server, seaweedfs_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IS_WANTED = IS_WHOLE or "STRATALOG_CLUSTER" in os.environ
_MISSING = why_spark_cannot_run() if _IS_WANTED else "make cluster runs it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _MISSING is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=_MISSING))


@pytest.fixture(scope="session")
def moto() -> Generator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Generator[S3Server]:
    """It checks credentials."""
    try:
        with seaweedfs_server() as server:
            yield server
    except ServerMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(moto: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Generator[StandaloneCluster]:
    """Its workers, and this process as a driver, have the credentials in their environments, and nowhere
    else."""
    secrets = moto.environment()
    with pytest.MonkeyPatch.context() as patch:
        for name, secret in secrets.items():
            patch.setenv(name, secret)
        with standalone_cluster(tmp_path_factory.mktemp("cluster"), secrets) as running:
            yield running


@pytest.fixture(scope="session")
def spark(cluster: StandaloneCluster) -> Generator[SparkSession]:
    with cluster.session("tests") as session:
        yield session
