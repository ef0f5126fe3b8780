"""Reads the Avro schemas of a subject from a registry with the REST interface of Confluent's Schema Registry.

    GET /subjects/SUBJECT/versions?deleted=true             the numbers of its versions
    GET /subjects/SUBJECT/versions/VERSION?deleted=true     the id of a version, and its schema as a text

Values of deleted versions may be in the topic still. The driver asks; tasks get the schemas alone.
Credentials stand in no URL, so that they are in no error, log or plan.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError

_TIMEOUT_S = 30.0
_MAX_ANSWER_BYTES = 16 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address would get the credentials."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class SchemaRegistry(NamedTuple):
    """A registry. Immutable."""

    url: str
    user_info: str = ""
    """`user:password`, or empty."""

    @staticmethod
    def of(url: str, user_info: str) -> SchemaRegistry:
        """The registry at an address. Raises InvalidConfigError."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        problem = ""
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            problem = "the address of a schema registry is http://host:port or https://host:port"
        elif parts.username is not None or parts.password is not None:
            problem = "credentials do not belong into the address of a schema registry"
        elif user_info and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            problem = "credentials are sent to a schema registry by https only"
        elif user_info and ":" not in user_info:
            problem = "the credentials of a schema registry are USER:PASSWORD"
        if problem:
            raise InvalidConfigError(
                f"{problem}; correct the command",
                name="--schema-registry",
                value=f"{parts.scheme}://{parts.hostname or ''}",
            )
        return SchemaRegistry(url.rstrip("/"), user_info)

    def avro_schemas(self, subject: str) -> dict[int, bytes]:
        """The schemas of all versions of a subject, by their ids. Raises InvalidConfigError if the registry
        does not give them, UnsupportedOperationError for schemas that are no Avro, or refer to others."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            versions = [int(version) for version in self._get(path)]
            found = [_Version.of(self._get(f"{path}/{version}")) for version in versions]
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            raise InvalidConfigError(
                "the schema registry does not give the schemas of a subject; correct --schema-registry,"
                " --subject or the credentials",
                name="--schema-registry",
                value=f"{self.url}{path}",
                reason=f"{type(error).__name__}: {error}"[:200],
            ) from error
        for one in found:
            if one.schema_type != "AVRO" or one.has_references:
                raise UnsupportedOperationError(
                    "a schema of the registry is no Avro, or refers to others; name files with --schema-id",
                    subject=subject,
                    schema_id=one.number,
                    schema_type=one.schema_type,
                )
        return {one.number: one.schema for one in found}

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}{path}?deleted=true")
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.user_info:
            token = base64.b64encode(self.user_info.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        handlers: list[Any] = [_NoRedirects]
        if self.user_info and self.url.startswith("http:"):
            # They stay on this machine, and a proxy is elsewhere.
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            # It has the answer open.
            error.close()
            raise


class _Version(NamedTuple):
    """A version of a subject."""

    number: int
    """The id of its schema."""
    schema: bytes
    schema_type: str
    has_references: bool

    @staticmethod
    def of(document: Any) -> _Version:
        """The version that the registry describes. Raises KeyError, ValueError, TypeError."""
        return _Version(
            int(document["id"]),
            str(document["schema"]).encode(),
            str(document.get("schemaType", "AVRO")),
            bool(document.get("references")),
        )
