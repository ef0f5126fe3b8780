"""The server's own configuration while it runs: whoever asks gets it as it is now, and it can be altered.

An alteration is checked by everybody whom it concerns, made durable, then told to them, in this order: what
was refused changes nothing, and what was accepted survives a crash. Where somebody cannot go by it at once
(a disk fails) the alteration stands all the same, and the log says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stratalog.base.errors import DataDirectoryError, InvalidConfigError, LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.log.log_config import LogConfig
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.broker_config_copies import BrokerConfigCopies
from stratalog.server.configuration.broker_keys import broker_key
from stratalog.server.configuration.config_entry import ConfigChange, changed
from stratalog.server.configuration.held_config import still_held

logger = logging.getLogger(__name__)


class Reconfigurable(Protocol):
    """Goes by the server's configuration. Thread-safe."""

    def require_applicable(self, config: BrokerConfig) -> None:
        """Raises InvalidConfigError where it cannot go by this."""
        ...

    def apply(self, config: BrokerConfig) -> None:
        """Go by this from now on. Raises LogStoreError; calling it again makes up for that."""
        ...


class RuntimeConfig:
    """Thread-safe: `_lock` lets one alteration run at a time; `current` is replaced whole."""

    def __init__(self, copies: BrokerConfigCopies, current: BrokerConfig, max_request_bytes: int) -> None:
        """Use `open`."""
        self._copies = copies
        self._lock = threading.Lock()
        self._current = current
        self._max_request_bytes = max_request_bytes
        self._reconfigurables: list[Reconfigurable] = []

    @staticmethod
    def open(
        filesystem: FileSystem, log_dirs: Sequence[str], static: Mapping[str, str], max_request_bytes: int
    ) -> RuntimeConfig:
        """Raises InvalidConfigError, DataDirectoryError where nobody can tell what was altered."""
        copies = BrokerConfigCopies(filesystem, log_dirs)
        dynamic = copies.read()
        try:
            current = BrokerConfig.of(static, dynamic)
        except InvalidConfigError as refusal:
            if refusal.fields.get("name") not in dynamic:
                raise
            raise InvalidConfigError(
                refusal.message + "; it was altered at run time, see the file",
                **refusal.fields,
                path=copies.path,
            ) from None
        require_fits(current.topic_defaults, max_request_bytes, "message.max.bytes")
        return RuntimeConfig(copies, current, max_request_bytes)

    @property
    def current(self) -> BrokerConfig:
        return self._current

    @property
    def topic_defaults(self) -> LogConfig:
        """What topics go by where they set nothing."""
        return self._current.topic_defaults

    def settle(
        self,
        filesystem: FileSystem,
        online: Callable[[], Sequence[str]],
        *,
        is_unknown: bool = False,
        is_current: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """The log directories are locked; see `BrokerConfigCopies.settle`. It is in force from now on."""
        with self._lock:
            assert not self._reconfigurables, "nobody goes by it yet"
            self._copies.settle(filesystem, online, is_unknown=is_unknown, is_current=is_current)
            self._current = BrokerConfig.of(self._current.static, self._copies.overrides)

    def hold(self) -> None:
        """Others have owned the store since, see `BrokerConfigCopies.hold`."""
        with self._lock:
            assert not self._reconfigurables, "nobody goes by it yet"
            self._copies.hold()
            self._current = BrokerConfig.of(self._current.static, self._copies.overrides)

    @property
    def held(self) -> Mapping[str, str]:
        """What is held because nobody knows what was altered, see `held_config`. Never waits: what it comes
        from is replaced whole."""
        return self._copies.held

    def write_rest(self) -> None:
        """Let log directories that could not take an alteration have it, now that they may be able to."""
        with self._lock:
            self._copies.write_rest()

    def add(self, reconfigurable: Reconfigurable) -> None:
        """Tell it of every alteration from now on."""
        with self._lock:
            self._reconfigurables.append(reconfigurable)

    def alter(self, changes: tuple[ConfigChange, ...], *, validate_only: bool = False) -> BrokerConfig:
        """Make the changes, all or none; returns what is in force, or would be. Durable when it returns.

        Raises InvalidConfigError, DataDirectoryError.
        """
        return self.alter_by(lambda _: changes, validate_only=validate_only)

    def alter_by(
        self,
        change_of: Callable[[BrokerConfig], tuple[ConfigChange, ...]],
        *,
        validate_only: bool = False,
        even_unwritten: bool = False,
    ) -> BrokerConfig:
        """As `alter`, by what the changes to the configuration in force are said to be: nobody else alters it
        meanwhile. Raises what `change_of` does besides.

        `even_unwritten`: it holds from now on even where no disk can take it; the DataDirectoryError says so.
        """
        with self._lock:
            former = self._current
            changes = change_of(former)
            for change in changes:
                broker_key(change.name, change.value)
            config = self._altered(changes)
            require_fits(config.topic_defaults, self._max_request_bytes, "message.max.bytes")
            for reconfigurable in self._reconfigurables:
                reconfigurable.require_applicable(config)
            if validate_only:
                return config
            if config.dynamic == former.dynamic:
                self._require_written()
                return config
            unwritten = self._write(config, even_unwritten=even_unwritten)
            self._current = config
            for reconfigurable in self._reconfigurables:
                try:
                    reconfigurable.apply(config)
                except LogStoreError as error:
                    logger.warning("not everything goes by the altered configuration yet: %s", error)
        logger.info(
            "the configuration was altered: %s",
            ", ".join(f"{name}={'(deleted)' if text is None else text}" for name, text in changes),
        )
        if unwritten is not None:
            raise unwritten
        return config

    def _altered(self, changes: tuple[ConfigChange, ...]) -> BrokerConfig:
        """What would be in force with the changes. Raises InvalidConfigError."""
        overrides = changed(self._current.dynamic, changes)
        try:
            return BrokerConfig.of(self._current.static, overrides)
        except InvalidConfigError as refusal:
            held = still_held(overrides) if self._copies.held else {}
            if not held or not self._is_valid(
                {name: overrides[name] for name in overrides.keys() - held.keys()}
            ):
                raise
            raise InvalidConfigError(
                refusal.message
                + "; some keys are held until you alter or delete them, as nobody knows what was altered",
                **refusal.fields,
                held=", ".join(held),
            ) from None

    def _is_valid(self, overrides: Mapping[str, str]) -> bool:
        try:
            BrokerConfig.of(self._current.static, overrides)
        except InvalidConfigError:
            return False
        return True

    def _write(self, config: BrokerConfig, *, even_unwritten: bool) -> DataDirectoryError | None:
        """Make it durable. Raises DataDirectoryError where that cannot be, or returns it where the
        configuration holds all the same."""
        try:
            self._copies.write(config.dynamic)
        except DataDirectoryError as failure:
            if not even_unwritten:
                raise
            self._copies.keep(config.dynamic)
            return _unwritten(failure.fields["path"], failure.fields["reason"])
        return None

    def _require_written(self) -> None:
        """Raises DataDirectoryError where what is in force is on no disk, and still cannot be written."""
        if self._copies.is_kept_only:
            self._copies.write_rest()
        if self._copies.is_kept_only:
            raise _unwritten(self._copies.path, "still no log directory takes it")


def _unwritten(path: object, reason: object) -> DataDirectoryError:
    return DataDirectoryError(
        "the change holds from now on, but no log directory could take it, so a restart forgets it; free"
        " space or repair a disk, then it is written within a minute, or at once if you ask again",
        path=path,
        reason=reason,
    )


def require_fits(config: LogConfig, max_request_bytes: int, name: str = "max.message.bytes") -> None:
    """Raises InvalidConfigError where a batch of the largest size does not fit a request."""
    if config.max_message_bytes > max_request_bytes:
        raise InvalidConfigError(
            "the server does not accept requests of that size",
            name=name,
            value=config.max_message_bytes,
            allowed=f"at most {max_request_bytes}",
        )
