"""Between configuration entries and messages of the wire."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.server.configuration.config_entry import ConfigChange, ConfigEntry
from stratalog.v1 import admin_pb2


def config_entry_message(entry: ConfigEntry) -> admin_pb2.ConfigEntry:
    """One key in force."""
    return admin_pb2.ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=admin_pb2.ConfigSource.Value(entry.source.value),
        update_mode=admin_pb2.ConfigUpdateMode.Value(entry.update_mode.name),
        allowed=entry.allowed,
        synonyms=[
            admin_pb2.ConfigSynonym(
                name=synonym.name,
                value=synonym.value,
                source=admin_pb2.ConfigSource.Value(synonym.source.value),
            )
            for synonym in entry.synonyms
        ],
    )


def config_changes(messages: Iterable[admin_pb2.ConfigChange]) -> tuple[ConfigChange, ...]:
    """What is asked for, in its order."""
    return tuple(
        ConfigChange(message.name, message.value if message.HasField("value") else None)
        for message in messages
    )
