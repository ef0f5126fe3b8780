"""The access file: a whole one, and each fault with its place."""

from __future__ import annotations

import re

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.base.randomness import SystemIdGenerator
from stratalog.server.access.access_file import parse_access_file
from stratalog.server.access.access_policy import Quota
from stratalog.server.access.permissions import Operation
from stratalog.server.access.tokens import digest_of, new_token
from tests.support.places import DOCS

ENTRY = "0a1b2c3d4e5f:" + "5e" * 32
WHOLE = f"""
[principals.shop]
tokens = ["{ENTRY}"]
certificates = ["shop.example.com"]
allow = [
    {{ topics = ["shop.*", "prices"], operations = ["read", "write"] }},
    {{ cluster = true, operations = ["describe"] }},
]
quota = {{ bytes_in_per_s = 10_000_000, requests_per_s = 1_000, open_calls = 200 }}

[principals."ops@example.com"]
certificates = ["spiffe://here/ops"]
allow = [{{ topics = ["*"], operations = ["all"] }}]
"""


def test_a_whole_file() -> None:
    shop, ops = parse_access_file(WHOLE).principals
    assert shop.name == "shop"
    assert shop.quota == Quota(bytes_in_per_s=10_000_000, requests_per_s=1_000, open_calls=200)
    assert shop.permissions.allow(Operation.WRITE, "shop.orders")
    assert shop.permissions.allow(Operation.DESCRIBE, "prices")
    assert not shop.permissions.allow(Operation.DELETE, "prices")
    assert shop.permissions.cluster == {Operation.DESCRIBE}
    assert ops.name == "ops@example.com"
    assert all(ops.permissions.allow(operation, "any") for operation in Operation)
    assert not ops.permissions.cluster
    assert not ops.quota.is_set


RULE = 'allow = [{ topics = ["a*"], operations = ["read"] }]'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "no principal"),
        ("[principals", "not TOML"),
        ("[users.x]", "the file: 'users'"),
        ("principals = 3", "principals: it is not a table"),
        ("[principals.x]\nallowed = []", "principals.x: 'allowed'"),
        ('[principals."a b"]', "principals.a b: a name"),
        ('[principals.x]\ntokens = "t"', "principals.x.tokens: it is not a list"),
        ("[principals.x]\ntokens = [3]", "principals.x.tokens: it is not a list of texts"),
        ('[principals.x]\ntokens = ["secret"]', "principals.x.tokens: an entry is not"),
        (f'[principals.x]\ntokens = ["{ENTRY}", "{ENTRY}"]', "the token 0a1b2c3d4e5f comes twice"),
        (
            f'[principals.x]\ntokens = ["{ENTRY}"]\n[principals.y]\ntokens = ["{ENTRY}"]',
            "principals.y.tokens",
        ),
        ('[principals.x]\ncertificates = ["c"]\n[principals.y]\ncertificates = ["c"]', "'c' comes twice"),
        ("[principals.x]\nallow = [3]", "principals.x.allow[0]: it is not a table"),
        ('[principals.x]\nallow = [{ operations = ["read"] }]', "allow[0]: it is about topics"),
        (
            '[principals.x]\nallow = [{ topics = ["a"], cluster = true, operations = ["read"] }]',
            "one of them",
        ),
        ('[principals.x]\nallow = [{ topics = ["a"] }]', "it has no operations"),
        ('[principals.x]\nallow = [{ topics = ["a"], operations = ["reed"] }]', "'reed' is none of read"),
        ('[principals.x]\nallow = [{ topics = ["a*b"], operations = ["read"] }]', "'a*b' is neither"),
        ('[principals.x]\nallow = [{ topic = ["a"], operations = ["read"] }]', "'topic' is none of topics"),
        ("[principals.x]\nquota = { bytes_per_s = 1 }", "'bytes_per_s' is none of bytes_in_per_s"),
        ("[principals.x]\nquota = { requests_per_s = 0 }", "requests_per_s: a limit"),
        ("[principals.x]\nquota = { requests_per_s = true }", "requests_per_s: a limit"),
        ("[principals.x]\nquota = { open_calls = 0 }", "open_calls: a limit"),
        ("[principals.x]\nquota = { requests_per_s = 1.5 }", "requests_per_s: a limit"),
    ],
)
def test_a_fault_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        parse_access_file(text)
    assert refusal.value.fields == {"name": "access-file"}
    assert place in refusal.value.message


def test_a_token_in_the_place_of_its_entry_is_not_repeated() -> None:
    token = new_token(SystemIdGenerator())
    with pytest.raises(InvalidConfigError) as refusal:
        parse_access_file(f'[principals.x]\ntokens = ["{token}"]\n{RULE}')
    assert token not in str(refusal.value)


def test_the_example_of_the_document_is_a_file() -> None:
    text = (DOCS / "security.md").read_text()
    [example] = [one for one in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[principals" in one]
    token = digest_of(new_token(SystemIdGenerator()))
    assert token is not None
    policy = parse_access_file(re.sub(r'"[0-9a-f]{12}:[^"]*"', f'"{token.entry}"', example, count=1))
    assert {one.name for one in policy.principals} >= {"shop", "prometheus"}
