"""Codec of the JSON documents of a store: its identity, heads, checkpoints, pages and history.

A document is printed by its fields, whether or not a server would accept it: the part that can be read comes
first, and then the reason why it is corrupt. Its large lists become rows of their own. Secrets are never
printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, cast

import zstandard

from stratalog.base.errors import StoreError
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, Row
from stratalog.cli.log_dump.partial_json import read_partial_lines, read_partial_object
from stratalog.cli.records.record_json import JsonValue
from stratalog.remote.json_document import MAX_TEXT_BYTES, JsonFields, decode_document
from stratalog.remote.metadata.catalog.catalog_actions import CATALOG_ACTIONS
from stratalog.remote.metadata.head.checkpoint_page import PAGE_FORMAT, check_page
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import ActionTable
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.store_identity import StoreIdentity

_Fields = dict[str, JsonValue]
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SECRETS: Final = frozenset({"hash_key"})
HIDDEN: Final = "(hidden)"


class DocumentKind(NamedTuple):
    """A kind of document."""

    title: str
    row_type: str
    lists: Mapping[str, str]
    """The fields that become rows, with the type of these."""
    verify: Callable[[bytes, str, _Fields], object]
    """Decodes the data of this name as software does, with the fields at hand. Raises StoreError."""


def dump_document(data: bytes, name: str, kind: DocumentKind | None = None) -> Iterator[DumpItem]:
    """The rows of a document, then what is wrong with it. Its own `format` decides about the kind; if that is
    lost, `kind` does."""
    text, fault = _text_of(data)
    found = read_partial_object(text)
    if found.fields.get("format") == PAGE_FORMAT:
        found = read_partial_lines(text, "rows")
        if isinstance(found.fields.get("lines"), list):
            found.fields["rows"] = _rows_of_columns(data, name, found.fields)
    kind = KINDS.get(str(found.fields.get("format")), kind)
    if kind is None:
        yield CorruptPlace(None, "it does not say of which format it is", len(data))
        return
    lists = {field: value for field in kind.lists if isinstance(value := found.fields.get(field), list)}
    rest = {field: value for field, value in found.fields.items() if field not in lists}
    if rest:
        yield Row(kind.row_type, _without_secrets(rest))
    columns = found.fields.get("columns")
    for field, items in lists.items():
        for item in items:
            yield Row(kind.lists[field], _without_secrets(_item_fields(field, item, columns)))
    if found.fault_position is not None:
        fault = fault or f"the text is no JSON from character {found.fault_position} on"
    if fault:
        yield CorruptPlace(None, fault)
        return
    try:
        kind.verify(data, name, found.fields)
    except StoreError as error:
        yield CorruptPlace(None, str(error))


def _text_of(data: bytes) -> tuple[str, str]:
    """The text of a document, as far as it can be read, and why that is not all of it."""
    fault = ""
    if data.startswith(_ZSTD_MAGIC):
        parts: list[bytes] = []
        try:
            reader = zstandard.ZstdDecompressor().stream_reader(data)
            while sum(map(len, parts)) < MAX_TEXT_BYTES and (part := reader.read(1 << 20)):
                parts.append(part)
            if zstandard.frame_content_size(data) != sum(map(len, parts)):
                fault = "the zstd frame is cut off, or goes on behind the text"
        except zstandard.ZstdError as error:
            fault = f"the zstd frame cannot be decompressed: {error}"
        data = b"".join(parts)
    try:
        return data.decode(), fault
    except UnicodeDecodeError as error:
        return data[: error.start].decode(), fault or f"the text is no UTF-8 from byte {error.start} on"


def _item_fields(field: str, item: JsonValue, columns: JsonValue) -> _Fields:
    """The fields of a row: those of an object, or the values of an array by their columns."""
    if isinstance(item, dict):
        return item
    if isinstance(item, list) and isinstance(columns, list) and len(columns) == len(item):
        return {str(column): value for column, value in zip(columns, item, strict=True)}
    return {field: item}


def _rows_of_columns(data: bytes, name: str, fields: _Fields) -> list[JsonValue]:
    """The rows of a page that has a line for each column; the lines as they are if it cannot be decoded."""
    try:
        return [cast("JsonValue", dict(row.values)) for row in check_page(data, name).rows()]
    except StoreError:
        lines = cast("list[JsonValue]", fields["lines"])
        texts = cast("list[JsonValue]", fields.get("rows", []))
        return [{"line": line, "values": text} for line, text in zip(lines, texts, strict=False)]


def _without_secrets(fields: _Fields) -> _Fields:
    return {
        name: HIDDEN if name in _SECRETS and value is not None else _hide(value)
        for name, value in fields.items()
    }


def _hide(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return cast("JsonValue", _without_secrets(value))
    if isinstance(value, list):
        return [_hide(item) for item in value]
    return value


def _table(fields: _Fields) -> ActionTable:
    """The actions of a shard, or of the catalog, which has no number."""
    return CATALOG_ACTIONS if fields.get("shard") is None else SHARD_ACTIONS


def _verify_identity(data: bytes, _name: str, _: _Fields) -> None:
    StoreIdentity.decode(data)


def _verify_head(data: bytes, name: str, fields: _Fields) -> None:
    Head.decode(data, name, _table(fields))


def _verify_history(data: bytes, name: str, fields: _Fields) -> None:
    decoded = decode_document(data, name, format_name="stratalog-history")
    decoded.each("commits", lambda item, what: Commit.parse(JsonFields.of(item, what), _table(fields)))


def _verify_page(data: bytes, name: str, _: _Fields) -> None:
    check_page(data, name)


def _verify_format(format_name: str) -> Callable[[bytes, str, _Fields], object]:
    return lambda data, name, _: decode_document(data, name, format_name=format_name)


KINDS: Final[Mapping[str, DocumentKind]] = {
    "stratalog-store": DocumentKind("identity of a store", "identity", {}, _verify_identity),
    "stratalog-head": DocumentKind("head", "head", {"commits": "commit"}, _verify_head),
    "stratalog-checkpoint": DocumentKind(
        "root of a checkpoint", "checkpoint", {"pages": "page"}, _verify_format("stratalog-checkpoint")
    ),
    "stratalog-page": DocumentKind("page of a checkpoint", "page_file", {"rows": "page_row"}, _verify_page),
    "stratalog-history": DocumentKind("history", "history", {"commits": "commit"}, _verify_history),
}
"""The kinds of documents by the field `format`."""
