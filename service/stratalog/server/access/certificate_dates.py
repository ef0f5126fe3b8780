"""The time in which a certificate is valid, read from its encoding (RFC 5280, 4.1).

Python's `ssl` shows the dates of a peer and of authorities only, not those of an own certificate.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import NamedTuple

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[\sA-Za-z0-9+/=]+-----END CERTIFICATE-----", re.ASCII)
_VERSION, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x30, 0x17, 0x18
_FIELD_COUNT_BEFORE = 3
"""The serial number, the algorithm and the issuer come before the dates."""


class CertificateDates(NamedTuple):
    """The time in which certificates are valid, in seconds since 1970 UTC."""

    begin_s: float
    end_s: float


class _Element(NamedTuple):
    """An element of an encoding: where its content begins and ends."""

    tag: int
    begin: int
    end: int


def dates_of(pem: bytes) -> CertificateDates:
    """The time in which all certificates of a file are valid: a chain ends with the first that ends. Raises
    ValueError for a file without certificates, and for one that cannot be decoded."""
    found = [_dates(ssl.PEM_cert_to_DER_cert(one.decode("ascii"))) for one in _CERTIFICATE.findall(pem)]
    if not found:
        raise ValueError("there is no certificate in PEM")
    return CertificateDates(max(one.begin_s for one in found), min(one.end_s for one in found))


def _dates(der: bytes) -> CertificateDates:
    certificate = _sequence(der, 0)
    signed = _sequence(der, certificate.begin)
    first = _element(der, signed.begin)
    position = first.end if first.tag == _VERSION else signed.begin
    for _ in range(_FIELD_COUNT_BEFORE):
        position = _element(der, position).end
    validity = _sequence(der, position)
    begin = _element(der, validity.begin)
    return CertificateDates(_time_s(der, begin), _time_s(der, _element(der, begin.end)))


def _sequence(der: bytes, position: int) -> _Element:
    """The sequence at a position. Raises ValueError if there is another element."""
    element = _element(der, position)
    if element.tag != _SEQUENCE:
        raise ValueError("the encoding is not that of a certificate")
    return element


def _element(der: bytes, position: int) -> _Element:
    """The element at a position. Raises ValueError beyond the end."""
    if position + 2 > len(der):
        raise ValueError("the encoding of the certificate is cut off")
    length, begin = der[position + 1], position + 2
    if length & 0x80:
        width = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + width]), begin + width
    if begin + length > len(der):
        raise ValueError("the encoding of the certificate is cut off")
    return _Element(der[position], begin, begin + length)


def _time_s(der: bytes, element: _Element) -> float:
    text = der[element.begin : element.end].decode("ascii")
    if element.tag == _UTC_TIME:
        # Two digits of the year stand for 1950 to 2049.
        text = ("19" if text >= "50" else "20") + text
    elif element.tag != _GENERALIZED_TIME:
        raise ValueError("the certificate has no dates where they belong")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
