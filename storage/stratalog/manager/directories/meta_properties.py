"""`meta.properties`: whose data directory it is, in the form of Java's properties, without escapes.

::

    # lines like this one are comments
    version=1
    directory.id=66OiJamjSDoWdGb695vWvA

Kafka adds `cluster.id` and `node.id`, Stratalog the `store.id`, and the other log directories of the server
by their ids, with the path at which each was last::

    sibling.directories=ID@PATH,ID@PATH

Both are percent-encoded there, because the file has no escapes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from stratalog.base.errors import CorruptRecordError

META_FILE = "meta.properties"
META_VERSION = "1"
VERSION = "version"
DIRECTORY_ID = "directory.id"
STORE_ID = "store.id"
SIBLINGS = "sibling.directories"
# Names of files are bytes; those that are not UTF-8 have their own stand-ins in a text.
_ANY_NAME = "surrogateescape"


def format_meta_properties(properties: Mapping[str, str]) -> str:
    """The text of the file, in the order of the mapping."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def parse_meta_properties(text: str) -> dict[str, str]:
    """Raises CorruptRecordError where it is of another version or does not name its directory, or by
    nothing."""
    lines = [line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    properties = {name.strip(): value.strip() for name, _, value in lines}
    if properties.get(VERSION) != META_VERSION or not properties.get(DIRECTORY_ID):
        raise CorruptRecordError(
            f"{META_FILE} is damaged or of another version; restore it", version=properties.get(VERSION)
        )
    return properties


def format_siblings(siblings: Mapping[str, str]) -> str:
    """The value of `sibling.directories`, from paths by ids."""
    return ",".join(
        f"{quote(directory_id, safe='')}@{quote(path, errors=_ANY_NAME)}"
        for directory_id, path in siblings.items()
    )


def parse_siblings(text: str) -> dict[str, str]:
    """Raises CorruptRecordError."""
    siblings: dict[str, str] = {}
    for entry in filter(None, text.split(",")):
        directory_id, at, path = entry.partition("@")
        if not at or not directory_id or not path:
            raise CorruptRecordError(f"{SIBLINGS} in {META_FILE} is damaged; restore it", entry=entry)
        siblings[unquote(directory_id)] = unquote(path, errors=_ANY_NAME)
    return siblings
