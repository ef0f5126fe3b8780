"""The options that name a running service."""

from __future__ import annotations

import pickle

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.client.access.credentials import Credentials
from stratalog.pipeline.service_options import ServiceOptions, parse_service, require_service


def test_an_address_or_several_are_read() -> None:
    assert parse_service({"topic": "t"}) is None
    assert parse_service({"server": "log:9190"}) == ServiceOptions("log:9190")
    several = require_service({"server": " one:9190, [::1]:9191 "})
    assert several == ServiceOptions("one:9190,[::1]:9191")
    assert pickle.loads(pickle.dumps(several)) == several


@pytest.mark.parametrize("server", ["", "log", "log:", ":9190", "http://log:9190", "log:9190,", "log:x"])
def test_a_malformed_address_is_refused(server: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_service({"server": server})
    assert refused.value.fields["name"] == "server"


def test_a_service_that_is_needed_and_not_named_is_asked_for() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        require_service({"topic": "t"})
    assert refused.value.fields == {"name": "server"}


def test_credentials_are_files_and_no_secret() -> None:
    options = {
        "server": "log:9190",
        "tlsCa": "ca.pem",
        "tlsCert": "me.pem",
        "tlsKey": "me.key",
        "tokenFile": "me.token",
    }
    service = require_service(options)
    assert service == ServiceOptions("log:9190", "ca.pem", "me.pem", "me.key", "me.token")
    assert pickle.loads(pickle.dumps(service)) == service
    assert service.credentials() == Credentials(
        tls_ca="ca.pem", tls_cert="me.pem", tls_key="me.key", token_file="me.token"
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tokenFile": "me.token"}, "tokenFile"),
        ({"tlsCa": "ca.pem"}, "tlsCa"),
        ({"server": "log:9190", "tlsCert": "me.pem"}, "tlsKey"),
        ({"server": "log:9190", "tlsKey": "me.key"}, "tlsCert"),
    ],
)
def test_credentials_that_lead_nowhere_are_refused(options: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_service(options)
    assert refused.value.fields == {"name": name}
