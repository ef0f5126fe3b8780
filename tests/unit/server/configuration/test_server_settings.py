"""The settings of a start are checked once, at the edge."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.settings import ServerSettings, default_store_url, listen_address


def test_defaults_are_accepted_and_put_the_store_beside_the_data() -> None:
    settings = ServerSettings(data_dir="/var/lib/stratalog/data")
    assert settings.effective_store_url == "file:///var/lib/stratalog/data.store"
    assert settings.max_receive_bytes > settings.max_request_bytes


def test_a_directory_with_odd_characters_is_quoted() -> None:
    assert default_store_url("/a b/c#d") == "file:///a%20b/c%23d.store"


def test_a_named_store_wins() -> None:
    assert ServerSettings(data_dir="d", store_url="s3://bucket/p").effective_store_url == "s3://bucket/p"


@pytest.mark.parametrize(
    "store", ["inner", "inner/deeper", "", "..", "../link/inner", "../odd%20name/../data/x"]
)
def test_the_store_lies_beside_the_data_directory(tmp_path: Path, store: str) -> None:
    data_dir = tmp_path / "data"
    (tmp_path / "link").symlink_to(data_dir)
    with pytest.raises(InvalidConfigError) as caught:
        ServerSettings(data_dir=str(data_dir), store_url=f"file://{data_dir}/{store}")
    assert caught.value.fields["name"] == "store"
    for beside in ("data.store", "data2", "other/data"):
        ServerSettings(data_dir=str(data_dir), store_url=f"file://{tmp_path}/{beside}")


@pytest.mark.parametrize(
    "field",
    [
        "max_request_bytes",
        "append_thread_count",
        "upload_ms",
        "max_fetch_wait_ms",
        "task_thread_count",
        "remote_retention_ms",
    ],
)
def test_zero_is_out_of_range(field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ServerSettings(data_dir="d", **{field: 0})  # type: ignore[arg-type]  # the name is a parameter here
    assert caught.value.fields["name"] == field


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:9190", "", "127.0.0.1:9190"),
        ("127.0.0.1:0", "", "127.0.0.1:9190"),
        ("[::1]:0", "", "[::1]:9190"),
        ("0.0.0.0:9190", "", "this-host:9190"),
        ("[::]:0", "", "this-host:9190"),
        ("0.0.0.0:9190", "log.example:443", "log.example:443"),
        ("0.0.0.0:0", "log.example:0", "log.example:9190"),
    ],
)
def test_the_endpoint_is_advertised_or_derived_from_the_listen_address(
    monkeypatch: pytest.MonkeyPatch, listen: str, advertise: str, expected: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this-host")
    settings = ServerSettings(data_dir="d", listen=listen, advertise=advertise, insecure=True)
    assert settings.endpoint(9190) == expected


@pytest.mark.parametrize("advertise", ["nowhere", "host:70000", "0.0.0.0:9190", "[::]:1", "*:1"])
def test_an_endpoint_that_no_client_can_reach_is_refused(advertise: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        ServerSettings(data_dir="d", advertise=advertise)
    assert refusal.value.fields["name"] == "advertise"


def test_compaction_may_be_off() -> None:
    assert ServerSettings(data_dir="d", compaction_ms=0).compaction_ms == 0
    with pytest.raises(InvalidConfigError):
        ServerSettings(data_dir="d", compaction_ms=-1)


def test_a_silence_is_longer_than_a_look_at_the_head_or_without_bound() -> None:
    assert ServerSettings(data_dir="d", max_silence_ms=0, head_refresh_ms=9_999_999).max_silence_ms == 0
    assert ServerSettings(data_dir="d", max_silence_ms=5_001).head_refresh_ms == 5_000
    for max_silence_ms in (-1, 1, 5_000):
        with pytest.raises(InvalidConfigError) as caught:
            ServerSettings(data_dir="d", max_silence_ms=max_silence_ms)
        assert caught.value.fields["name"] == "max_silence_ms"


def test_the_grace_is_not_negative() -> None:
    with pytest.raises(InvalidConfigError):
        ServerSettings(data_dir="d", shutdown_grace_s=-0.1)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("127.0.0.1:9190", ("127.0.0.1", 9190)), ("[::1]:0", ("[::1]", 0)), ("h:1", ("h", 1))],
)
def test_an_address_is_host_and_port(listen: str, expected: tuple[str, int]) -> None:
    assert listen_address(listen) == expected


@pytest.mark.parametrize(
    "listen", ["", "9190", ":9190", "host:", "host:port", "host:65536", "host:-1", "host:" + "9" * 5000]
)
def test_any_other_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ServerSettings(data_dir="d", listen=listen)
    assert (caught.value.fields["name"], caught.value.fields["value"]) == ("listen", listen)
