"""The configuration of a topic that a job creates, whose records begin in the object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError

if TYPE_CHECKING:
    from stratalog.record.codecs.compression import Codec


def accept_config(config: Mapping[str, str]) -> Codec:
    """Check the keys of a topic; returns the codec of its batches, zstd where the topic leaves it to its
    producers. Raises InvalidConfigError."""
    from stratalog.log.log_config import LogConfig
    from stratalog.record.codecs.compression import Codec

    accepted = LogConfig.from_overrides(config)
    if not accepted.remote_storage_enable:
        raise InvalidConfigError(
            "the records of this topic begin in the object store, so it is tiered; leave the key out",
            name="remote.storage.enable",
            value="false",
            allowed="true",
        )
    return accepted.compression_type.codec_for(Codec.ZSTD)
