"""One server for the tests that neither configure a server nor stop one."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.support.service.service_bench import ServiceBench, service_bench

_IN_ITS_LOOP = pytest.mark.asyncio(loop_scope="session")
"""Tests of the shared server run in its loop."""


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Mark them before pytest-asyncio decides how long their kind of loop stays."""
    if "bench" in metafunc.fixturenames:
        metafunc.definition.add_marker(_IN_ITS_LOOP, append=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them before they run."""
    for item in items:
        if isinstance(item, pytest.Function) and "bench" in item.fixturenames:
            item.add_marker(_IN_ITS_LOOP, append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ServiceBench]:
    """A server that runs for as long as the worker does."""
    async with service_bench(tmp_path_factory.mktemp("shared")) as bench:
        yield bench


@pytest_asyncio.fixture(loop_scope="session")
async def bench(shared_bench: ServiceBench) -> AsyncGenerator[ServiceBench]:
    """The shared server without topics."""
    yield shared_bench
    for topic in await shared_bench.client.admin.list_topics():
        await shared_bench.client.admin.delete_topic(topic.name)
