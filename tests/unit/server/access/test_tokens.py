"""Tokens and their digests: round trip, garbage, and no secret in the entry."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import AuthenticationFailedError
from stratalog.base.randomness import SystemIdGenerator
from stratalog.server.access.access_policy import (
    AccessPolicy,
    Credentials,
    Principal,
    SeenTokens,
    credentials_of,
)
from stratalog.server.access.permissions import Permissions
from stratalog.server.access.tokens import digest_of, digest_of_entry, new_token

IDS = SystemIdGenerator()
SHOP = Principal("shop", Permissions((), frozenset()))


def policy_of(token: str, *certificates: str) -> AccessPolicy:
    digest = digest_of(token)
    assert digest is not None
    return AccessPolicy(
        [SHOP], {digest.token_id: (digest.digest, "shop")}, dict.fromkeys(certificates, "shop")
    )


def test_a_token_and_its_entry() -> None:
    token = new_token(IDS)
    digest = digest_of(token)
    assert digest is not None
    assert digest_of_entry(digest.entry) == digest
    assert digest.digest == hashlib.sha256(token.encode()).digest()
    assert token.split("_", 2)[2] not in digest.entry
    assert new_token(IDS) != token


@given(st.text(max_size=80))
def test_other_texts_are_no_tokens_and_no_entries(text: str) -> None:
    assert digest_of(text) is None
    assert digest_of_entry(text) is None


def test_a_token_is_found_whole_or_not_at_all() -> None:
    token = new_token(IDS)
    policy = policy_of(token)
    assert policy.principal(credentials_of(f"Bearer {token}")) is SHOP
    assert policy.principal(credentials_of(f"bearer  {token} ")) is SHOP
    other_id = "stratalog_" + "0" * 12 + token[22:]
    for index in range(23, len(token)):
        changed = token[:index] + ("x" if token[index] != "x" else "y") + token[index + 1 :]
        with pytest.raises(AuthenticationFailedError):
            policy.principal(credentials_of(f"Bearer {changed}"))
    with pytest.raises(AuthenticationFailedError):
        policy.principal(credentials_of(f"Bearer {other_id}"))


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "stratalog_x", "Bearer a b"])
def test_a_header_without_a_token_is_refused_without_its_text(header: str) -> None:
    with pytest.raises(AuthenticationFailedError) as refusal:
        credentials_of(header)
    assert refusal.value.fields == {}


def test_a_wrong_token_is_refused_beside_a_right_certificate() -> None:
    policy = policy_of(new_token(IDS), "shop.example")
    assert policy.principal(Credentials(None, ("other", "shop.example"))) is SHOP
    wrong = credentials_of(f"Bearer {new_token(IDS)}", ("shop.example",))
    with pytest.raises(AuthenticationFailedError) as refusal:
        policy.principal(wrong)
    assert refusal.value.fields.keys() == {"token_id"}
    for credentials in (Credentials(None), Credentials(None, ("stranger",))):
        with pytest.raises(AuthenticationFailedError):
            policy.principal(credentials)


def test_an_all_zero_digest_is_no_way_in() -> None:
    token = new_token(IDS)
    digest = digest_of(token)
    assert digest is not None
    with pytest.raises(AuthenticationFailedError):
        policy_of(new_token(IDS)).principal(Credentials(digest._replace(digest=bytes(32))))


def test_a_token_that_was_let_in_is_found_by_its_whole_header() -> None:
    token = new_token(IDS)
    seen = SeenTokens(policy_of(token))
    header = f"Bearer {token}"
    assert seen.find(header) is None
    assert seen.find(None) is None
    caller = seen.caller(header)
    assert caller == (credentials_of(header), SHOP)
    assert seen.find(header) is caller
    for index in range(len(header)):
        assert seen.find(header[:index] + "~" + header[index + 1 :]) is None
        assert seen.find(header[:index]) is None
    assert seen.find(f"{header} ") is None
    assert seen.find(f"{header[:-1]}\N{LATIN SMALL LETTER E WITH ACUTE}") is None


def test_no_text_is_kept_that_let_nothing_in() -> None:
    token = new_token(IDS)
    seen = SeenTokens(policy_of(token, "shop.example"))
    # The same id, and other spellings of the same header.
    wrong = f"Bearer {token[:-1]}{'x' if token[-1] != 'x' else 'y'}"
    for _ in range(2):
        with pytest.raises(AuthenticationFailedError):
            seen.caller(wrong)
        assert seen.find(wrong) is None
    assert seen.caller(None, ("shop.example",)).principal is SHOP
    assert seen.find(None) is None
    spaced = f"bearer  {token}\N{NO-BREAK SPACE}"
    assert seen.caller(spaced).principal is SHOP
    assert seen.find(spaced) is None
    assert seen.find("") is None
