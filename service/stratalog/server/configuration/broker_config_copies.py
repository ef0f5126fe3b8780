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
a stand-in that nobody has altered                       replaces it
a stand-in that was altered, and says otherwise          refuses the start
a newer one beside a stand-in that replaces older ones   refuses the start, where they say otherwise
=======================================================  ==================================================

An alteration is written to one directory after the other, and is made once one has it. A crash between two
leaves the higher generation in the first, which counts then. What a directory could not take is written later
(`write_rest`). A directory that was away comes back with an older generation, or, if both it and the others
were altered without each other, with one that a human has to choose from.

Where all directories are new and others have had the store, nobody knows what was altered, and a stand-in is
begun, see `held_config`. It counts as long as nothing but stand-ins is found: whatever its generation is, it
does not stand in for a copy that is there after all.

Where others have owned the store since, the copy that counts is out of date, and so is what it has replaced.
A stand-in takes its place as the next generation, and counts as any other copy does from then on: a directory
that was away, and still has what is out of date, does not bring it back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.server.configuration.broker_config_file import (
    BrokerConfigFile,
    DamagedConfigError,
    StoredConfig,
)
from stratalog.server.configuration.held_config import HELD_CONFIG, still_held

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
        # What `read` found.
        self._found: list[StoredConfig] = []
        # Directories in which `read` found the copy that counts.
        self._holders: frozenset[str] = frozenset()
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
        self._found = [copy.stored for copy in copies if copy.stored is not None]
        counting = _counting(copies)
        if counting is None or counting.stored is None:
            return {}
        _tell_outvoted(counting, copies)
        self.path, self._stored = counting.file.path, counting.stored
        self._holders = frozenset(copy.file.directory for copy in copies if copy.stored == self._stored)
        self._saved = self._holders
        if self._stored.is_edited and len(self._directories) > 1:
            # A crash while it is written to the others must not leave two that differ in one generation.
            self._stored = self._next(self._stored.overrides)
            self._saved = frozenset()
        return self._stored.overrides

    @property
    def overrides(self) -> Mapping[str, str]:
        """What was altered, as a start goes by it."""
        return self._stored.overrides

    @property
    def held(self) -> Mapping[str, str]:
        """What of a stand-in nobody has altered yet; nothing where it is known what was altered."""
        return still_held(self._stored.overrides) if self._stored.is_stand_in else {}

    def settle(
        self,
        filesystem: FileSystem,
        online: Callable[[], Sequence[str]],
        *,
        is_unknown: bool = False,
        is_current: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """The directories are locked: from now on nobody else writes to them. Let all that are `online`, now
        and with each later write, have what was read. `is_unknown`: others have had the store, and these
        directories are new, so that where none has a copy it is not known that nothing was altered.
        `is_current`: nobody else has owned the store since a directory was used; asked of those that are not
        new.

        Raises DataDirectoryError where another process has altered it since, or a stand-in cannot be written.
        """
        self._filesystem, self._online = filesystem, online
        self._require_unaltered()
        asked = [path for path in online() if path in self._holders] or online()
        if (is_unknown and not self._found) or not any(map(is_current, asked)):
            self.hold()
        self.write_rest()

    def hold(self) -> None:
        """Nobody knows what was altered, or only what others may have altered since: keep records. Durable in
        each directory when it returns. Raises DataDirectoryError."""
        former = self._stored
        overrides = {**former.overrides, **HELD_CONFIG}
        if former.is_stand_in and former.overrides == overrides:
            return
        stand_in = StoredConfig(
            overrides, former.generation + 1, is_stand_in=True, replaces_older=bool(self._found)
        )
        saved, failures = self._write_to(self._online(), stand_in)
        for directory, failure in failures.items():
            raise DataDirectoryError(
                "the configuration that is to keep records, where nobody knows what was altered at run time,"
                " cannot be written; free space or repair the disk, and start again",
                path=BrokerConfigFile(self._filesystem, directory).path,
                reason=str(failure),
            ) from failure
        self._stored, self._saved = stand_in, saved
        if self._found:
            logger.warning(
                "others have owned the store since these log directories were last used, and may have altered"
                " the configuration; of what is held now these directories have said %s, path=`%s`",
                _text({name: former.overrides[name] for name in HELD_CONFIG if name in former.overrides}),
                ", ".join(sorted(saved)),
            )

    def _require_unaltered(self) -> None:
        """Raises DataDirectoryError."""
        for copy in self._look(self._online()):
            found = copy.stored
            if found is None or found in self._found or found.generation < self._stored.generation:
                continue
            if found.generation > self._stored.generation or found.overrides != self._stored.overrides:
                raise DataDirectoryError(
                    "another process has altered the configuration while the server started; start it again",
                    path=copy.file.path,
                )

    def write(self, overrides: Mapping[str, str]) -> None:
        """Make this what was altered; durable when it returns, in one directory at least. Raises
        DataDirectoryError where none takes it; a restart finds the former one, or this."""
        wanted = self._next(dict(overrides))
        saved, failures = self._write_to(self._online(), wanted)
        if not saved:
            # Another generation of the former one replaces what the failed writes may have left.
            self._expect(self._stored.overrides, 2)
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
        self._expect(overrides)
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

    def _expect(self, overrides: Mapping[str, str], generations: int = 1) -> None:
        self._stored, self._saved = self._next(dict(overrides), generations), frozenset()

    def _next(self, overrides: Mapping[str, str], generations: int = 1) -> StoredConfig:
        """What follows on what is stored; a stand-in remains one."""
        generation = self._stored.generation + generations
        return self._stored._replace(overrides=overrides, generation=generation, is_edited=False)

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
    found = [(copy.stored.generation, copy.stored, copy) for copy in copies if copy.stored is not None]
    whole = [one for one in found if not one[1].gives_way] or found
    newest_generation = max((generation for generation, _, _ in whole), default=-1)
    newest = [(stored, copy) for generation, stored, copy in whole if generation == newest_generation]
    for copy in copies:
        _require_outvoted(copy, newest[0] if newest else None)
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
    if not counting_stored.gives_way:
        for copy in copies:
            _require_gives_way(copy, counting_stored, counting)
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


def _require_gives_way(copy: _Copy, stored: StoredConfig, counting: _Copy) -> None:
    """Raises DataDirectoryError where a stand-in says what somebody has altered, or what was known to be out
    of date, and not what the one says that counts."""
    found = copy.stored
    if found is None or not found.is_stand_in or found.overrides == stored.overrides:
        return
    is_older = found.replaces_older or found.generation < stored.generation
    is_replaced = stored.replaces_older and is_older
    if is_replaced or (found.gives_way and found.overrides == HELD_CONFIG):
        return
    raise DataDirectoryError(
        "the configuration was altered, or held, in other log directories while those were away that know"
        " something else of what had been altered; remove the wrong one, or correct the other one first",
        path=copy.file.path,
        generation=found.generation,
        other_path=counting.file.path,
        other_generation=stored.generation,
    )


def _require_outvoted(copy: _Copy, newest: tuple[StoredConfig, _Copy] | None) -> None:
    """Raises DataDirectoryError where the copy cannot be read and may be newer than what others say. A
    stand-in is newer than none."""
    stored, other = (None, None) if newest is None else newest
    generation = -1 if stored is None else stored.generation
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
    if damage is None:
        return
    is_outvoted = damage.generation is not None and damage.generation <= generation
    if not is_outvoted or (stored is not None and stored.gives_way):
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
