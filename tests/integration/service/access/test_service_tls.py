"""TLS over real connections: certificates of servers and clients, their exchange, and what is behind it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import re
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stratalog.base.errors import AuthenticationFailedError, InvalidConfigError
from stratalog.client.access.credentials import Credentials
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.record.record import Record
from stratalog.server import transport
from stratalog.server.app import SERVICES
from stratalog.server.listen_port import cannot_listen
from stratalog.server.metrics.health_probes import LIVE_PATH, OK, READY_PATH, HealthProbes, ProbeAnswer
from tests.support.access.certificates import Authority
from tests.support.access.guarded_site import EVERYTHING, OURS, GuardedSite
from tests.support.fuzz.http2_connection import call_of_path, send_bytes, tls_context
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import until

ONCE = RetryPolicy(deadline_s=0)


def replace(target: str, source: str) -> None:
    shutil.copy(source, f"{target}.new")
    os.replace(f"{target}.new", target)


async def test_a_client_trusts_the_authority_of_the_server_alone(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    stranger = Authority(tmp_path, "stranger")
    async with site.running() as server:
        address = f"localhost:{server.port}"
        wrong = Credentials(tls_ca=stranger.path, token=site.tokens["ours"])
        async with Client(address, retry=ONCE, credentials=wrong) as client:
            with pytest.raises(ServerUnavailableError) as refusal:
                await client.admin.list_topics()
            assert "CERTIFICATE_VERIFY_FAILED" in str(refusal.value.fields["reason"])
        async with Client(address, retry=ONCE) as plain:
            with pytest.raises(ServerUnavailableError):
                await plain.admin.list_topics()


async def test_a_new_certificate_is_taken_over_and_open_connections_stay(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    other = Authority(tmp_path, "other")
    issued = other.issue("server", "localhost", "127.0.0.1", file_name="issued")
    async with site.running(metrics_listen="127.0.0.1:0") as server, site.client("admin") as before:
        await before.admin.list_topics()
        replace(site.certificate.cert, issued.cert)
        # The key is still the former one: the pair is not taken.
        await site.look()
        files = server.reloaded_files[0]
        assert (files.failure_count, files.reload_count) == (1, 0)
        async with site.client("admin") as meanwhile:
            await meanwhile.admin.list_topics()
        replace(site.certificate.key, issued.key)
        await site.look()
        assert (files.failure_count, files.reload_count, files.has_failed) == (1, 1, False)
        after = Credentials(tls_ca=other.path, token=site.tokens["admin"])
        async with Client(f"localhost:{server.port}", retry=ONCE, credentials=after) as client:
            await client.admin.list_topics()
        async with site.client("admin") as late:
            with pytest.raises(ServerUnavailableError):
                await late.admin.list_topics()
        await before.admin.list_topics()
        assert (await asyncio.to_thread(scrape, server.metrics_port, other.path, site.tokens["admin"]))[
            0
        ] == 200


async def test_a_certificate_names_its_principal(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, shop=OURS, spiffe=OURS, admin=EVERYTHING)
    site.extra = {
        "shop": 'certificates = ["shop"]',
        "spiffe": 'certificates = ["spiffe://here/spiffe"]',
    }
    site.write()
    by_name, by_uri = site.authority.issue("shop"), site.authority.issue("any", "spiffe://here/spiffe")
    unknown = site.authority.issue("unknown", "unknown.example")
    async with site.running(tls_client_ca=site.authority.path) as server:
        async with site.client("admin", tls_cert=unknown.cert, tls_key=unknown.key) as admin:
            # The token counts more than the certificate.
            await admin.admin.create_topic("ours.t")
            await admin.admin.create_topic("theirs.t")
        for files in (by_name, by_uri):
            async with site.client(tls_cert=files.cert, tls_key=files.key) as client:
                assert [one.name for one in await client.admin.list_topics()] == ["ours.t"]
                await client.append("ours.t", 0, [Record(0, 0, None, b"x")])
        async with site.client(tls_cert=unknown.cert, tls_key=unknown.key) as client:
            with pytest.raises(AuthenticationFailedError) as refusal:
                await client.admin.list_topics()
            assert refusal.value.fields["certificate"] == "unknown.example"
        async with site.client("admin") as without:
            with pytest.raises(ServerUnavailableError):
                await without.admin.list_topics()
        assert server.port


async def test_certificates_alone_let_their_holders_do_everything(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    holder = site.authority.issue("holder")
    async with (
        site.running(tls_client_ca=site.authority.path, access_file=""),
        site.client(tls_cert=holder.cert, tls_key=holder.key) as client,
    ):
        await client.admin.create_topic("t")
        assert [one.name for one in await client.admin.list_topics()] == ["t"]


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_a_server_with_tls_listens_again_and_is_not_ready_meanwhile(
    tmp_path: Path, is_mutual: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose path is no UTF-8 needs no token, and ends gRPC's server."""
    site = GuardedSite(tmp_path)
    holder = site.authority.issue("holder")
    of_holder = {"tls_cert": holder.cert, "tls_key": holder.key} if is_mutual else {}
    context = tls_context(site.authority.path, *(holder if is_mutual else ()))
    client_ca = site.authority.path if is_mutual else ""
    async with site.running(metrics_listen="127.0.0.1:0", tls_client_ca=client_ca) as server:
        probes = HealthProbes(asyncio.get_running_loop(), server.why_not_ready)

        async def readiness() -> ProbeAnswer | None:
            return await asyncio.to_thread(probes.answer, READY_PATH)

        async def break_down() -> None:
            caplog.clear()
            await send_bytes(f"localhost:{server.port}", call_of_path("/\udce9"), 0.1, context)

        assert await readiness() == OK
        for count in (1, 2):
            await break_down()
            await until(lambda: "listens on" in caplog.text)
            assert await readiness() == OK
            async with site.client("admin", **of_holder) as client:
                await client.admin.create_topic(f"t{count}")
        with monkeypatch.context() as patch:
            # The port has another owner, as far as the server can find out.
            patch.setattr(transport, "require_free", refuse)
            await break_down()
            await until(lambda: "cannot listen on" in caplog.text)
            answer = await readiness()
            assert answer is not None
            assert answer.status == "503 Service Unavailable"
            assert answer.text.startswith(f"nothing listens on 127.0.0.1:{server.port}: ")
            if not is_mutual:
                port, authority = server.metrics_port, site.authority.path
                probe = await asyncio.to_thread(scrape, port, authority, path=READY_PATH)
                assert probe == (503, f"{answer.text}\n")
                _, text = await asyncio.to_thread(scrape, port, authority, site.tokens["admin"])
                assert "\nstratalog_server_listening 0.0\n" in text
        await until(lambda: "listens on" in caplog.text)
        assert await readiness() == OK
        async with site.client("admin", **of_holder) as client:
            assert len(await client.admin.list_topics()) == 2


def refuse(address: str) -> None:
    raise cannot_listen(address, "it is in use")


async def test_health_is_open_and_reflection_is_not(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    async with site.running() as server:
        trust = grpc.ssl_channel_credentials(Path(site.authority.path).read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", trust) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICES[0]))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await reflection.ServerReflectionInfo(iter([request])).read()
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            headers = (("authorization", f"Bearer {site.tokens['theirs']}"),)
            described = await reflection.ServerReflectionInfo(iter([request]), metadata=headers).read()
            assert {one.name for one in described.list_services_response.service} > set(SERVICES)


def scrape(port: int, authority: str, token: str = "", path: str = "/metrics") -> tuple[int, str]:
    request = urllib.request.Request(f"https://localhost:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=authority)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_metrics_need_a_principal_that_may_describe_the_server(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    async with site.running(metrics_listen="127.0.0.1:0") as server:

        async def status(token: str = "") -> int:
            return (await asyncio.to_thread(scrape, server.metrics_port, site.authority.path, token))[0]

        # A connection that says nothing holds up no other one.
        with socket.create_connection(("127.0.0.1", server.metrics_port)):
            assert await status() == await status("no-token") == 401
            assert await status(site.tokens["ours"]) == 403
            assert await status(site.tokens["admin"]) == 200
        # Probes of health have no credentials, as health checks of gRPC have none.
        for path in (LIVE_PATH, READY_PATH):
            probe = await asyncio.to_thread(scrape, server.metrics_port, site.authority.path, path=path)
            assert probe == (200, "ok\n")
        _, text = await asyncio.to_thread(
            scrape, server.metrics_port, site.authority.path, site.tokens["admin"]
        )
        assert 'stratalog_access_refused_calls_total{code="AUTHENTICATION_FAILED"} 2.0' in text
        row = r"^stratalog_access_certificate_expiry_timestamp_secs (\S+)$"
        [end_s] = re.findall(row, text, re.MULTILINE)
        assert float(end_s) == dt.datetime(2120, 1, 1, tzinfo=dt.UTC).timestamp()


async def test_files_are_read_again_while_the_logs_are_opened(tmp_path: Path) -> None:
    site, gate = GuardedSite(tmp_path), Gate()

    def before(name: str, path: str) -> None:
        if name == "list_directory" and path.endswith("/ours.t-0"):
            gate.pass_through()

    disk = HookedDisk(before)
    async with site.running(disk), site.client("admin") as admin:
        await admin.admin.create_topic("ours.t")
    gate.close()
    async with asyncio.timeout(60):
        running = site.running(disk, metrics_listen="127.0.0.1:0")
        starting = asyncio.create_task(running.__aenter__())
        try:
            assert await asyncio.to_thread(gate.is_reached.wait, 30)
            port, token = site.server.metrics_port, site.tokens["admin"]
            assert (await asyncio.to_thread(scrape, port, site.authority.path, token))[0] == 200
            site.renew("admin")
            site.write()
            while (await asyncio.to_thread(scrape, port, site.authority.path, token))[0] != 401:
                await asyncio.sleep(0.1)
            assert not starting.done()
        finally:
            gate.open()
            await starting
            await running.__aexit__(None, None, None)


async def test_secrets_are_in_no_log_and_in_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = GuardedSite(tmp_path)
    texts: list[str] = []
    async with site.running(metrics_listen="127.0.0.1:0") as server:
        for token in (site.tokens["ours"], site.tokens["ours"][:-4] + "AAAA", "Zx9-not-a-token"):
            async with site.client(token=token) as client:
                texts.append(repr(client.channel.credentials))
                for topic in ("ours.t", "theirs.t"):
                    try:
                        await client.latest(topic)
                    except Exception as error:  # noqa: BLE001 - its text is what counts
                        texts.append(f"{error!r} {error} {vars(error)}")
            _, text = await asyncio.to_thread(scrape, server.metrics_port, site.authority.path, token)
            texts.append(text)
        texts.append(repr(server.settings))
    texts += [record.getMessage() for record in caplog.records]
    secrets = [token.split("_", 2)[2][:20] for token in site.tokens.values()] + ["Zx9-not-a-token"]
    assert len(texts) > 10
    assert [text for text in texts for secret in secrets if secret in text] == []
    assert "BEGIN" not in "".join(texts)


async def test_the_synchronous_client_and_a_token_file(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    path = tmp_path / "token"
    path.write_text(site.tokens["admin"] + "\n")
    async with site.running() as server:
        credentials = Credentials(tls_ca=site.authority.path, token_file=str(path))

        def work() -> None:
            with SyncClient(f"localhost:{server.port}", retry=ONCE, credentials=credentials) as client:
                client.topics.create("t")
                path.write_text("wrong")
                with pytest.raises(AuthenticationFailedError):
                    client.admin.list_topics()
                path.write_text(site.tokens["admin"])
                assert [one.name for one in client.admin.list_topics()] == ["t"]
                with client.producer() as producer:
                    producer.send("t", "key", "value")
                assert [one.value for one in client.consume("t", until="latest")] == [b"value"]

        await asyncio.to_thread(work)


@pytest.mark.parametrize("broken", ["cert", "key", "ca"])
async def test_a_start_with_unusable_files_is_refused(tmp_path: Path, broken: str) -> None:
    site = GuardedSite(tmp_path)
    path = {"cert": site.certificate.cert, "key": site.certificate.key, "ca": f"{tmp_path}/bad"}[broken]
    Path(path).write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(InvalidConfigError) as refusal:
        async with site.running(tls_client_ca=f"{tmp_path}/bad" if broken == "ca" else ""):
            pass
    assert refusal.value.fields["name"] == ("tls-client-ca" if broken == "ca" else "tls-cert")
    assert "nonsense" not in str(refusal.value)
