"""The commands of docs/security.md, from zero to a client that comes in, with a server process."""

from __future__ import annotations

import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from stratalog.server.access.access_file import parse_access_file
from stratalog.server.access.tokens import digest_of
from tests.support.access.certificates import Authority
from tests.support.fuzz.http2_connection import call_of_headers, send_bytes, tls_context
from tests.support.places import DOCS
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import PATIENCE_S

SECTION = (DOCS / "security.md").read_text().partition("## From zero")[2].partition("\n## ")[0]
BLOCKS: list[str] = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


def commands() -> list[str]:
    """The commands of the first block, each on one line."""
    return BLOCKS[0].replace("\\\n", " ").strip().splitlines()


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)


def test_five_commands_lead_from_zero_to_a_server(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    assert len(commands()) == 5
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = f"{sys.executable} -m stratalog.cli"
    setup = [command.replace("stratalog server", f"{program} server") for command in commands()]
    for command in setup[:4]:
        assert shell(command, tmp_path).returncode == 0
    start = setup[4].replace("0.0.0.0:9190", f"0.0.0.0:{port}")
    with subprocess.Popen(
        f"exec {start}",
        shell=True,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("stratalog serves 0.0.0.0:")
            client = BLOCKS[1].replace("stratalog topic", f"{program} topic").replace(":9190", f":{port}")
            created = subprocess.run(
                client, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert created.returncode == 0, created.stderr
            assert "clicks" in created.stdout
            unset = client.replace("STRATALOG_TOKEN_FILE=ops.token", "").replace("clicks", "other")
            refused = subprocess.run(
                unset, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert refused.returncode == 1
            assert "the call has no credentials" in refused.stderr
        finally:
            server.terminate()


def test_a_token_is_shown_once_or_written_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.token"
    shown = CliRunner().invoke(stratalog, ["server", "token", "create", "shop"])
    token, _, entry = shown.stdout.partition("\n\n")
    digest = digest_of(token)
    assert digest is not None
    assert digest.entry in entry
    parse_access_file(entry)
    written = CliRunner().invoke(stratalog, ["server", "token", "create", "shop", "--token-file", str(path)])
    secret = path.read_text().strip()
    assert digest_of(secret) is not None
    assert secret not in written.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = CliRunner().invoke(stratalog, ["server", "token", "create", "shop", "--token-file", str(path)])
    assert again.exit_code == 1
    assert path.read_text().strip() == secret


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:0"], "--tls-cert and --tls-key, and --access-file or --tls-client-ca"),
        (["--metrics-listen", "0.0.0.0:0"], "--tls-cert and --tls-key"),
        (["--tls-cert", "c.pem"], "TLS needs a certificate and its key"),
        (["--tls-client-ca", "ca.pem"], "client certificates need TLS"),
    ],
)
def test_a_server_for_strangers_does_not_start(tmp_path: Path, options: list[str], words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "stratalog.cli",
        "server",
        "start",
        "--data-dir",
        str(tmp_path / "d"),
        *options,
    ]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 1
    assert words in refused.stderr.replace("\n", " ")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("verbosity", ["", "INFO"])
async def test_strangers_write_no_lines_of_grpc_into_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbosity: str
) -> None:
    """Not even with headers that gRPC takes for errors, unless the environment asks for its log."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("server", "127.0.0.1")
    options = ("--log-format", "json", "--tls-cert", cert, "--tls-key", key)
    with ServerProcess(f"{tmp_path}/data", options=options) as process:
        await send_bytes(process.address, b"hello\n" * 100, PATIENCE_S)
        odd = call_of_headers((":method", "x"), (":scheme", "x"), (":path", "/x"), ("te", "x"))
        await send_bytes(process.address, odd, 1.0, tls_context(authority.path))
        assert process.stop() == 0
        foreign = [line for line in process.said.splitlines() if line[:1] != "{"]
    others = [line for line in foreign if not line.startswith("stratalog serves ")]
    if verbosity:
        assert any("Handshake failed" in line for line in others)
    else:
        assert others == []
