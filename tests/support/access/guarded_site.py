"""A server with TLS and an access file, and clients of its principals.

Example::

    async with GuardedSite(tmp_path).running() as site:
        async with site.client("ours") as client:
            ...
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.client.access.credentials import Credentials
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.protocol import ObjectStore
from stratalog.server.access.tokens import digest_of, new_token
from stratalog.server.app import Server
from stratalog.server.configuration.settings import ServerSettings
from tests.support.access.certificates import Authority
from tests.support.service.service_bench import QUIET, QUIET_CONFIG

OURS = '{ topics = ["ours.*"], operations = ["all"] }'
THEIRS = '{ topics = ["theirs.*"], operations = ["all"] }'
EVERYTHING = '{ topics = ["*"], operations = ["all"] }, { cluster = true, operations = ["all"] }'


class GuardedSite:
    """Files of a server's TLS and access, and their exchange. Belongs to the event loop."""

    def __init__(self, folder: Path, **principals: str) -> None:
        """`principals` has the rules of `allow` by name; each gets a token."""
        self.folder = folder
        self.authority = Authority(folder, "ca")
        self.certificate = self.authority.issue("server", "localhost", "127.0.0.1")
        self.access_path = str(folder / "access.toml")
        self.tokens: dict[str, str] = {}
        self.rules = principals or {"ours": OURS, "theirs": THEIRS, "admin": EVERYTHING}
        self.extra: dict[str, str] = {}
        """More lines of a principal."""
        for name in self.rules:
            self.renew(name)
        self.write()

    def renew(self, name: str) -> str:
        """Give a principal another token, from the next `write` on."""
        self.tokens[name] = new_token(SystemIdGenerator())
        return self.tokens[name]

    def write(self, text: str | None = None) -> None:
        """Write the access file as a whole: of the principals, or this text."""
        path = Path(f"{self.access_path}.new")
        path.write_text("\n".join(map(self._entry, self.rules)) if text is None else text)
        os.replace(path, self.access_path)

    def _entry(self, name: str) -> str:
        digest = digest_of(self.tokens[name])
        assert digest is not None
        return (
            f'[principals.{name}]\ntokens = ["{digest.entry}"]\nallow = [{self.rules[name]}]\n'
            f"{self.extra.get(name, '')}\n"
        )

    @asynccontextmanager
    async def running(
        self, disk: FileSystem | None = None, store: ObjectStore | None = None, **settings: Any
    ) -> AsyncGenerator[Server]:
        """The server, until the end of the block."""
        values: dict[str, Any] = {
            **QUIET,
            "data_dir": str(self.folder / "data"),
            "config": QUIET_CONFIG,
            "tls_cert": self.certificate.cert,
            "tls_key": self.certificate.key,
            "access_file": self.access_path,
            **settings,
        }
        chosen = ServerSettings(**values)
        self.server = Server(chosen, filesystem=disk, store=store, has_processes=False)
        async with self.server:
            yield self.server

    def client(self, name: str = "", *, token: str = "", **credentials: Any) -> Client:
        """A client of a principal, with a token of another kind, or without credentials."""
        text = token or (self.tokens[name] if name else "")
        chosen = Credentials(tls_ca=self.authority.path, token=text, **credentials)
        return Client(f"localhost:{self.server.port}", retry=RetryPolicy(deadline_s=0), credentials=chosen)

    async def look(self) -> None:
        """Let the server look at its files, as its background task does."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.server.look_at_access, loop)
        # What the look has asked the loop to do comes before this.
        await asyncio.sleep(0)

    def refusals(self) -> dict[str, int]:
        """Calls that the server has refused, by code."""
        access = self.server._access  # pyright: ignore[reportPrivateUsage]  # only tests look
        assert access is not None
        return access.refusals
