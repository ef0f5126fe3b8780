"""The server's own configuration in force, and its alteration while the server runs.

Keys that were altered at run time lie in the store's catalog, so that every server of the store goes by them.
`cordoned.log.dirs` is about the disks of one machine, and lies in the manifests of its log directories.

An alteration is checked first, then committed by compare-and-swap, then put in force. If a component cannot
apply it at once (its disk fails), the alteration stands, and the log says so. `follow` does the same for an
alteration that another process has committed, or one of this process that ended without an answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stratalog.base.errors import InvalidConfigError, LogStoreError
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.server.configuration.broker_config import CORDONED, BrokerConfig, broker_key
from stratalog.server.configuration.config_entry import ConfigChange, ConfigLayers, changed

logger = logging.getLogger(__name__)


class Reconfigurable(Protocol):
    """A component that goes by the server's configuration. Thread-safe."""

    def require_applicable(self, config: BrokerConfig) -> None:
        """Raise InvalidConfigError if the component cannot go by this configuration."""
        ...

    def apply(self, config: BrokerConfig) -> None:
        """Go by this configuration. Raises LogStoreError, after which the call may be repeated."""
        ...


class _InForce(NamedTuple):
    """The configuration of one moment: where its keys are from, and what they come to."""

    shared: Mapping[str, str]
    """From the catalog."""
    local: Mapping[str, str]
    """From the manifests of the log directories."""
    layers: ConfigLayers
    config: BrokerConfig


class RuntimeConfig:
    """The configuration in force, which may be altered while the server runs. Thread-safe: `_lock` admits one
    alteration at a time; what is in force is replaced whole."""

    def __init__(
        self, catalog: Catalog, logs: LogManager, static: Mapping[str, str], max_request_bytes: int
    ) -> None:
        """`catalog`: was just read. `static`: the keys that the start was given.

        Raises InvalidConfigError if this version does not take what was altered.
        """
        self._catalog = catalog
        self._logs = logs
        self._static = static
        self._max_request_bytes = max_request_bytes
        self._lock = threading.Lock()
        self._reconfigurables: list[Reconfigurable] = []
        # The configuration of the catalog that could not be followed, so that the log names it once.
        self._refused: Mapping[str, str] | None = None
        try:
            self._in_force = self._resolve(catalog.state().server_config, self._read_local())
        except InvalidConfigError as refusal:
            raise InvalidConfigError(
                "the configuration that was altered at run time is refused; correct what the start is given,"
                " or run the version that altered it: " + refusal.message,
                **refusal.fields,
            ) from None

    @property
    def current(self) -> BrokerConfig:
        return self._in_force.config

    @property
    def layers(self) -> ConfigLayers:
        return self._in_force.layers

    @property
    def topic_defaults(self) -> LogConfig:
        return self._in_force.config.topic_defaults

    def topic_defaults_under(self, server_config: Mapping[str, str]) -> LogConfig:
        """The defaults of topics under that configuration of the catalog. Raises InvalidConfigError."""
        in_force = self._in_force
        if server_config != in_force.shared:
            in_force = self._resolve(server_config, in_force.local)
        return in_force.config.topic_defaults

    def is_as(self, state: CatalogState) -> bool:
        """Whether the configuration in force is the one in this state of the catalog."""
        return self._in_force.shared == state.server_config

    def add(self, reconfigurable: Reconfigurable) -> None:
        with self._lock:
            self._reconfigurables.append(reconfigurable)

    def alter(self, changes: tuple[ConfigChange, ...], *, validate_only: bool = False) -> None:
        """Make the changes; durable and in force when it returns. Keys of the catalog: all or none of them.
        The local key: in one manifest after the other, see `DirectorySet.alter_cordons`.

        Raises InvalidConfigError; StoreError: after StoreUnavailableError the outcome is unknown, `follow`
        finds out, and the call may be repeated. Raises DataDirectoryError if a manifest cannot be written;
        those before it are altered then, and in force.
        """
        with self._lock:
            names = {change.name for change in changes}
            # A key of newer software has no place here, but may be removed.
            for name in names - self._catalog.state().server_config.keys():
                broker_key(name)
            if names == {CORDONED}:
                self._follow_local()
                self._alter_local(changes, validate_only=validate_only)
            elif CORDONED not in names:
                self._alter_shared(changes, validate_only=validate_only)
            else:
                raise InvalidConfigError(
                    f"{CORDONED} is kept on this machine, the other keys in the store; alter it by itself",
                    name=CORDONED,
                    allowed="no other key in the same request",
                )

    def alter_cordons(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        """Replace the cordoned log directories by `change` of the current ones, whose exceptions pass
        through. Raises what `alter` does."""
        with self._lock:
            self._follow_local()
            wanted = ",".join(change(self.current.cordoned_log_dirs))
            self._alter_local((ConfigChange(CORDONED, wanted),), validate_only=False)

    def follow(self) -> None:
        """Go by the newest configuration of the catalog that was read.

        Does nothing while an alteration is under way: the caller never waits for one, and calls again later.
        A configuration that this version refuses is logged once; the former one stays in force.
        """
        if self.is_as(self._catalog.state()) or not self._lock.acquire(blocking=False):
            return
        try:
            # Another thread may have read, and put in force, a newer one.
            server_config = self._catalog.state().server_config
            if server_config == self._in_force.shared:
                return
            try:
                in_force = self._resolve(server_config, self._in_force.local)
            except InvalidConfigError as refusal:
                is_news = server_config != self._refused
                self._refused = server_config
                logger.log(
                    logging.WARNING if is_news else logging.DEBUG,
                    "the server's configuration was altered elsewhere, and this version refuses it; retention"
                    " and compaction wait until it is corrected: %s",
                    refusal,
                )
                return
            self._enforce(in_force)
            logger.info("followed the server's configuration, which was altered elsewhere")
        finally:
            self._lock.release()

    def _alter_shared(self, changes: tuple[ConfigChange, ...], *, validate_only: bool) -> None:
        local = self._in_force.local

        def alter(server_config: Mapping[str, str]) -> Mapping[str, str]:
            return self._checked(changed(server_config, changes), local).shared

        if validate_only:
            alter(self._catalog.refresh().server_config)
            return
        altered = self._resolve(self._catalog.alter_server_config(alter), local)
        self._enforce(altered, changes)

    def _alter_local(self, changes: tuple[ConfigChange, ...], *, validate_only: bool) -> None:
        shared = self._in_force.shared
        altered = self._checked(shared, changed(self._in_force.local, changes))
        if validate_only:
            return
        is_set, is_written = CORDONED in altered.local, False
        try:
            self._logs.directories.alter_cordons(altered.config.cordoned_log_dirs if is_set else None)
            is_written = True
        finally:
            # A failure leaves what was written before it.
            self._enforce(self._resolve(shared, self._read_local()), changes if is_written else ())

    def _follow_local(self) -> None:
        """Go by the manifests: a cordon that a disk did not answer in time may be in one since."""
        if self._read_local() != self._in_force.local:
            self._enforce(self._resolve(self._in_force.shared, self._read_local()))

    def _read_local(self) -> dict[str, str]:
        cordoned = self._logs.directories.altered_cordons()
        return {} if cordoned is None else {CORDONED: ",".join(cordoned)}

    def _resolve(self, shared: Mapping[str, str], local: Mapping[str, str]) -> _InForce:
        """Derive the configuration in force from its layers. Raises InvalidConfigError."""
        layers = ConfigLayers(self._static, {**shared, **local})
        config = layers.resolve()
        require_fits(config.topic_defaults, self._max_request_bytes, "message.max.bytes")
        return _InForce(shared, local, layers, config)

    def _checked(self, shared: Mapping[str, str], local: Mapping[str, str]) -> _InForce:
        """Resolve the keys and ask each component. Raises InvalidConfigError."""
        resolved = self._resolve(shared, local)
        for reconfigurable in self._reconfigurables:
            reconfigurable.require_applicable(resolved.config)
        return resolved

    def _enforce(self, altered: _InForce, changes: tuple[ConfigChange, ...] = ()) -> None:
        former, self._in_force = self._in_force, altered
        self._refused = None
        if altered.layers == former.layers:
            return
        for reconfigurable in self._reconfigurables:
            try:
                reconfigurable.apply(altered.config)
            except LogStoreError as error:
                logger.warning(
                    "%s has not applied the altered configuration; mend what the error says, and alter the"
                    " configuration again or restart the server: %s",
                    type(reconfigurable).__name__,
                    error,
                )
        if changes:
            logger.info(
                "the configuration was altered: %s",
                ", ".join(f"{name}={'(deleted)' if text is None else text}" for name, text in changes),
            )


def require_fits(config: LogConfig, max_request_bytes: int, name: str = "max.message.bytes") -> None:
    """Raise InvalidConfigError if a batch of the largest size does not fit into a request."""
    if config.max_message_bytes > max_request_bytes:
        raise InvalidConfigError(
            "the server does not accept requests of that size; choose a smaller one",
            name=name,
            value=config.max_message_bytes,
            allowed=f"at most {max_request_bytes}",
        )
