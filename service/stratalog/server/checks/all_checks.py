"""All checks of a start, in the order in which they are shown.

A check is a function of the start that yields findings, and changes nothing. What it cannot look at because
the system fails is an error of that check alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.server.checks.access_checks import access, tls
from stratalog.server.checks.address_checks import addresses, advertised
from stratalog.server.checks.directory_checks import (
    directories,
    file_systems,
    free_space,
    identities,
    locks,
    separate_disks,
)
from stratalog.server.checks.machine_checks import interpreter, memory, open_files, variables
from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict
from stratalog.server.checks.store_checks import store

CHECKS: tuple[Callable[[CheckedStart], Iterator[Finding]], ...] = (
    variables,
    interpreter,
    addresses,
    advertised,
    tls,
    access,
    directories,
    locks,
    identities,
    separate_disks,
    file_systems,
    free_space,
    store,
    open_files,
    memory,
)


def findings_of(start: CheckedStart) -> Iterator[Finding]:
    """The findings of all checks."""
    for check in CHECKS:
        try:
            yield from check(start)
        except OSError as failure:
            name = check.__name__.replace("_", "-")
            yield Finding(
                name, Verdict.ERROR, f"the system refuses a look: {failure}; correct that, and repeat"
            )
