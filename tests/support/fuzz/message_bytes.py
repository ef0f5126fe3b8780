"""Changes serialised messages: bits, lengths, types and order of fields, depth. All functions are pure but
for their source of chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_CHANGED_BYTES = 256 << 10
"""Changed messages are cut off there: larger ones only take time."""

MAX_FIELD_COUNT = 50
"""Fields that are looked for."""

_VARINT, _FIXED_64, _BYTES, _GROUP, _END_GROUP, _FIXED_32 = range(6)
_HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def changed(random: Random, data: bytes) -> bytes:
    """A message with one change or several."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = random.choice(_CHANGES)(random, data)[:MAX_CHANGED_BYTES]
    return data


def varint(number: int) -> bytes:
    """A number of at least 0 as protobuf writes it, of any size."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def fields_of(data: bytes) -> list[bytes]:
    """The first fields of a message with their tags, as far as they can be found; the rest is the last
    one."""
    fields: list[bytes] = []
    begin = 0
    while begin < len(data) and len(fields) < MAX_FIELD_COUNT:
        end = _field_end(data, begin)
        if end is None:
            break
        fields.append(data[begin:end])
        begin = end
    if begin < len(data):
        fields.append(data[begin:])
    return fields


def _field_end(data: bytes, begin: int) -> int | None:
    tag = _read_varint(data, begin)
    if tag is None:
        return None
    kind, position = tag[0] & 7, tag[1]
    if kind == _FIXED_32:
        position += 4
    elif kind == _FIXED_64:
        position += 8
    elif kind in (_VARINT, _BYTES):
        number = _read_varint(data, position)
        if number is None:
            return None
        position = number[1] + (number[0] if kind == _BYTES else 0)
    return position if position <= len(data) else None


def _read_varint(data: bytes, position: int) -> tuple[int, int] | None:
    """The number and the position behind it."""
    number = 0
    for count, byte in enumerate(data[position : position + 10]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, position + count + 1
    return None


def _flip_bits(random: Random, data: bytes) -> bytes:
    flipped = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 3, 20))):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _cut_off(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _insert(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.randbytes(random.choice((1, 2, 10, 100))) + data[place:]


def _repeat_fields(random: Random, data: bytes) -> bytes:
    field = random.choice(fields_of(data) or [b""])
    most = MAX_CHANGED_BYTES // max(1, len(field))
    return data + field * min(most, random.choice((1, 2, 10, 3000)))


def _reorder(random: Random, data: bytes) -> bytes:
    fields = fields_of(data)
    random.shuffle(fields)
    return b"".join(fields)


def _change_type(random: Random, data: bytes) -> bytes:
    """Another wire type, or another number, for one field: its tag alone changes."""
    fields = fields_of(data)
    if not fields:
        return varint(random.randrange(1 << 32))
    at = random.randrange(len(fields))
    found = _read_varint(fields[at], 0)
    if found is None:
        return data
    tag, end = found
    other = random.choice((tag & ~7 | random.randrange(8), random.randrange(1, 16) << 3 | tag & 7, 0))
    fields[at] = varint(other) + fields[at][end:]
    return b"".join(fields)


def _huge_number(random: Random, data: bytes) -> bytes:
    """A field with a huge number, or one of more bytes than a number may have."""
    number = varint(random.choice(_HUGE)) if random.random() < 0.8 else b"\xff" * random.choice((9, 10, 40))
    return _beside(random, data, varint(random.randrange(1, 16) << 3 | _VARINT) + number)


def _huge_length(random: Random, data: bytes) -> bytes:
    """A field that says that it is longer than the message."""
    tag = varint(random.randrange(1, 16) << 3 | _BYTES)
    return _beside(random, data, tag + varint(random.choice((*_HUGE, len(data) + 1))))


def _nest(random: Random, data: bytes) -> bytes:
    """The message deep inside itself, or in groups."""
    number = random.randrange(1, 16)
    depth = random.choice((3, 90, 101, 5000))
    if random.random() < 0.3:
        return varint(number << 3 | _GROUP) * depth + data + varint(number << 3 | _END_GROUP) * depth
    tag = varint(number << 3 | _BYTES)
    for _ in range(min(depth, 1000)):
        data = tag + varint(len(data)) + data
    return data


def _many_short_fields(random: Random, data: bytes) -> bytes:
    field = random.choice((b"\x0a\x00", b"\x10\x00", b"\x12\x00", b"\x1a\x00", b"\x22\x02\x08\x01"))
    return _beside(random, data, field * random.choice((100, 9_000, 19_000, 60_000)))


def _packed_numbers(random: Random, data: bytes) -> bytes:
    packed = bytes(random.choice((10, 5_000, 30_000)))
    return _beside(random, data, varint(random.randrange(1, 8) << 3 | _BYTES) + varint(len(packed)) + packed)


def _inside(random: Random, data: bytes) -> bytes:
    """Change the contents of one field and keep its length true."""
    fields = fields_of(data)
    long = [at for at, field in enumerate(fields) if field[0] & 7 == _BYTES and len(field) > 2]
    if not long:
        return _flip_bits(random, data)
    at = random.choice(long)
    tag = _read_varint(fields[at], 0)
    length = None if tag is None else _read_varint(fields[at], tag[1])
    if tag is None or length is None:
        return data
    inner = random.choice((_flip_bits, _cut_off, _insert, _reorder, _change_type, _inside))(
        random, fields[at][length[1] :]
    )
    fields[at] = fields[at][: tag[1]] + varint(len(inner)) + inner
    return b"".join(fields)


def _garbage(random: Random, data: bytes) -> bytes:
    return random.randbytes(random.choice((0, 1, 5, 50, 500)))


def _beside(random: Random, data: bytes, field: bytes) -> bytes:
    return field + data if random.random() < 0.5 else data + field


_CHANGES: Sequence[Callable[[Random, bytes], bytes]] = (
    _flip_bits,
    _cut_off,
    _insert,
    _repeat_fields,
    _reorder,
    _change_type,
    _huge_number,
    _huge_length,
    _nest,
    _many_short_fields,
    _packed_numbers,
    _inside,
    _inside,
    _inside,
    _garbage,
)
