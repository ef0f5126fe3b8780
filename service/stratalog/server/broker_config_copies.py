"""The copies of the server's own configuration, one in each log directory: which one counts, and that all say
the same.

A server that started by less than was altered could delete records that a retention was to keep. So no single
directory decides: whichever of them is missing, empty or named in another order, the copy of the highest
generation counts, and is written to all others.

=======================================================  ==================================================
what a start finds besides it                            what it does
=======================================================  ==================================================
no file, or one of an older generation                   replaces it, and says what it had that is different
a damaged one, of that generation at most                replaces it
a damaged one that may be newer, or nothing but damage   refuses the start
one that cannot be read                                  goes on without it; with nothing else, refuses
another one of the same generation that says otherwise   refuses the start
the same, edited by a human                              the edited one counts
an older one, edited by a human, that says otherwise     refuses the start
=======================================================  ==================================================

An alteration is written to one directory after the other, and is made once one has it. A crash between two
leaves the higher generation in the first, which counts then. What a directory could not take is written later
(`write_rest`). A directory that was away comes back with an older generation, or, if both it and the others
were altered without each other, with one that a human has to choose from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.server.broker_config_file import (
    BrokerConfigFile,
    DamagedConfigError,
    StoredConfig,
)

logger = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """What was found in one directory."""

    file: BrokerConfigFile
    stored: StoredConfig | None = None
    failure: OSError | None = None
    damage: DamagedConfigError | None = None


class BrokerConfigCopies:
    """Not thread-safe: guarded by RuntimeConfig."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str]) -> None:
        assert directories, "there is at least one log directory"
        self._filesystem = filesystem
        self._directories = tuple(directories)
        self._online: Callable[[], Sequence[str]] = lambda: self._directories
        self._stored = StoredConfig({}, 0)
        # Directories that are known to have what is stored.
        self._saved: frozenset[str] = frozenset()
        # Directories of which it was said that they cannot take it.
        self._refusing: frozenset[str] = frozenset()
        self._is_kept = False
        self.path = BrokerConfigFile(filesystem, directories[0]).path
        """Of the copy that counts."""

    def read(self) -> Mapping[str, str]:
        """What was altered; nothing where no directory has a copy. Raises DataDirectoryError."""
        copies = self._look(self._directories)
        counting = _counting(copies)
        if counting is None or counting.stored is None:
            self._saved = self._needless()
            return {}
        _tell_outvoted(counting, copies)
        self.path, self._stored = counting.file.path, counting.stored
        self._saved = self._needless() | {
            copy.file.directory for copy in copies if copy.stored == self._stored
        }
        if self._stored.is_edited and len(self._directories) > 1:
            # A crash while it is written to the others must not leave two that differ in one generation.
            self._stored = StoredConfig(self._stored.overrides, self._stored.generation + 1)
            self._saved = frozenset()
        return self._stored.overrides

    def _needless(self) -> frozenset[str]:
        """Directories that need no file before something is altered: one has nobody to agree with."""
        return frozenset(self._directories if len(self._directories) == 1 else ())

    def settle(self, filesystem: FileSystem, online: Callable[[], Sequence[str]]) -> None:
        """The directories are locked: from now on nobody else writes to them. Let all that are `online`, now
        and with each later write, have what was read. Raises DataDirectoryError where another process has
        altered it since."""
        self._filesystem, self._online = filesystem, online
        for copy in self._look(online()):
            found = copy.stored
            if found is None or found.generation < self._stored.generation:
                continue
            if found.generation > self._stored.generation or found.overrides != self._stored.overrides:
                raise DataDirectoryError(
                    "another process has altered the configuration while the server started; start it again",
                    path=copy.file.path,
                )
        self.write_rest()

    def write(self, overrides: Mapping[str, str]) -> None:
        """Make this what was altered; durable when it returns, in one directory at least. Raises
        DataDirectoryError where none takes it; a restart finds the former one, or this."""
        wanted = StoredConfig(dict(overrides), self._stored.generation + 1)
        saved, failures = self._write_to(self._online(), wanted)
        if not saved:
            # Another generation of the former one replaces what the failed writes may have left.
            self._expect(self._stored.overrides, wanted.generation + 1)
            path, failure = next(iter(failures.items()), (self._directories[0], None))
            raise DataDirectoryError(
                "the configuration cannot be written to any log directory, and the server goes on by the"
                " former one; free space or repair a disk, and try again",
                path=BrokerConfigFile(self._filesystem, path).path,
                reason="no log directory works" if failure is None else str(failure),
            ) from failure
        self._stored, self._saved, self._is_kept = wanted, saved, False
        self._tell_refusing(failures)

    def keep(self, overrides: Mapping[str, str]) -> None:
        """No directory could take this; `write_rest` is to write it once one can."""
        self._expect(overrides, self._stored.generation + 1)
        self._is_kept = True

    @property
    def is_kept_only(self) -> bool:
        """What is in force is in no directory: a restart forgets it."""
        return self._is_kept

    def write_rest(self) -> None:
        """Write what is stored to the directories that do not have it yet. Those that cannot take it are told
        once, and tried again with the next call."""
        rest = [path for path in self._online() if path not in self._saved]
        saved, failures = self._write_to(rest, self._stored)
        self._saved |= saved
        self._is_kept = self._is_kept and not saved
        self._tell_refusing(failures)

    def _expect(self, overrides: Mapping[str, str], generation: int) -> None:
        self._stored, self._saved = StoredConfig(dict(overrides), generation), frozenset()

    def _look(self, directories: Iterable[str]) -> list[_Copy]:
        copies: list[_Copy] = []
        for directory in directories:
            file = BrokerConfigFile(self._filesystem, directory)
            try:
                copies.append(_Copy(file, file.read()))
            except DamagedConfigError as damage:
                copies.append(_Copy(file, damage=damage))
            except OSError as failure:
                copies.append(_Copy(file, failure=failure))
        return copies

    def _write_to(
        self, directories: Iterable[str], stored: StoredConfig
    ) -> tuple[frozenset[str], dict[str, OSError]]:
        """The directories that have it now, and the failures of the others."""
        saved: set[str] = set()
        failures: dict[str, OSError] = {}
        for directory in directories:
            try:
                BrokerConfigFile(self._filesystem, directory).write(stored)
                saved.add(directory)
            except OSError as failure:
                failures[directory] = failure
        return frozenset(saved), failures

    def _tell_refusing(self, failures: Mapping[str, OSError]) -> None:
        for directory, failure in failures.items():
            if directory not in self._refusing:
                logger.warning(
                    "the configuration could not be written to a log directory; it is tried again, and until"
                    " then a start that has only this one goes by an older configuration; free space there or"
                    " correct its rights, path=`%s`: %s",
                    BrokerConfigFile(self._filesystem, directory).path,
                    failure,
                )
        self._refusing = frozenset(failures)


def _counting(copies: Sequence[_Copy]) -> _Copy | None:
    """The copy that counts; None where there is none, and nothing that may have been one. Raises
    DataDirectoryError where nobody can tell."""
    whole = [(copy.stored.generation, copy.stored, copy) for copy in copies if copy.stored is not None]
    newest_generation = max((generation for generation, _, _ in whole), default=-1)
    newest = [(stored, copy) for generation, stored, copy in whole if generation == newest_generation]
    for copy in copies:
        _require_outvoted(copy, newest_generation, newest[0][1] if newest else None)
    if not newest:
        return None
    edited = [(stored, copy) for stored, copy in newest if stored.is_edited]
    counting_stored, counting = (edited or newest)[0]
    for stored, copy in edited or newest:
        if stored.overrides != counting_stored.overrides:
            raise DataDirectoryError(
                "two copies of the configuration that was altered at run time differ, and neither is newer;"
                " remove the wrong one",
                path=counting.file.path,
                other_path=copy.file.path,
                generation=newest_generation,
            )
    for generation, stored, copy in whole:
        is_older = generation < newest_generation
        if stored.is_edited and is_older and stored.overrides != counting_stored.overrides:
            raise DataDirectoryError(
                "a copy of the configuration was edited, and another log directory has a newer one; raise the"
                " line `generation=` of the edited one above that of the other, or remove it",
                path=copy.file.path,
                generation=generation,
                other_path=counting.file.path,
                other_generation=newest_generation,
            )
    return counting


def _require_outvoted(copy: _Copy, generation: int, other: _Copy | None) -> None:
    """Raises DataDirectoryError where the copy cannot be read and may be newer than what others say."""
    if copy.failure is not None:
        if other is None:
            raise DataDirectoryError(
                "the configuration that was altered at run time, which is also what retention goes by, cannot"
                " be read, and no other log directory has a copy; repair the disk, or start with another"
                " directory in its place as docs/operating.md says",
                path=copy.file.path,
                reason=str(copy.failure),
            ) from copy.failure
        logger.warning(
            "a copy of the configuration that was altered at run time cannot be read; generation %d of"
            " another log directory counts, path=`%s` other_path=`%s`: %s",
            generation,
            copy.file.path,
            other.file.path,
            copy.failure,
        )
    damage = copy.damage
    if damage is not None and (damage.generation is None or damage.generation > generation):
        known = {} if other is None else {"other_path": other.file.path, "other_generation": generation}
        raise DataDirectoryError(
            "the configuration that was altered at run time is damaged, and no other log directory is known"
            " to have a copy that is as new; correct the file and take its line `checksum=` away, or remove"
            " it to go by the copies of the others, or else by what the start is given",
            path=copy.file.path,
            reason=str(damage),
            **known,
        ) from None


def _tell_outvoted(counting: _Copy, copies: Sequence[_Copy]) -> None:
    """What the copies say that do not count, where it is something else."""
    assert counting.stored is not None
    for copy in copies:
        if copy.damage is None and (
            copy.stored is None or copy.stored.overrides == counting.stored.overrides
        ):
            continue
        logger.warning(
            "a copy of the configuration that was altered at run time is %s, and is replaced by generation %d"
            " of another log directory, path=`%s` other_path=`%s`: it said %s",
            "damaged" if copy.stored is None else f"of generation {copy.stored.generation}",
            counting.stored.generation,
            copy.file.path,
            counting.file.path,
            copy.damage if copy.stored is None else _text(copy.stored.overrides),
        )


def _text(overrides: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(overrides.items())) or "nothing"
