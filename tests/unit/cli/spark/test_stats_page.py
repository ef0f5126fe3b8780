"""The page of statistics is well-formed, needs no network, and has the numbers of the table."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.spark.stats_page import MAX_BARS, stats_page
from stratalog.pipeline.jobs.hot_keys import HotKey
from stratalog.pipeline.jobs.key_statistics import PartitionStatistics

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


def partition(
    topic: str, number: int, *, compacted: bool, keys_counted: bool | None = None
) -> PartitionStatistics:
    """By default the keys of compacted topics are counted."""
    keys_counted = compacted if keys_counted is None else keys_counted
    return PartitionStatistics(
        topic=topic,
        partition=number,
        compacted=compacted,
        object_count=3 + number,
        record_count=12_345 + number,
        tombstone_count=678,
        marker_count=0,
        size_bytes=5_000_000,
        dirty_bytes=1_000_000,
        key_count=4_321 if keys_counted else 0,
        kept_record_count=4_330 if keys_counted else 0,
        kept_bytes=2_000_000 if keys_counted else 0,
        unread_bytes=0 if keys_counted else 5_000_000,
    )


def page_of(*found: PartitionStatistics, hot: tuple[HotKey, ...] = ()) -> ET.Element:
    page = stats_page(found, hot, "s3://bucket/<&>", "2026-01-01 00:00 UTC")
    assert page.startswith("<!DOCTYPE html>\n")
    assert not re.search(r"<script|<link|<img|@import|url\(h|\bon\w+=", page)
    # The only addresses are names: those of XML.
    assert not re.search(r'(?:src|href)="(?!#)', page)
    return ET.fromstring(page.partition("\n")[2])


def cells_of(page: ET.Element) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in page.iter("tr")]


def texts_of(page: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in page.iter(f"{SVG}text")]


def test_the_page_has_the_numbers_of_the_table() -> None:
    keyed, plain = partition("keyed", 1, compacted=True), partition("plain", 0, compacted=False)
    page = page_of(keyed, plain, hot=(HotKey("keyed", b"$a$<\xff", 77), HotKey("keyed", b"b", 7)))
    rows = cells_of(page)
    saved = str(ByteSize(3_000_000))
    size, dirty = str(ByteSize(5_000_000)), str(ByteSize(1_000_000))
    assert ["keyed-1", "4", "12,346", "678", "4,321", "4,330", size, dirty, saved] in rows
    assert ["plain-0", "3", "12,345", "678", "-", "-", size, dirty, "-"] in rows
    assert ["keyed", "1", "12,346", "678", "4,321", "4,330", size, dirty, saved] in rows
    texts = texts_of(page)
    for text in ("keyed", "plain", f"{saved} of {size}", "4,321 keys, 2.9 records each", "$a$<\\xff", "77"):
        assert text in texts
    tiles = {tile[1].text: tile[0].text for tile in page.iter("div") if tile.get("class") == "tile"}
    assert tiles["records"] == "24,691"
    assert tiles["different keys"] == "4,321"
    assert tiles["compaction would free"] == f"{saved} (30%)"


def test_a_plain_topic_whose_keys_were_counted() -> None:
    page = page_of(
        partition("keyed", 0, compacted=True), partition("plain", 0, compacted=False, keys_counted=True)
    )
    saved, size, dirty = (str(ByteSize(number)) for number in (3_000_000, 5_000_000, 1_000_000))
    for name in ("plain", "plain-0"):
        (row,) = [cells for cells in cells_of(page) if cells[:1] == [name]]
        assert row[2:] == ["12,345", "678", "4,321", "4,330", size, dirty, saved]
    assert f"{saved} of {size}, if it were compacted" in texts_of(page)
    tiles = {tile[1].text: tile[0].text for tile in page.iter("div") if tile.get("class") == "tile"}
    assert tiles["compaction would free"] == f"{saved} (30%)"
    assert tiles["and of plain topics"] == saved


def test_ids_of_charts_do_not_meet() -> None:
    page = page_of(
        partition("keyed", 0, compacted=True), hot=(HotKey("keyed", b"a", 1), HotKey("o", b"a", 1))
    )
    charts = [*page.iter(f"{SVG}svg")]
    assert len(charts) == 6
    clips = [one.get("id") for chart in charts for one in chart.iter(f"{SVG}clipPath")]
    assert len(set(clips)) == len(clips) >= 6


@pytest.mark.parametrize("count", [0, 1, MAX_BARS + 5])
def test_any_number_of_topics(count: int) -> None:
    found = [partition(f"t{number:03}", 0, compacted=False) for number in range(count)]
    page = page_of(*found)
    assert len(cells_of(page)) == 2 * (1 + count)
    assert sum(text.startswith("t0") for text in texts_of(page)) == 3 * min(count, MAX_BARS)
