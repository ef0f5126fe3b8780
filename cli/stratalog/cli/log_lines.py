"""The log of a command on standard error: lines of text, or JSON with a field for each value.

The values of a line are written as ``name=`value` ``, in the text as well, so they have one source. Libraries
log less than the program: below a warning their lines may hold the signatures of requests, and the sources of
credentials again and again.
"""

from __future__ import annotations

import logging
import os
import re
import sys

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_FORMATS = ("text", "json")
LOG_FORMAT_HELP = "Log lines as text, or as JSON: time, level, logger, message, and fields of the message."

_QUIET_LIBRARIES = ("boto3", "botocore", "s3transfer", "urllib3")
_GRPC_LIBRARY = "grpc._cython.cygrpc"
_GRPC_VERBOSITY = "GRPC_VERBOSITY"
_FIELD = re.compile(r"(?<![\w.])([a-z]\w*)=`([^`]*)`")
_NUMBER = re.compile(r"-?\d{1,18}")


def log_to_stderr(level: str, log_format: str) -> None:
    """Log to standard error from now on: lines of at least this level, in one of `LOG_FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_lines() if log_format == "json" else logging.Formatter(TEXT_FORMAT))
    handler.addFilter(_is_of_use)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def keep_grpc_quiet() -> None:
    """Let the core of gRPC write nothing to standard error, unless the environment says what it writes. Its
    lines have a form of their own, and strangers whose handshake or headers make no sense cause any number of
    them. Without effect once `grpc` is imported."""
    os.environ.setdefault(_GRPC_VERBOSITY, "NONE")


def _is_of_use(record: logging.LogRecord) -> bool:
    """False for a line of gRPC, with a traceback, about a header that is no UTF-8. gRPC goes on with the
    header as Latin-1, and strangers could fill the log with such headers."""
    return record.name != _GRPC_LIBRARY or not str(record.msg).startswith("Invalid encoding on")


def fields_of(message: str) -> dict[str, str | int]:
    """The values in a message, by name; whole numbers as such."""
    return {
        name: int(value) if _NUMBER.fullmatch(value) else value for name, value in _FIELD.findall(message)
    }


def _json_lines() -> logging.Formatter:
    # Only a server that is asked for it pays for the import.
    from pythonjsonlogger.json import JsonFormatter

    class JsonLines(JsonFormatter):
        def format(self, record: logging.LogRecord) -> str:
            record.fields = fields_of(record.getMessage())
            return super().format(record)

    return JsonLines(
        "{levelname}{name}{message}",
        style="{",
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "error"},
        json_ensure_ascii=True,
    )
