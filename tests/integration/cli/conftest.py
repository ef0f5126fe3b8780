"""One server process for the commands that neither kill nor configure it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.service.server_process import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(f"{tmp_path_factory.mktemp('cli')}/data") as running:
        yield running
