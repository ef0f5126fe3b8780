"""Messages of the demonstration when its server does not start, and when its things do not go away."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from stratalog.cli.demo import demo_server
from stratalog.cli.demo.demo_server import DemoServer
from stratalog.cli.demo.places import DemoPlaces
from tests.support.tiered.scripted_s3 import Answer, error_answer, scripted_s3


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> DemoServer:
    """A server that is a shell script instead."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return DemoServer(tmp_path / "data", "", tmp_path / "server.log")


def test_a_server_that_ends_is_shown_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = program(
        tmp_path, monkeypatch, "echo 'WARNING still waiting'; echo 'error: no such bucket'; exit 1"
    )
    with pytest.raises(click.ClickException) as failure:
        server.start()
    assert failure.value.message == "the server did not start: no such bucket"
    assert not server.has_listened


def test_a_server_that_hangs_is_shown_with_what_it_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_server, "START_TIMEOUT_S", 1.0)
    server = program(tmp_path, monkeypatch, "echo still waiting for the store; exec sleep 60")
    with pytest.raises(click.ClickException) as failure:
        server.start()
    assert "the last that it said: still waiting for the store" in failure.value.message
    assert str(tmp_path) not in failure.value.message
    assert server.stop() == 0, "none runs"


def test_the_store_is_not_asked_where_no_server_has_served(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_s3([Answer(hangs=True)]) as store:
        places = DemoPlaces(None, f"s3://bucket/demos?endpoint={store.endpoint_url}&region=x")
        places.clean_up(was_served=False)
        assert store.requests == []
    assert not places.root.exists()
    [said] = capsys.readouterr().err.splitlines()
    assert "nothing was removed below s3://bucket/demos/demo-" in said


def test_what_cannot_be_removed_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_s3([error_answer(403, "AccessDenied")]) as store:
        places = DemoPlaces(None, f"s3://bucket?endpoint={store.endpoint_url}&region=x")
        places.clean_up(was_served=True)
    assert not places.root.exists()
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("warning: the objects below s3://bucket/demo-")
    assert "refuses these credentials" in said
