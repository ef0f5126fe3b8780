"""Checks of the machine, the interpreter and the environment of a start."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict
from stratalog.server.configuration.settings_table import SETTINGS
from stratalog.server.configuration.start_settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE
from stratalog.server.engine.component_settings import UPLOAD_MEMORY_BYTES, reader_settings
from stratalog.server.transport import max_connections_below

ENOUGH_FILES = 10_000
"""Log files stay open, and connections take descriptors, too."""
_PREFIX = "STRATALOG_"
_OTHER_VARIABLES = (CONFIG_FILE_VARIABLE, CONFIG_VARIABLE, "STRATALOG_SERVER")
_LEAST_LIKENESS = 0.75
"""Other programs may have variables with our prefix, so only a name that is nearly right is a mistake."""


def interpreter(start: CheckedStart) -> Iterator[Finding]:
    """Python keeps the assertions that protect the data, and has the compiled kernels."""
    if not start.machine.has_assertions:
        text = "python -O strips the assertions that protect the data; start without it"
        yield Finding("python", Verdict.ERROR, text)
    elif not start.machine.has_kernels:
        text = "the compiled kernels are missing, and pure Python is slow; install with a C compiler"
        yield Finding("python", Verdict.WARNING, text)
    else:
        yield Finding("python", Verdict.OK, "assertions and compiled kernels are there")


def open_files(start: CheckedStart) -> Iterator[Finding]:
    """The process may open enough files."""
    count = start.machine.max_open_file_count
    if 0 <= count < ENOUGH_FILES:
        room = min(start.settings.max_connection_count, max_connections_below(count))
        text = (
            f"{count:,} files may be open, {room:,} connections among them; give the process"
            f" {ENOUGH_FILES:,} (LimitNOFILE=, ulimit -Hn)"
        )
        yield Finding("files", Verdict.WARNING, text)
    else:
        yield Finding(
            "files", Verdict.OK, "any number of files" if count < 0 else f"{count:,} files may be open"
        )


def memory(start: CheckedStart) -> Iterator[Finding]:
    """The bounds of memory fit into the machine together."""
    wanted = bounded_memory_bytes(start)
    there = start.machine.memory_bytes
    shown = f"caches and requests may take {wanted >> 20:,} MiB of"
    if not there:
        yield Finding("memory", Verdict.SKIPPED, f"{shown} memory, and the system does not tell its size")
    elif wanted > there:
        text = (
            f"{shown} {there >> 20:,} MiB; lower max-request-memory, metadata-cache, remote.read.cache.bytes"
            " or log.cleaner.dedupe.buffer.size"
        )
        yield Finding("memory", Verdict.WARNING, text)
    else:
        yield Finding("memory", Verdict.OK, f"{shown} {there >> 20:,} MiB")


def variables(start: CheckedStart) -> Iterator[Finding]:
    """No variable has nearly the name of one that a server reads."""
    known = {setting.variable for setting in SETTINGS.values()} | set(_OTHER_VARIABLES)
    words = {name.removeprefix(_PREFIX) for name in known}
    for name in sorted(start.environment):
        if not name.startswith(_PREFIX) or name in known:
            continue
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), words, 1, _LEAST_LIKENESS)
        if near:
            text = f"{name} is no variable of a server; did you mean {_PREFIX}{near[0]}?"
            yield Finding("environment", Verdict.WARNING, text)


def bounded_memory_bytes(start: CheckedStart) -> int:
    """The sum of the bounds that settings and keys give to memory, as docs/operating.md explains them."""
    settings, config = start.settings, start.config
    reader = reader_settings(config)
    return (
        # The transport copies what comes and goes.
        2 * settings.max_request_memory_bytes
        + settings.tail_bytes
        + settings.metadata_cache_bytes
        + reader.data_cache_bytes
        + reader.index_cache_bytes
        + config.cleaner_settings.map_bytes
        + config.cleaner_settings.io_buffer_bytes
        # Of segments, and of tails.
        + 2 * UPLOAD_MEMORY_BYTES
    )
