"""`meta.properties`: the ids of a log directory and of its store, as Java's properties without escapes.

::

    # lines like this one are comments
    version=1
    directory.id=66OiJamjSDoWdGb695vWvA

Kafka adds `cluster.id` and `node.id`, Stratalog the `store.id`: the store that the logs are tiered to. It is
not in the manifest, because a start reads both ids before it trusts anything else in the directory, and
because it must survive a rebuilt manifest.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.base.errors import CorruptRecordError

META_FILE = "meta.properties"
META_VERSION = "1"
VERSION = "version"
DIRECTORY_ID = "directory.id"
STORE_ID = "store.id"


def format_meta_properties(properties: Mapping[str, str]) -> str:
    """The text of the file, in the order of the mapping."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def parse_meta_properties(text: str) -> dict[str, str]:
    """Parse `meta.properties`. Raises CorruptRecordError where it is of another version, or has no usable id
    of its directory."""
    lines = [line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    properties = {name.strip(): value.strip() for name, _, value in lines}
    if properties.get(VERSION) != META_VERSION or not properties.get(DIRECTORY_ID):
        raise CorruptRecordError(
            f"{META_FILE} is damaged or of another version; restore it", version=properties.get(VERSION)
        )
    return properties
