"""Arguments of consumers that mean nothing are refused at the call, with the value and the accepted ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.consuming.consumer_settings import ConsumedRange
from stratalog.client.position import (
    EARLIEST,
    LATEST,
    DistancePosition,
    OffsetPosition,
    TimePosition,
    position_of,
)

NO_POSITIONS: list[Any] = [
    *(True, 1.5, float("nan"), b"earliest", "first", "", [3], (0, 3), object()),
    *(1 << 63, -(1 << 63), 10**5000, -(10**5000)),
    *(datetime(2020, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)),  # noqa: DTZ001 - that is refused
    *("2020-01-01", "2020-01-01T00:00:00", "1969-12-31T23:59:59Z", "2020-13-01T00:00:00Z"),
]
NO_PARTITIONS: list[Any] = [-1, 1 << 31, True, 1.0, "0", None, TopicPartition("t", 0)]


@pytest.mark.parametrize("place", NO_POSITIONS, ids=[f"{at}" for at in range(len(NO_POSITIONS))])
@pytest.mark.parametrize("name", ["start", "until"])
async def test_no_position(name: str, place: Any) -> None:
    async with Client("127.0.0.1:1") as client:
        for value in (place, {0: place}):
            options: dict[str, Any] = {name: value}
            with pytest.raises(InvalidRequestError) as caught:
                client.consume("t", **options)
            assert caught.value.fields.keys() == {"position", "allowed"}
            with pytest.raises(InvalidRequestError):
                await client.read_arrow("t", **options)
        with pytest.raises(InvalidRequestError):
            await client.consume("t").seek(0, place)


@pytest.mark.parametrize("number", NO_PARTITIONS, ids=repr)
async def test_no_partition(number: Any) -> None:
    async with Client("127.0.0.1:1") as client:
        cases: list[dict[str, Any]] = [
            {"start": {number: 0}},
            {"until": {number: 0}},
            {"partitions": [number]},
        ]
        for options in cases:
            with pytest.raises(InvalidRequestError) as caught:
                client.consume("t", **options)
            assert caught.value.fields.keys() == {"partition", "allowed"}
        with pytest.raises(InvalidRequestError):
            await client.consume("t").seek(number, 0)


OTHERS: list[dict[str, Any]] = [
    *({"partitions": one} for one in (0, "01", 1.5)),
    *({"max_records": one} for one in (0, -1, 1 << 63, True, 2.0, "2")),
    *({"follow": one} for one in (1, "yes")),
    *({"topic_id": one} for one in (None, 7)),
    *({"isolation": one} for one in ("dirty", 1, None)),
    *({"decode": one} for one in ("latin-1", 7, True)),
    {"auto_offset_reset": "none"},
    {"auto_offset_reset": None},
    *({"metadata_max_age_s": one} for one in (0, -1.0, float("nan"), True, "1")),
]


@pytest.mark.parametrize("options", OTHERS, ids=str)
async def test_other_arguments(options: dict[str, Any]) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequestError) as caught:
            client.consume("t", **options)
        assert "allowed" in caught.value.fields


async def test_a_table_has_all_records() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequestError):
            client.table("t", max_records=3)


def test_positions_of_all_kinds() -> None:
    assert [
        position_of(place) for place in ("earliest", 0, 7, -7, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    ] == [
        EARLIEST,
        OffsetPosition(0),
        OffsetPosition(7),
        DistancePosition(7),
        TimePosition(1000),
    ]
    # Positions of different kinds differ, and those of the module are accepted.
    for position in (LATEST, OffsetPosition(2), DistancePosition(2), TimePosition(2)):
        assert position_of(position) is position
    assert len({LATEST, OffsetPosition(2), DistancePosition(2), TimePosition(2)}) == 4


def test_a_time_as_text() -> None:
    texts = ("1970-01-01T00:00:01Z", "1970-01-01T01:00:01.0001+01:00", "1970-01-01 00:00:01.001+00:00")
    assert [position_of(text) for text in texts] == [
        TimePosition(1000),
        TimePosition(1001),
        TimePosition(1001),
    ]


def test_the_end_and_following() -> None:
    def meaning(**options: Any) -> tuple[Any, bool]:
        wanted = ConsumedRange.of("t", **options)
        return wanted.until, wanted.follows

    assert meaning() == (None, True)
    assert meaning(follow=False) == (None, False)
    assert meaning(until=5) == (OffsetPosition(5), False)
    assert meaning(until=5, follow=True) == (OffsetPosition(5), True)
    assert meaning(until="latest") == meaning(until="latest", follow=True) == (None, False)
    assert meaning(until=2) == (OffsetPosition(2), False)
