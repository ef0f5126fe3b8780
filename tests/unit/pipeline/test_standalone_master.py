"""A master that does not answer is one sentence, soon."""

from __future__ import annotations

import socket
import time

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline import job_session as session
from stratalog.pipeline import standalone_master
from stratalog.pipeline.standalone_master import require_master


def closed_port() -> int:
    """A port of this machine that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_one_master_that_listens_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}")
        require_master(f"spark://127.0.0.1:{port}")


@pytest.mark.parametrize("master", ["", "local[2]", "yarn", "k8s://https://host:443"])
def test_other_masters_are_not_looked_at(master: str) -> None:
    require_master(master, 0)


def test_masters_that_refuse_are_named_with_their_reasons() -> None:
    ports = closed_port(), closed_port()
    master = f"spark://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    with pytest.raises(InvalidConfigError) as refused:
        require_master(master)
    assert (refused.value.fields["name"], refused.value.fields["value"]) == ("--master", master)
    for port in ports:
        assert f"127.0.0.1:{port}: Connection refused" in str(refused.value.fields["reason"])


def test_hosts_that_are_silent_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def silent(_address: object, timeout_s: float) -> socket.socket:
        given.append(timeout_s)
        raise TimeoutError("timed out")

    monkeypatch.setattr("stratalog.pipeline.standalone_master.socket.create_connection", silent)
    with pytest.raises(InvalidConfigError) as refused:
        require_master("spark://first:7077,second:7077,third:7077")
    assert str(refused.value.fields["reason"]).count("timed out") == 3
    assert given[0] == pytest.approx(standalone_master.TIMEOUT_S / 3, rel=0.01)
    assert all(1 <= one <= standalone_master.TIMEOUT_S for one in given)


@pytest.mark.parametrize("master", ["spark://host", "spark://:7077", "spark://host:7077,", "spark://h:70770"])
def test_a_malformed_url_is_refused(master: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        require_master(master)
    assert refused.value.fields["value"] == master


@pytest.mark.parametrize("is_option", [True, False], ids=["--master", "--conf"])
def test_a_job_does_not_start_spark_for_a_master_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, is_option: bool
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr("stratalog.pipeline.job_session.why_spark_cannot_run", lambda: None)
    master = f"spark://127.0.0.1:{closed_port()}"
    start_s = time.monotonic()
    option, conf = (master, "") if is_option else ("", master)
    with (
        pytest.raises(InvalidConfigError) as refused,
        session.job_session("job", option, {"spark.master": conf} if conf else {}),
    ):
        pytest.fail("it started")
    assert refused.value.fields["value"] == master
    assert time.monotonic() - start_s < standalone_master.TIMEOUT_S
