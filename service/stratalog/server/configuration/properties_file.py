"""A file of keys and values as Java's properties have it, without escapes: what a broker is configured by."""

from __future__ import annotations

from stratalog.base.errors import InvalidConfigError


def read_properties(path: str) -> dict[str, str]:
    """Raises InvalidConfigError where the file cannot be read, or a line is not KEY=VALUE."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidConfigError(
            "the file of the configuration cannot be read; correct its name",
            name="config-file",
            value=path,
            reason=str(failure),
        ) from None
    return parse_properties(text, path)


def parse_properties(text: str, path: str) -> dict[str, str]:
    """Raises InvalidConfigError for a line that is not KEY=VALUE, and for a key that is there twice."""
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not name or name in properties:
            fault = "is there twice" if name in properties else "is not KEY=VALUE"
            raise InvalidConfigError(
                f"line {number} of the file of the configuration {fault}; correct it",
                name=name,
                value=line.strip(),
                allowed="KEY=VALUE, each key once",
                path=path,
            )
        properties[name] = value
    return properties
