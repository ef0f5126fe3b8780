"""The access that is in force, and what was refused. One for each server that has an access file."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from stratalog.base.errors import AuthorizationFailedError, InvalidConfigError
from stratalog.server.access.access_file import SETTING, parse_access_file
from stratalog.server.access.access_policy import AccessPolicy, Credentials, Principal
from stratalog.server.access.permissions import Operation
from stratalog.server.access.reloaded_files import ReloadedFiles


class AccessControl:
    """The policy of an access file, as of the last look at it. Thread-safe: the policy is replaced by one
    assignment, and `_lock` guards the counts."""

    def __init__(self, path: str) -> None:
        """Read the file at this path. Raises InvalidConfigError if it cannot be read or is not valid."""
        self._lock = threading.Lock()
        self._refusals: Counter[str] = Counter()
        self._policy: AccessPolicy | None = None
        self.file = ReloadedFiles(SETTING, [path], self._take)

    @property
    def policy(self) -> AccessPolicy:
        """The policy in force. A new one is another object."""
        assert self._policy is not None, "the file was taken"
        return self._policy

    @property
    def refusals(self) -> dict[str, int]:
        """Calls that were refused, by the code of their error."""
        with self._lock:
            return dict(self._refusals)

    def count_refusal(self, code: str) -> None:
        """Count a call that was refused with an error of this code."""
        with self._lock:
            self._refusals[code] += 1

    def require_metrics(self, credentials: Credentials) -> None:
        """Raise AuthenticationFailedError or AuthorizationFailedError unless the principal may see the
        metrics, which describe the server as a whole."""
        require_cluster(self.policy.principal(credentials), Operation.DESCRIBE)

    def _take(self, contents: Sequence[bytes]) -> None:
        try:
            text = contents[0].decode()
        except UnicodeDecodeError:
            raise InvalidConfigError("the access file is not UTF-8; correct it", name=SETTING) from None
        self._policy = parse_access_file(text)


def require_topic(principal: Principal, operation: Operation, topic: str) -> None:
    """Raise AuthorizationFailedError unless the principal may do the operation on the topic. Whether the
    topic exists makes no difference."""
    if not principal.permissions.allow(operation, topic):
        raise AuthorizationFailedError(
            "the principal may not do this with the topic; use another one, or add a permission to the"
            " server's access file",
            principal=principal.name,
            operation=operation.value,
            topic=topic,
        )


def require_cluster(principal: Principal, operation: Operation) -> None:
    """Raise AuthorizationFailedError unless the principal may do the operation on the server as a whole."""
    if operation not in principal.permissions.cluster:
        raise AuthorizationFailedError(
            "the principal may not do this with the server as a whole; name topics where the call takes"
            " them, use another principal, or add a permission with cluster = true to the server's access"
            " file",
            principal=principal.name,
            operation=operation.value,
        )
