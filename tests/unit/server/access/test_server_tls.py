"""The files of TLS while they are exchanged, and the dates of certificates."""

from __future__ import annotations

import base64
import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError
from stratalog.server.access.certificate_dates import CertificateDates, dates_of
from stratalog.server.access.certificate_key import rare_key
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from stratalog.testing.manual_clock import ManualClock
from tests.support.access.certificates import Authority, CertificateFiles, Key

EARLY, LATE = dt.datetime(2031, 5, 4, 3, 2, 1, tzinfo=dt.UTC), dt.datetime(2093, 1, 1, tzinfo=dt.UTC)
BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_a_pair_that_was_torn_is_not_taken(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    used, issued = authority.issue("used"), authority.issue("issued")
    tls = ServerTls(TlsPaths(*used), SystemClock())
    context, dates = tls.context, tls.dates
    former_cert = Path(used.cert).read_bytes()
    # The certificate was read before the exchange, the key behind it; what is there now fits together.
    Path(used.cert).write_bytes(Path(issued.cert).read_bytes())
    Path(used.key).write_bytes(Path(issued.key).read_bytes())
    torn = [former_cert, Path(used.key).read_bytes()]
    with pytest.raises(InvalidConfigError):
        tls._take(torn)  # pyright: ignore[reportPrivateUsage]  # no chance would come between
    assert (tls.context, tls.dates) == (context, dates)
    assert tls.files.look()
    assert tls.context is not context


def test_each_server_of_grpc_begins_with_the_configuration_in_force_and_takes_a_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "ca")
    used, issued = authority.issue("used"), authority.issue("issued")
    tls = ServerTls(TlsPaths(*used), SystemClock())
    firsts: list[object] = []
    changes: list[Callable[[], object]] = []

    def make(first: object, change: Callable[[], object], **_: object) -> None:
        firsts.append(first)
        changes.append(change)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", make)
    for _ in range(2):
        tls.credentials()
    former = tls.configuration
    assert firsts == [former, former]
    assert [take() for take in changes] == [None, None]
    Path(used.cert).write_bytes(Path(issued.cert).read_bytes())
    Path(used.key).write_bytes(Path(issued.key).read_bytes())
    assert tls.files.look()
    assert tls.configuration is not former
    tls.credentials()
    assert firsts[-1] is tls.configuration
    assert [take() for take in changes] == [tls.configuration, tls.configuration, None]
    assert [take() for take in changes] == [None, None, None]


def test_the_dates_of_a_chain_are_those_that_all_of_it_has(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    late = Path(authority.issue("late", end=LATE).cert).read_bytes()
    # An encoding has two digits of the year up to 2049, and four from 2050 on.
    assert dates_of(late) == CertificateDates(BEGIN.timestamp(), LATE.timestamp())
    early = Path(authority.issue("early", begin=BEGIN + dt.timedelta(1), end=EARLY).cert).read_bytes()
    expected = CertificateDates((BEGIN + dt.timedelta(1)).timestamp(), EARLY.timestamp())
    assert dates_of(b"Subject: early\n" + early + b"\n" + late) == expected
    assert dates_of(late + early) == expected


def test_what_is_no_certificate_has_no_dates(tmp_path: Path) -> None:
    pem = Path(Authority(tmp_path, "ca").path).read_bytes()
    der = base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    for count in range(0, len(der), 7):
        cut = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n" % base64.b64encode(der[:count])
        assert refused(cut)
    assert refused(b"")


def refused(pem: bytes) -> bool:
    try:
        dates_of(pem)
    except ValueError:
        return True
    return False


def exchange(used: CertificateFiles, new: CertificateFiles) -> None:
    for path, other in zip(used, new, strict=True):
        Path(path).write_bytes(Path(other).read_bytes())


def test_an_expired_certificate_replaces_none_that_is_valid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, authority = ManualClock(round(EARLY.timestamp() * 1000)), Authority(tmp_path, "ca")
    used, expired = authority.issue("used", end=LATE), authority.issue("expired", end=EARLY)
    renewed = authority.issue("renewed", end=LATE)
    tls = ServerTls(TlsPaths(*used), clock)
    former = tls.configuration, tls.context, tls.dates
    exchange(used, expired)
    assert not tls.files.look()
    assert (tls.configuration, tls.context, tls.dates) == former
    assert (tls.files.has_failed, tls.files.failure_count) == (True, 1)
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the former content stays in force: the certificate has expired" in line.getMessage()
    exchange(used, renewed)
    assert tls.files.look()
    assert not tls.files.has_failed
    # Where the one in force has expired, too, there is none to keep.
    clock.advance(round((LATE - EARLY).total_seconds() * 1000))
    exchange(used, expired)
    assert tls.files.look()
    assert "no client connects, because the certificate" in caplog.text


def test_a_start_takes_an_expired_certificate_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, expired = (
        ManualClock(round(LATE.timestamp() * 1000)),
        Authority(tmp_path, "ca").issue("s", end=EARLY),
    )
    tls = ServerTls(TlsPaths(*expired), clock)
    assert tls.configuration is not None
    tls.complain()
    assert "has expired" in caplog.text


def test_keys_that_clients_of_grpc_cannot_use_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "ca")
    kinds: dict[str, list[Key]] = {
        "": [
            ec.generate_private_key(ec.SECP256R1()),
            ec.generate_private_key(ec.SECP384R1()),
            rsa.generate_private_key(65_537, 2_048),
        ],
        "P-521": [ec.generate_private_key(ec.SECP521R1())],
        "Ed25519": [ed25519.Ed25519PrivateKey.generate()],
        "Ed448": [ed448.Ed448PrivateKey.generate()],
    }
    for kind, keys in kinds.items():
        for key in keys:
            issued = authority.issue("server", key=key)
            assert rare_key(Path(issued.cert).read_bytes()) == kind
            caplog.clear()
            ServerTls(TlsPaths(*issued), SystemClock()).complain()
            assert (kind in caplog.text) if kind else (caplog.text == "")
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
    for text in (b"", begin, end, begin + b"\xff\n" + end, begin + b"!\n" + end):
        assert rare_key(text) == ""
