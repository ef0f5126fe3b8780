"""The credentials of a client: what fits together, and where a token goes."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from pathlib import Path

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.client.access.credentials import VARIABLES, CallHeaders, Credentials
from stratalog.client.channel import CHANNEL_OPTIONS
from stratalog.client.client import Client
from tests.support.access.certificates import Authority


@pytest.mark.parametrize("fields", [{"tls_cert": "c"}, {"tls_key": "k"}, {"token": "t", "token_file": "f"}])
def test_fields_that_do_not_fit_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        Credentials(**fields)


def test_the_text_of_credentials_has_no_token() -> None:
    assert "secret" not in repr(Credentials(token="secret"))
    assert "secret" not in str(Credentials(token="secret", tls_ca="ca.pem"))


def test_the_environment_has_files() -> None:
    environment = {variable: name for name, variable in VARIABLES.items()}
    assert Credentials.from_environment(environment) == Credentials(
        tls_ca="tls_ca", tls_cert="tls_cert", tls_key="tls_key", token_file="token_file"
    )
    assert Credentials.from_environment({}) == Credentials()


@pytest.mark.parametrize("address", ["log.example:9190", "10.0.0.1:9190", "[2001:db8::1]:9190"])
async def test_a_token_does_not_leave_the_machine_in_plain_text(address: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        Client(address, credentials=Credentials(token="secret"))
    assert "secret" not in str(refusal.value)
    async with Client(address):
        pass


@pytest.mark.parametrize("address", ["localhost:9190", "127.0.0.1:9190", "127.1.2.3:9190", "[::1]:9190"])
async def test_a_token_stays_on_the_machine_in_plain_text(address: str) -> None:
    async with Client(address, credentials=Credentials(token="secret")):
        pass


async def test_a_token_goes_elsewhere_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    async with Client("log.example:9190", credentials=Credentials(tls_ca=authority.path, token="secret")):
        pass
    async with Client("log.example:9190", credentials=Credentials(tls_ca="system", token="secret")):
        pass


async def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        Credentials(tls_ca=str(tmp_path / "none")).channel("localhost:1", CHANNEL_OPTIONS)
    assert refusal.value.fields["file"] == str(tmp_path / "none")


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    headers = CallHeaders(Credentials(token_file=str(path)))
    assert headers.now() == (("authorization", "Bearer one"),)
    new = tmp_path / "new"
    new.write_text("two\n")
    os.replace(new, path)
    assert headers.now() == (("authorization", "Bearer two"),)
    for text in ("", "two words", "two\nlines", "é"):
        path.write_text(text)
        with pytest.raises(InvalidRequestError) as refusal:
            headers.now()
        assert "words" not in str(refusal.value)
    path.unlink()
    with pytest.raises(InvalidRequestError) as refusal:
        headers.now()
    assert refusal.value.fields == {"token_file": str(path)}


def test_without_a_token_a_call_has_no_header() -> None:
    assert CallHeaders(Credentials()).now() == ()


async def test_a_token_goes_past_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("grpc_proxy", "https_proxy", "no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        async with Credentials(token="secret").channel(address, CHANNEL_OPTIONS) as channel:
            channel.get_state(try_to_connect=True)
            ready, _, _ = await asyncio.to_thread(select.select, [proxy, server], [], [], 30)
        assert ready == [server]
