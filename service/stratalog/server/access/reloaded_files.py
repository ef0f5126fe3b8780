"""Files that a running server reads again when they change: the access file, and those of TLS.

The contents are compared, not the times: a mounted secret may be exchanged without a newer time. A new
content that is not valid changes nothing: the former one stays in force, one line in the log says why, and a
metric counts it. A start with such a content fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.errors import InvalidConfigError

logger = logging.getLogger(__name__)

MAX_BYTES = 4 << 20
"""The largest file."""


class ReloadedFiles:
    """Some files whose contents belong together. `look` belongs to one thread; others may read the counts."""

    def __init__(self, name: str, paths: Sequence[str], take: Callable[[Sequence[bytes]], None]) -> None:
        """`take` gets the contents now and after each change; it raises InvalidConfigError for bad ones, and
        changes nothing then. `name` is that of the setting. Raises InvalidConfigError."""
        self.name = name
        self._paths = tuple(paths)
        self._take = take
        self._seen: Sequence[bytes] | str = read_files(self.name, self._paths)
        take(self._seen)
        self.reload_count = 0
        self.failure_count = 0
        self.has_failed = False
        """The files as they are now are not in force."""

    def look(self) -> bool:
        """Take the contents if they have changed; returns whether they are in force now."""
        try:
            contents = read_files(self.name, self._paths)
        except InvalidConfigError as error:
            if self._seen != str(error):
                self._seen = str(error)
                self._fail(error)
            return False
        if contents == self._seen:
            return False
        self._seen = contents
        try:
            self._take(contents)
        except InvalidConfigError as error:
            self._fail(error)
            return False
        self.reload_count += 1
        self.has_failed = False
        logger.info("%s: the new content is in force", self.name)
        return True

    def _fail(self, error: InvalidConfigError) -> None:
        self.failure_count += 1
        self.has_failed = True
        logger.error("%s: the former content stays in force: %s", self.name, error)


def read_files(name: str, paths: Sequence[str]) -> Sequence[bytes]:
    """The contents of the files of a setting. Raises InvalidConfigError if one cannot be read."""
    contents: list[bytes] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InvalidConfigError(
                "the file cannot be read; correct its name or its permissions",
                name=name,
                value=path,
                reason=error.strerror or str(error),
            ) from None
        if len(content) > MAX_BYTES:
            raise InvalidConfigError(
                "the file is too large", name=name, value=path, allowed=f"{MAX_BYTES} bytes"
            )
        contents.append(content)
    return contents
