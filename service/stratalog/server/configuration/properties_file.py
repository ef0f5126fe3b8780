"""The file of keys and values of a start: Java's properties without escapes, as Kafka's brokers have it."""

from __future__ import annotations

from stratalog.base.errors import InvalidConfigError


def read_properties(path: str) -> dict[str, str]:
    """Values by key. Raises InvalidConfigError if the file cannot be read, or a line is not KEY=VALUE."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidConfigError(
            "the configuration file cannot be read; correct its name",
            name="config-file",
            value=path,
            reason=str(failure),
        ) from None
    return parse_properties(text, path)


def parse_properties(text: str, path: str) -> dict[str, str]:
    """Values by key. Raises InvalidConfigError for a line that is not KEY=VALUE, and for a repeated key."""
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not name or name in properties:
            fault = "repeats a key" if name in properties else "is not KEY=VALUE"
            raise InvalidConfigError(
                f"line {number} of the configuration file {fault}; correct it",
                name=name,
                value=line.strip(),
                allowed="KEY=VALUE, each key once",
                path=path,
            )
        properties[name] = value
    return properties
