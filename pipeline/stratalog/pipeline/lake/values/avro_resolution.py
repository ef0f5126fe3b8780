"""Whether values of one Avro schema can be read as those of another one, before any is read.

fastavro resolves the schemas, as Avro's specification says, but it goes by the logical types of the writer
alone: a plain number would become a time of the reader in the wrong unit. It takes the defaults of fields as
they stand in the schema, too: texts in place of bytes, and numbers in place of times. So what it would get
wrong is refused here, with what cannot be read at all.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of fastavro's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fastavro

from stratalog.base.errors import InvalidConfigError

_PROMOTED: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_UNITS = ("-millis", "-micros")
_NAMED = ("record", "enum", "fixed")


class AvroResolution:
    """A writer's schema beside a reader's. Not thread-safe: one walk uses it."""

    def __init__(self, written: Any, wanted: Any) -> None:
        """Both as JSON. Raises what fastavro raises for one that is none."""
        self._written_names: dict[str, Any] = {}
        self._wanted_names: dict[str, Any] = {}
        self.written: Any = fastavro.parse_schema(written, self._written_names)
        """The writer's schema, parsed."""
        self.wanted: Any = fastavro.parse_schema(wanted, self._wanted_names)
        """The reader's schema, parsed."""
        self._done: set[tuple[str, str]] = set()

    def require_readable(self) -> None:
        """Raise InvalidConfigError unless values of the writer can be read, in memory that their size
        bounds."""
        _require_sized(self.written, self._written_names, set())
        self._require(self.written, self.wanted, "")

    def _require(self, written: Any, wanted: Any, field: str) -> None:
        written, wanted = _full(written, self._written_names), _full(wanted, self._wanted_names)
        if isinstance(written, list) or isinstance(wanted, list):
            self._require_unions(written, wanted, field)
            return
        kind, wanted_kind = written["type"], wanted["type"]
        if _meaning(written) != _meaning(wanted):
            raise _unreadable(field, "has another logical type")
        if kind != wanted_kind:
            if wanted_kind not in _PROMOTED.get(kind, ()):
                raise _unreadable(field, f"is {kind}, and not {wanted_kind}")
        elif kind in _NAMED:
            self._require_named(written, wanted, field)
        elif kind == "array":
            self._require(written["items"], wanted["items"], field)
        elif kind == "map":
            self._require(written["values"], wanted["values"], field)

    def _require_unions(self, written: Any, wanted: Any, field: str) -> None:
        """Null and one other type, as tables have it."""
        writers = written if isinstance(written, list) else [written]
        readers = wanted if isinstance(wanted, list) else [wanted]
        others = [one for one in writers if not _is_null(one)]
        if len(others) > 1:
            raise _unreadable(field, "is a union of several types")
        for one in others:
            for other in readers:
                if not _is_null(other):
                    self._require(one, other, field)

    def _require_named(self, written: Any, wanted: Any, field: str) -> None:
        name, wanted_name = written["name"], wanted["name"]
        if (name, wanted_name) in self._done:
            return
        self._done.add((name, wanted_name))
        if not {_short(name), name} & {_short(wanted_name), *wanted.get("aliases", ())}:
            raise _unreadable(field, f"is {name}, and not {wanted_name}")
        if wanted["type"] == "fixed" and written["size"] != wanted["size"]:
            raise _unreadable(field, "has another size")
        if wanted["type"] == "record":
            fields = {one["name"]: one for one in written["fields"]}
            for one in wanted["fields"]:
                names = (one["name"], *one.get("aliases", ()))
                found = next((fields[name] for name in names if name in fields), None)
                path = f"{field}.{one['name']}".lstrip(".")
                if found is not None:
                    self._require(found["type"], one["type"], path)
                else:
                    self._require_default(one, path)

    def _require_default(self, field: Any, path: str) -> None:
        if "default" not in field:
            raise _unreadable(path, "is missing, and has no default in --schema")
        default, kind = field["default"], _full(field["type"], self._wanted_names)
        if isinstance(kind, list):
            # A default is of the first type of a union.
            kind = _full(kind[0], self._wanted_names)
        if default in (None, [], {}):
            return
        is_plain = "logicalType" not in kind and kind["type"] in ("boolean", "int", "long", "float", "double")
        if not is_plain and kind["type"] not in ("string", "enum"):
            raise _unreadable(path, "is missing, and its default in --schema is neither null nor plain")


def _full(schema: Any, names: Mapping[str, Any]) -> Any:
    """A schema as a list of a union, or an object with a type that is a name."""
    while isinstance(schema, str) and schema in names:
        schema = names[schema]
    if isinstance(schema, str):
        return {"type": schema}
    if isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
        return _full(schema["type"], names)
    if isinstance(schema, dict) and schema["type"] in names:
        return _full(schema["type"], names)
    return schema


def _require_sized(schema: Any, names: Mapping[str, Any], done: set[str], field: str = "") -> None:
    """Raise InvalidConfigError for an array whose items take no bytes: ten bytes of a value could be the
    count of more items than memory holds."""
    schema = _full(schema, names)
    if isinstance(schema, list):
        for one in schema:
            _require_sized(one, names, done, field)
    elif schema["type"] == "array":
        if _is_empty(schema["items"], names, ()):
            raise _unreadable(field, "is an array of items without bytes")
        _require_sized(schema["items"], names, done, field)
    elif schema["type"] == "map":
        _require_sized(schema["values"], names, done, field)
    elif schema["type"] == "record" and schema["name"] not in done:
        done.add(schema["name"])
        for one in schema["fields"]:
            _require_sized(one["type"], names, done, f"{field}.{one['name']}".lstrip("."))


def _is_empty(schema: Any, names: Mapping[str, Any], outer: tuple[str, ...]) -> bool:
    """Whether values take no bytes. A union has the number of its branch."""
    schema = _full(schema, names)
    if isinstance(schema, list):
        return False
    if schema["type"] == "record" and schema["name"] not in outer:
        inner = (*outer, schema["name"])
        return all(_is_empty(one["type"], names, inner) for one in schema["fields"])
    kind: str = schema["type"]
    return kind == "null" or (kind == "fixed" and not int(schema["size"]))


def _meaning(schema: Any) -> tuple[Any, ...]:
    """The logical type, without the unit of a time: that is known to fastavro."""
    logical: str = schema.get("logicalType", "")
    for unit in _UNITS:
        logical = logical.removesuffix(unit)
    if logical == "decimal":
        return logical, schema["precision"], schema.get("scale", 0)
    return (logical,)


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _unreadable(field: str, problem: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"a field of the writer's schema {problem}; write --schema so that it can be read",
        name="--schema",
        field=field,
    )
