"""What holds where nobody knows what was altered at run time: nothing is deleted by the server's own keys.

A start with new log directories, on a store that others have served, is one whose disk is not mounted, or
that of another machine. What was altered lies in directories that it does not see, and may have been what
kept the records: `log.retention.ms=-1`. And where others have owned the store since the directories were last
used, they may have altered it since, so that what is there is out of date. So the start alters the
configuration itself, before anything goes by it and before it claims what others had, from which time on
nobody could tell any more; see `broker_config_copies`. What a topic sets is in the store, and holds.

It may also have been `log.cleanup.policy`, and a topic's own `retention.ms` or `min.compaction.lag.ms` does
nothing under another policy than it was meant for. So a topic that sets no policy has none: neither retention
nor compaction takes anything of it. For those that set one, retention is without limit, compaction takes
nothing that came since the last one, and tombstones get no time to go, where they do not say otherwise
themselves. What goes besides is elsewhere: local segments of what is in the store, and what somebody has
deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stratalog.log.config_key import LONG_MAX

logger = logging.getLogger(__name__)

HELD_CONFIG: Mapping[str, str] = MappingProxyType(
    {
        "log.cleaner.delete.retention.ms": str(LONG_MAX),
        # Nobody may be forced to compact earlier than the next one allows.
        "log.cleaner.max.compaction.lag.ms": str(LONG_MAX),
        "log.cleaner.min.compaction.lag.ms": str(LONG_MAX),
        # Neither delete nor compact.
        "log.cleanup.policy": "",
        "log.retention.bytes": "-1",
        "log.retention.ms": "-1",
    }
)
"""What is altered then."""


def still_held(overrides: Mapping[str, str]) -> dict[str, str]:
    """What of it nobody has altered since."""
    return {name: text for name, text in HELD_CONFIG.items() if overrides.get(name) == text}


def tell_of_held(held: Mapping[str, str], directories: Iterable[str], store_url: str) -> None:
    """Let whoever reads the log know what is held, why, and how it ends; nothing where nothing is held."""
    if not held:
        return
    logger.warning(
        "nobody knows what was altered at run time: the log directories were new when they were first started"
        " with this store, which others had served, or others have owned it since they were last used, and"
        " nothing is deleted by the server's own keys, nor by a topic's where it sets no cleanup.policy,"
        " until you say what holds: %s. Is a disk not mounted? Then stop the server, mount it, and start"
        " again. Otherwise alter what is to hold, and let `stratalog config alter --broker %s` take the rest"
        " back, path=`%s` store=`%s`",
        ", ".join(f"{name}={text}" for name, text in held.items()),
        " ".join(f"--delete {name}" for name in held),
        ", ".join(directories),
        store_url,
    )
