"""Random requests, made from the descriptors of their messages: a new field or a new call needs no line here.

A request is sensible as far as the names of its fields allow, or wild: then each of its fields may have any
value of its type. Sensible values are those that the server has given before (`Learned`), or small ones.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.logs.damaged_batches import damaged, sum_again

TOPICS = ("fuzz-0", "fuzz-1", "fuzz-2")
"""The topics that the inputs are about. They come and go as the inputs say."""
_CONFIG: Mapping[str, Sequence[str]] = {
    "retention.ms": ("-1", "1", "60000"),
    "retention.bytes": ("-1", "5000"),
    "local.retention.ms": ("1", "-2"),
    "segment.bytes": ("1024", "20000", "1048576"),
    "segment.ms": ("1", "100000"),
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "compression.type": ("producer", "zstd", "lz4", "gzip", "uncompressed"),
    "min.durability": ("os", "disk", "object"),
    "remote.storage.enable": ("true", "false"),
    "max.message.bytes": ("100", "1000000"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "index.interval.bytes": ("1", "4096"),
}
"""Keys of topics, and values that keep the work of the server small."""
_TEXTS = (
    "",
    " ",
    "\0",
    "../..",
    "x" * 249,
    "x" * 250,
    "x" * 3000,
    "ſ→",
    "-1",
    "00000000-0000-0000-0000-000000000000",
)
_RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 1e308, 5e-324, math.inf, -math.inf, math.nan)
_GUARDS = frozenset(
    {
        "topic_id",
        "leader_epoch",
        "last_fetched_epoch",
        "expected_offset",
        "fencing_token",
        "current_token",
        "producer",
        "page_token",
        "timestamp_ms",
    }
)
"""Fields that make most requests fail if they are there."""
_SMALL: Mapping[str, int] = {"partition": 3, "partitions": 3, "partition_count": 4, "max_wait_ms": 100}
"""The ends of sensible numbers, by the names of their fields; 40 for the others."""
MAX_LIST_BYTES = 2 << 20
_WILD_COUNTS = (0, 0, 1, 1, 30, 30, 300, 300, 3_000, 12_000)
_KEPT_COUNT = 30


class Learned:
    """Values that the server has given, by the names of their fields. Belongs to the event loop."""

    def __init__(self) -> None:
        self._values: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=_KEPT_COUNT))

    def take(self, message: Message, depth: int = 0) -> None:
        """Keep the texts and numbers of an answer; of a list a few."""
        for field, value in message.ListFields():
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            for one in value[:2] if field.is_repeated else (value,):
                if field.message_type is None:
                    self._values[field.name.removeprefix("next_")].append(one)
                    if field.name.endswith("offset"):
                        self._values["offset"].append(one)
                elif depth < 3:
                    self.take(one, depth + 1)

    def one_of(self, random: Random, name: str, kind: type) -> Any:
        """A value for a field of the name; None if there is none."""
        values = self._values.get("offset" if name.endswith("offset") else name)
        found = random.choice(values) if values else None
        return found if type(found) is kind else None


class RandomRequests:
    """Makes the requests of one input. Belongs to the event loop."""

    def __init__(self, random: Random, learned: Learned) -> None:
        self._random = random
        self._learned = learned
        self._wildness = random.choice((0.0, 0.0, 0.02, 0.1, 0.5))
        """The chance that a field has any value of its type."""

    def request(self, descriptor: Descriptor) -> Message:
        """A request of this type."""
        message: Message = GetMessageClass(descriptor)()
        self._fill(message, 0)
        return message

    def _is_wild(self) -> bool:
        return self._random.random() < self._wildness

    def _fill(self, message: Any, depth: int) -> None:
        for oneof in message.DESCRIPTOR.oneofs:
            fields = oneof.fields
            chance = self._chance_of(fields[0]) if len(fields) == 1 else 0.97
            if self._random.random() < chance:
                self._fill_field(message, self._random.choice(fields), depth)
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof is None and self._random.random() < self._chance_of(field):
                self._fill_field(message, field, depth)

    def _chance_of(self, field: FieldDescriptor) -> float:
        """The chance that a field is set."""
        if field.name in _GUARDS:
            return 0.12
        return 0.6 if self._is_wild() else 0.9

    def _fill_field(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(self._count()):
                name, value = self._setting()
                getattr(message, field.name)[name] = value
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            if depth > 4:
                return
            if not field.is_repeated:
                inner.SetInParent()
                self._fill(inner, depth + 1)
                return
            # Lists in long lists would take more time than other inputs.
            count = self._count() if depth == 0 else self._random.randint(0, 3)
            for _ in range(min(count, 4)):
                self._fill(inner.add(), depth + 1)
            if count > 4:
                # Many are alike: to make them would take longer than to send them.
                inner.extend([inner[0]] * min(count - 4, MAX_LIST_BYTES // max(1, inner[0].ByteSize())))
        elif field.is_repeated:
            count = self._count()
            values: list[Any] = [self._value(field) for _ in range(min(count, 4))]
            sizes = [len(one) if isinstance(one, (str, bytes)) else 1 for one in values]
            times = min(1 + count // 5, 1 + MAX_LIST_BYTES // (1 + sum(sizes)))
            getattr(message, field.name).extend(values * times)
        else:
            setattr(message, field.name, self._value(field))

    def _count(self) -> int:
        """The length of a list."""
        return self._random.choice(_WILD_COUNTS) if self._is_wild() else self._random.randint(1, 3)

    def _value(self, field: FieldDescriptor) -> object:
        random, kind = self._random, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text(field) if field.type == FieldDescriptor.TYPE_STRING else self._bytes(field)
        if field.enum_type is not None:
            if self._is_wild():
                return random.choice((-1, 0, 99, 2**31 - 1, -(2**31)))
            return random.choice(field.enum_type.values).number
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        if kind in _RANGES:
            return self._number(field)
        return random.choice(_FLOATS)

    def _number(self, field: FieldDescriptor) -> int:
        random = self._random
        lowest, highest = _RANGES[field.cpp_type]
        if self._is_wild():
            any_number = random.randint(lowest, highest) >> random.randrange(64)
            number = random.choice((lowest, highest, -1, 0, 10_001, highest - 1, any_number))
        else:
            learned = self._learned.one_of(random, field.name, int) if random.random() < 0.5 else None
            number = random.randrange(_SMALL.get(field.name, 40)) if learned is None else learned
        if field.name == "partition_count" and 5 < number <= 10_000:
            # Legal, and the disk of a test would be busy with it.
            return 5
        return min(max(number, lowest), highest)

    def _text(self, field: FieldDescriptor) -> str:
        random = self._random
        if self._is_wild():
            return random.choice((*_TEXTS, "é" * random.randrange(2000)))
        assert field.containing_type is not None
        owner = field.containing_type.name
        if owner.startswith("Config") or (owner == "DescribeConfigsRequest" and field.name == "names"):
            return self._setting()[field.name == "value"]
        if field.name in ("topic", "topics", "name", "names"):
            return random.choice(TOPICS)
        learned = self._learned.one_of(random, field.name, str)
        return random.choice(_TEXTS) if learned is None else str(learned)

    def _setting(self) -> tuple[str, str]:
        random = self._random
        name = random.choice([*_CONFIG])
        value = random.choice(_CONFIG[name])
        if self._is_wild():
            return random.choice((name, *_TEXTS)), random.choice((value, *_TEXTS, "9" * 30, "nan"))
        return name, value

    def _bytes(self, field: FieldDescriptor) -> bytes:
        random = self._random
        if field.name != "batches":
            return random.randbytes(random.choice((0, 1, 10, 10, 100, 5000)))
        if self._is_wild():
            return random.randbytes(random.choice((0, 10, 60, 61, 100, 3000)))
        return b"".join(self._batch() for _ in range(random.choice((1, 1, 1, 2, 5))))

    def _batch(self) -> bytes:
        """A batch of records, or one with changes in its header or its body, and often with a true sum."""
        random = self._random
        records = [
            Record(0, random.choice((0, 1, 10**12, 2**60)), self._blob(), self._blob(), self._headers())
            for _ in range(random.choice((1, 1, 2, 20)))
        ]
        codec = random.choice((Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY, Codec.GZIP))
        batch = encode_batch(records, codec=codec, producer=self._producer())
        if random.random() < 0.5:
            return batch
        broken = damaged(random, batch)
        return sum_again(broken) if random.random() < 0.7 else broken

    def _producer(self) -> BatchProducer:
        random = self._random
        given = self._learned.one_of(random, "producer_id", int)
        if given is None or given < 0 or random.random() < 0.6:
            return BatchProducer()
        return BatchProducer(given, random.choice((0, 0, 1, 2**15 - 1)), random.choice((0, 1, 2, 2**31 - 1)))

    def _blob(self) -> bytes | None:
        random = self._random
        return random.choice((None, b"", b"k", random.randbytes(20), b"a" * random.randrange(3000)))

    def _headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return tuple(
            (self._random.choice(("", "h", "é")), self._blob()) for _ in range(self._random.randrange(3))
        )
