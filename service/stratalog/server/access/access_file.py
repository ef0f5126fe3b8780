"""The access file: principals, their tokens, certificates, permissions and quotas, in TOML.

    [principals.shop]
    tokens = ["0a1b2c3d4e5f:5e88…"]
    certificates = ["shop.example.com"]
    allow = [
        { topics = ["shop.*", "prices"], operations = ["read", "write"] },
        { cluster = true, operations = ["describe"] },
    ]
    quota = { bytes_in_per_s = 10_000_000, requests_per_s = 1_000, open_calls = 200 }

It has digests of tokens and no secret. Everything that it says has an effect, and what has none is refused: a
misspelt permission would be missing, and a misspelt quota would not limit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn, cast

from stratalog.base.errors import InvalidConfigError
from stratalog.server.access.access_policy import AccessPolicy, Principal, Quota
from stratalog.server.access.permissions import ANY, Operation, Permissions, TopicPermission, with_implied
from stratalog.server.access.tokens import digest_of_entry

SETTING = "access-file"
ALL = "all"
"""Stands for all operations."""

_NAME = re.compile(r"[A-Za-z0-9._@:/-]{1,128}")
_PATTERN = re.compile(r"[A-Za-z0-9._-]{0,249}\*?")
_PRINCIPAL_KEYS = ("tokens", "certificates", "allow", "quota")
_RULE_KEYS = ("topics", "cluster", "operations")
_MAX_QUOTA = 1 << 50

_Table = Mapping[str, Any]


def parse_access_file(text: str) -> AccessPolicy:
    """The policy of a file's text. Raises InvalidConfigError, whose message says where the fault is."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Its text has a place, and no line of the file.
        _refuse(f"it is not TOML: {error}")
    _require_known(table, ("principals",), "the file")
    principals: list[Principal] = []
    tokens: dict[str, tuple[bytes, str]] = {}
    certificates: dict[str, str] = {}
    for name, value in _table(table.get("principals", {}), "principals").items():
        where = f"principals.{name}"
        if not _NAME.fullmatch(name):
            _refuse(f"{where}: a name has 1 to 128 ASCII letters, digits or characters of . _ @ : / -")
        entry = _table(value, where)
        _require_known(entry, _PRINCIPAL_KEYS, where)
        for token in _texts(entry, "tokens", where):
            digest = digest_of_entry(token)
            if digest is None:
                _refuse(f"{where}.tokens: an entry is not one of `stratalog server token create`")
            if digest.token_id in tokens:
                _refuse(f"{where}.tokens: the token {digest.token_id} comes twice")
            tokens[digest.token_id] = digest.digest, name
        for certificate in _texts(entry, "certificates", where):
            if certificate in certificates:
                _refuse(f"{where}.certificates: the name {certificate!r} comes twice")
            certificates[certificate] = name
        principals.append(Principal(name, _permissions(entry, where), _quota(entry, where)))
    if not principals:
        _refuse("it has no principal, so every call would be refused")
    return AccessPolicy(principals, tokens, certificates)


def _permissions(entry: _Table, where: str) -> Permissions:
    topics: list[TopicPermission] = []
    cluster: frozenset[Operation] = frozenset()
    for index, value in enumerate(_list(entry.get("allow", []), f"{where}.allow")):
        at = f"{where}.allow[{index}]"
        rule = _table(value, at)
        _require_known(rule, _RULE_KEYS, at)
        operations = with_implied(_operations(rule, at))
        patterns = _texts(rule, "topics", at)
        is_cluster = rule.get("cluster", False)
        if not isinstance(is_cluster, bool) or is_cluster == bool(patterns):
            _refuse(f"{at}: it is about topics = [...] or about cluster = true, one of them")
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                _refuse(f"{at}.topics: {pattern!r} is neither a topic nor a prefix and {ANY}")
            topics.append(TopicPermission(pattern, operations))
        if is_cluster:
            cluster |= operations
    return Permissions(tuple(topics), cluster)


def _operations(rule: _Table, where: str) -> Iterator[Operation]:
    names = _texts(rule, "operations", where)
    if not names:
        _refuse(f"{where}: it has no operations")
    by_name = {operation.value: operation for operation in Operation}
    for name in names:
        if name == ALL:
            yield from Operation
        elif name in by_name:
            yield by_name[name]
        else:
            _refuse(f"{where}.operations: {name!r} is none of {', '.join((*by_name, ALL))}")


def _quota(entry: _Table, where: str) -> Quota:
    at = f"{where}.quota"
    table = _table(entry.get("quota", {}), at)
    _require_known(table, Quota._fields, at)
    for name, limit in table.items():
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MAX_QUOTA:
            _refuse(f"{at}.{name}: a limit is a whole number from 1 on")
    return Quota(**table)


def _require_known(table: _Table, known: Collection[str], where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        _refuse(f"{where}: {unknown[0]!r} is none of {', '.join(known)}")


def _table(value: object, where: str) -> _Table:
    if not isinstance(value, dict):
        _refuse(f"{where}: it is not a table")
    return cast("dict[str, Any]", value)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        _refuse(f"{where}: it is not a list")
    return cast("list[object]", value)


def _texts(table: _Table, key: str, where: str) -> list[str]:
    texts = _list(table.get(key, []), f"{where}.{key}")
    if not all(isinstance(text, str) for text in texts):
        _refuse(f"{where}.{key}: it is not a list of texts")
    return cast("list[str]", texts)


def _refuse(fault: str) -> NoReturn:
    raise InvalidConfigError(f"the access file is not valid; correct it: {fault}", name=SETTING)
