"""Scenarios: what is done to a log, line by line, and what it looks like then, for a reader to follow.

::

    Prose explains. A line that begins with `> ` is a command; what it prints follows, indented.

    > topic cleanup.policy=compact
    > append a=1 b=2
    > roll
    > show
        log start 0, stable end 2, end 2
        segment 0
          0 a=1
          1 b=2
        segment 2, active

`LogScenario.run` gives the text back with what the commands print now, so a test compares the two, and who
changed a rule on purpose has the new text written.

Commands: `topic KEY=VALUE ...` (first; further ones alter), `append [producer=N] [txn] [at=DURATION]
KEY=VALUE ...` (one batch; `KEY` alone is a tombstone, `=VALUE` has no key; `at` is relative to now), `commit
N`, `abort N`, `roll`, `flush`, `wait DURATION`, `clock DURATION` (wall time jumps), `retain`, `clean
[keys=N]`, `trim OFFSET`, `truncate OFFSET`, `restart`, `kill`, `files`, `show`, `read [committed]
[from=OFFSET]`. A duration is a number with ms, s, m, h or d.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from stratalog.base.errors import LogStoreError
from stratalog.cleaner.clean.clean_result import CleanLimits
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import EndTransactionMarker
from stratalog.record.header import BatchHeader
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import PARTITION, PARTITION_DIR, LogMachine

COMMAND = "> "
INDENT = "    "
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEADER_EPOCH = 1


class LogScenario:
    """One log on a disk in memory, with a clock that only the scenario moves. Used by one thread, once."""

    def __init__(self) -> None:
        self._disk = MemoryFileSystem()
        self._overrides: dict[str, str] = {"remote.storage.enable": "false"}
        self._machine = LogMachine(self._disk, LogConfig.from_overrides(self._overrides))
        self._opened: UnifiedLog | None = None
        self._sequences: dict[int, int] = {}
        self._commands: dict[str, Callable[[list[str]], Iterator[str]]] = {
            "topic": self._topic,
            "append": self._append,
            "commit": lambda words: self._end(int(words[0]), committed=True),
            "abort": lambda words: self._end(int(words[0]), committed=False),
            "roll": lambda _: _quiet(self._log.roll),
            "flush": lambda _: _quiet(self._log.flusher.flush),
            "wait": lambda words: _quiet(lambda: self._machine.clock.advance(_duration_ms(words[0]))),
            "clock": self._jump,
            "retain": self._retain,
            "clean": self._clean,
            "trim": lambda words: _quiet(lambda: self._log.increment_log_start_offset(int(words[0]))),
            "truncate": self._truncate,
            "restart": self._restart,
            "kill": self._kill,
            "files": self._files,
            "show": self._show,
            "read": self._read,
        }

    def run(self, text: str) -> str:
        """The scenario with what its commands print now. Raises KeyError for a command that there is not."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith(COMMAND):
                lines += [line, *(f"{INDENT}{printed}" for printed in self._printed_by(line))]
            elif not line.startswith(INDENT):
                lines.append(line)
        return "\n".join(lines) + "\n"

    def _printed_by(self, line: str) -> list[str]:
        name, *words = shlex.split(line.removeprefix(COMMAND))
        try:
            return list(self._commands[name](words))
        except LogStoreError as refusal:
            return [f"refused: {refusal}"]

    @property
    def _log(self) -> UnifiedLog:
        if self._opened is None:
            self._opened = self._machine.start()
        return self._opened

    def _topic(self, words: Sequence[str]) -> Iterator[str]:
        self._overrides |= dict(word.split("=", 1) for word in words)
        self._machine.config = LogConfig.from_overrides(self._overrides)
        self._log.reconfigure(self._machine.config)
        yield from ()

    def _append(self, words: list[str]) -> Iterator[str]:
        options, pairs = _split_options(words, ("producer", "at"))
        timestamp_ms = self._machine.clock.now_ms() + _duration_ms(options.get("at", "0ms"))
        is_transactional = "txn" in pairs
        records = [_record(pair, timestamp_ms) for pair in pairs if pair != "txn"]
        producer = None
        if "producer" in options:
            producer_id = int(options["producer"])
            sequence = self._sequences.get(producer_id, 0)
            producer = BatchProducer(producer_id, 0, sequence, is_transactional)
            self._sequences[producer_id] = sequence + len(records)
        data = encode_batch(records) if producer is None else encode_batch(records, producer=producer)
        self._log.appender.append_as_leader(data, _LEADER_EPOCH)
        yield from ()

    def _end(self, producer_id: int, *, committed: bool) -> Iterator[str]:
        self._log.appender.append_end_transaction_marker(
            producer_id, 0, 0, committed=committed, leader_epoch=_LEADER_EPOCH
        )
        yield from ()

    def _jump(self, words: list[str]) -> Iterator[str]:
        clock = self._machine.clock
        clock.set_wall_ms(clock.now_ms() + _duration_ms(words[0]))
        yield from ()

    def _retain(self, _: list[str]) -> Iterator[str]:
        count = self._log.retention.delete_old_segments()
        future_count = self._log.retention.future_segment_count
        yield f"{count} segments deleted" + (f", {future_count} of the future" if future_count else "")

    def _truncate(self, words: list[str]) -> Iterator[str]:
        yield f"ends at {self._machine.manager.truncate_to(PARTITION, int(words[0]))}"

    def _clean(self, words: list[str]) -> Iterator[str]:
        options, _ = _split_options(words, ("keys",))
        map_bytes = 24 * (int(options["keys"]) + 1) if "keys" in options else 1 << 20
        machine, log = self._machine, self._log
        cleanings = machine.manager.cleaner
        chosen = cleanings.take_filthiest()
        if chosen is None:
            yield "nothing to clean"
            return

        def check_done() -> None:
            cleanings.check_done(log)

        def throttle(_: int) -> None:
            """Go as fast as possible."""

        limits = CleanLimits(map_bytes, 1.0, 4096, check_done, throttle)
        result = LogClean(machine.clock, SequentialIds()).run(chosen, limits)
        cleanings.done(chosen, result.end_offset, result.next_clean_ms)
        stats = result.stats
        log.check()
        dirty = f"dirty from {chosen.first_dirty_offset} to {chosen.first_uncleanable_offset}"
        if chosen.first_dirty_offset == chosen.first_uncleanable_offset:
            dirty = "for what has had its time"
        kept = f"{stats.kept_record_count} of {stats.cleaned_record_count} records kept"
        yield f"{dirty}; clean to {result.end_offset}, {kept}"

    def _restart(self, _: list[str]) -> Iterator[str]:
        self._machine.stop()
        self._opened = None
        yield from ()

    def _kill(self, _: list[str]) -> Iterator[str]:
        """Kill the process, not the machine: unsynced bytes stay."""
        self._machine.kill()
        self._opened = None
        yield from ()

    def _files(self, _: list[str]) -> Iterator[str]:
        for name in self._disk.list_directory(PARTITION_DIR):
            if name != "partition.metadata":
                yield name

    def _show(self, _: list[str]) -> Iterator[str]:
        log = self._log
        end = f"stable end {log.offsets.last_stable_offset}, end {log.offsets.log_end_offset}"
        yield f"log start {log.offsets.log_start_offset}, {end}"
        for segment in log.reader.segments():
            data = self._disk.read_file(f"{PARTITION_DIR}/{segment.base_offset:020d}.log")[
                : segment.size_bytes
            ]
            yield f"segment {segment.base_offset}{', active' if segment.is_active else ''}"
            for position, header in batches(data):
                yield from (f"  {line}" for line in _described(data, position, header, self._age_ms))

    def _read(self, words: list[str]) -> Iterator[str]:
        options, flags = _split_options(words, ("from",))
        is_committed = "committed" in flags
        isolation = Isolation.TXN_COMMITTED if is_committed else Isolation.HIGH_WATERMARK
        offset = int(options.get("from", self._log.offsets.log_start_offset))
        end_offset = (
            self._log.offsets.last_stable_offset if is_committed else self._log.offsets.high_watermark
        )
        while offset < end_offset:
            fetched = self._log.reader.read(offset, 1 << 20, isolation)
            for position, header in batches(fetched.batches):
                if not header.is_control and not _is_aborted(header, fetched.aborted_transactions):
                    shown = (
                        record for record in decode(fetched.batches, position) if record.offset >= offset
                    )
                    yield from (f"{record.offset} {_pair(record)}" for record in shown)
            offset = fetched.next_offset

    def _age_ms(self, timestamp_ms: int) -> int:
        return timestamp_ms - self._machine.clock.now_ms()


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _described(
    data: bytes, position: int, header: BatchHeader, age_ms: Callable[[int], int]
) -> Iterator[str]:
    """Its records a line each, with what the batch says about all of them."""
    notes: list[str] = []
    if header.producer_id >= 0 and not header.is_control:
        notes.append(f"producer {header.producer_id}{' in a transaction' if header.is_transactional else ''}")
    if header.delete_horizon_ms is not None:
        notes.append(f"delete horizon {_duration(age_ms(header.delete_horizon_ms))}")
    suffix = f"  ({', '.join(notes)})" if notes else ""
    if header.records_count == 0:
        yield f"{header.base_offset}..{header.last_offset} emptied{suffix}"
    elif header.is_control:
        marker = EndTransactionMarker.read(data, position, header)
        assert marker is not None, "scenarios write no other control batches"
        kind = marker.control_type.name.lower()
        yield f"{header.base_offset} {kind} of producer {header.producer_id}{suffix}"
    else:
        for record in decode(data, position):
            yield f"{record.offset} {_pair(record)}{suffix}"


def _pair(record: Record) -> str:
    key = "" if record.key is None else record.key.decode()
    return key if record.value is None else f"{key}={record.value.decode()}"


def _record(pair: str, timestamp_ms: int) -> Record:
    key, separator, value = pair.partition("=")
    return Record(0, timestamp_ms, key.encode() if key else None, value.encode() if separator else None)


def _split_options(words: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`NAME=VALUE` words of these names, and all others."""
    found = {word.split("=", 1)[0]: word.split("=", 1)[1] for word in words if word.split("=", 1)[0] in names}
    return found, [word for word in words if word.split("=", 1)[0] not in names]


def _duration_ms(text: str) -> int:
    number = text.rstrip("msdh")
    return int(number) * _UNITS_MS[text[len(number) :]]


def _duration(duration_ms: int) -> str:
    """In the largest unit that takes it whole, with its sign."""
    unit = max(
        (unit for unit, ms in _UNITS_MS.items() if duration_ms % ms == 0), key=lambda unit: _UNITS_MS[unit]
    )
    text = f"{abs(duration_ms) // _UNITS_MS[unit]}{unit}"
    return f"in {text}" if duration_ms > 0 else f"{text} ago"


def _quiet(act: Callable[[], object]) -> Iterator[str]:
    act()
    return iter(())
