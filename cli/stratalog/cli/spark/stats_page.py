"""The page of `stratalog spark stats --html`: the numbers of the table, charts of them, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.spark.stats_charts import BYTES, COUNTS, GOES, MARKED, PLAIN, STAYS, Part, bars

if TYPE_CHECKING:
    from stratalog.pipeline.jobs.hot_keys import HotKey
    from stratalog.pipeline.jobs.key_statistics import PartitionStatistics

MAX_BARS = 30
"""Bars of a chart; the largest are shown."""

_STYLE = """
:root { color: #1f2933; background: #fbfcfd; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 64rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.6rem 0 .3rem; }
p { margin: .2rem 0 .8rem; color: #52606d; max-width: 46rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.tile { flex: 1 1 8rem; padding: .7rem 1rem; background: #fff; border: 1px solid #e1e7ec; }
.tile b { display: block; font-size: 1.35rem; font-weight: 600; } .tile span { color: #52606d; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e1e7ec; text-align: right; white-space: nowrap; }
th { color: #52606d; font-weight: 600; } .text { text-align: left; } code { font-size: .92em; }
"""


class _Topic(NamedTuple):
    """The numbers of a topic."""

    name: str
    partitions: tuple[PartitionStatistics, ...]

    @property
    def compacted(self) -> bool:
        return self.partitions[0].compacted

    def sum_of(self, name: str) -> int:
        """The sum of a number over the partitions."""
        return sum(getattr(one, name) for one in self.partitions)

    @property
    def keys_counted(self) -> bool:
        return all(one.keys_counted for one in self.partitions)

    @property
    def size(self) -> str:
        """The bytes of its data, as people read them."""
        return str(ByteSize(self.sum_of("size_bytes")))

    @property
    def saved_bytes(self) -> int:
        """The bytes that a compaction of all records would free; 0 if the keys were not counted."""
        return self.sum_of("size_bytes") - self.sum_of("kept_bytes") if self.keys_counted else 0


def stats_page(found: Sequence[PartitionStatistics], hot: Sequence[HotKey], source: str, time: str) -> str:
    """The page, as HTML that is well-formed XML too. `source` is the store's URL, `time` that of the
    count."""
    topics = [
        _Topic(name, tuple(one for one in found if one.topic == name))
        for name in sorted({one.topic for one in found})
    ]
    topics.sort(key=lambda topic: -topic.sum_of("size_bytes"))
    sections = [_tiles(found, topics), *_charts(topics, found), *_hottest(hot), _topic_table(topics)]
    sections.append(_partition_table(found))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Statistics of {escape(source)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Statistics of topics</h1><p><code>{escape(source)}</code>, {escape(time)}</p>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _tiles(found: Sequence[PartitionStatistics], topics: Sequence[_Topic]) -> str:
    size_bytes = sum(one.size_bytes for one in found)
    saved_bytes = sum(topic.saved_bytes for topic in topics if topic.compacted)
    more_bytes = sum(topic.saved_bytes for topic in topics if not topic.compacted)
    lost_count = sum(one.lost_offset_count for one in found)
    share = f" ({saved_bytes / size_bytes:.0%})" if size_bytes else ""
    tiles = (
        ("topics", _count(len(topics))),
        ("partitions", _count(len(found))),
        ("records", _count(sum(one.record_count for one in found))),
        ("different keys", _count(sum(one.key_count for one in found))),
        ("tombstones", _count(sum(one.tombstone_count for one in found))),
        *((("lost offsets", _count(lost_count)),) if lost_count else ()),
        ("bytes", str(ByteSize(size_bytes))),
        ("compaction would free", f"{ByteSize(saved_bytes)}{share}"),
        *((("and of plain topics", str(ByteSize(more_bytes))),) if more_bytes else ()),
    )
    inner = "".join(
        f'<div class="tile"><b>{escape(text)}</b><span>{name}</span></div>' for name, text in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _charts(topics: Sequence[_Topic], found: Sequence[PartitionStatistics]) -> Iterable[str]:
    yield _size_chart(topics)
    keyed = [topic for topic in topics if topic.keys_counted and topic.sum_of("record_count")][:MAX_BARS]
    if keyed:
        yield _key_chart(keyed)
    deleting = [topic for topic in topics if topic.sum_of("tombstone_count")][:MAX_BARS]
    if deleting:
        yield _tombstone_chart(deleting)
    yield _partition_chart(found)


def _size_chart(topics: Sequence[_Topic]) -> str:
    shown = topics[:MAX_BARS]
    kept = [topic.sum_of("kept_bytes") if topic.keys_counted else 0 for topic in shown]
    plain = [0 if topic.keys_counted else topic.sum_of("size_bytes") for topic in shown]
    parts = [
        Part("stays", STAYS, kept),
        Part("would be freed", GOES, [topic.saved_bytes for topic in shown]),
        Part("keys not counted", PLAIN, plain),
    ]
    return _section(
        "Bytes of topics, and what compaction would free",
        "What a compaction of all records of a topic would leave, and the bytes that it would free: an"
        f" estimate by the share of records.{_left_out(topics, 'topics')}",
        bars("sizes", [topic.name for topic in shown], parts, BYTES, list(map(_saving, shown))),
    )


def _key_chart(keyed: Sequence[_Topic]) -> str:
    kept = [topic.sum_of("kept_record_count") for topic in keyed]
    superseded = [topic.sum_of("record_count") - count for topic, count in zip(keyed, kept, strict=True)]
    return _section(
        "Keys and records",
        "The records that stay are the last ones of their keys. The note has the different keys, and the"
        " records for each of them.",
        bars(
            "keys",
            [topic.name for topic in keyed],
            [Part("last of its key", STAYS, kept), Part("superseded", GOES, superseded)],
            COUNTS,
            [_per_key(topic) for topic in keyed],
        ),
    )


def _tombstone_chart(deleting: Sequence[_Topic]) -> str:
    counts = [topic.sum_of("tombstone_count") for topic in deleting]
    shares = [count / topic.sum_of("record_count") for topic, count in zip(deleting, counts, strict=True)]
    notes = [f"{count:,} ({share:.1%} of records)" for count, share in zip(counts, shares, strict=True)]
    return _section(
        "Tombstones",
        "Records without a value, which delete their keys.",
        bars(
            "tombstones",
            [topic.name for topic in deleting],
            [Part("tombstones", MARKED, counts)],
            COUNTS,
            notes,
        ),
    )


def _partition_chart(found: Sequence[PartitionStatistics]) -> str:
    largest = sorted(found, key=lambda one: -one.size_bytes)[:MAX_BARS]
    dirty = [one.dirty_bytes if one.compacted else 0 for one in largest]
    plain = [0 if one.compacted else one.size_bytes for one in largest]
    clean = [
        one.size_bytes - dirty_bytes - plain_bytes
        for one, dirty_bytes, plain_bytes in zip(largest, dirty, plain, strict=True)
    ]
    parts = [
        Part("compacted", STAYS, clean),
        Part("not compacted yet", GOES, dirty),
        Part("not a compacted topic", PLAIN, plain),
    ]
    return _section(
        "The largest partitions",
        f"Data below and above the end of what is compacted.{_left_out(found, 'partitions')}",
        bars(
            "partitions",
            [f"{one.topic}-{one.partition}" for one in largest],
            parts,
            BYTES,
            [str(ByteSize(one.size_bytes)) for one in largest],
        ),
    )


def _hottest(hot: Sequence[HotKey]) -> Iterable[str]:
    for number, topic in enumerate(sorted({one.topic for one in hot})):
        keys = [one for one in hot if one.topic == topic][:MAX_BARS]
        yield _section(
            f"The hottest keys of {topic}",
            "The keys with the most records.",
            bars(
                f"hot-{number}",
                [repr(one.key)[2:-1] for one in keys],
                [Part("records", STAYS, [one.record_count for one in keys])],
                COUNTS,
                [f"{one.record_count:,}" for one in keys],
            ),
        )


def _topic_table(topics: Sequence[_Topic]) -> str:
    header = ("Topic", "Partitions", "Records", "Tombstones", "Keys", "Kept", "Size", "Dirty", "Saves")
    return _section(
        "Topics",
        "",
        _table(
            header,
            [
                (
                    topic.name,
                    f"{len(topic.partitions):,}",
                    *_numbers(
                        topic.sum_of("record_count"),
                        topic.sum_of("tombstone_count"),
                        topic.sum_of("key_count") if topic.keys_counted else None,
                        topic.sum_of("kept_record_count") if topic.keys_counted else None,
                    ),
                    str(ByteSize(topic.sum_of("size_bytes"))),
                    str(ByteSize(topic.sum_of("dirty_bytes"))),
                    str(ByteSize(topic.saved_bytes)) if topic.keys_counted else "-",
                )
                for topic in topics
            ],
        ),
    )


def _partition_table(found: Sequence[PartitionStatistics]) -> str:
    header = ("Partition", "Objects", "Records", "Tombstones", "Keys", "Kept", "Size", "Dirty", "Saves")
    return _section(
        "Partitions",
        "",
        _table(
            header,
            [
                (
                    f"{one.topic}-{one.partition}",
                    *_numbers(
                        one.object_count,
                        one.record_count,
                        one.tombstone_count,
                        one.key_count if one.keys_counted else None,
                        one.kept_record_count if one.keys_counted else None,
                    ),
                    str(ByteSize(one.size_bytes)),
                    str(ByteSize(one.dirty_bytes)),
                    str(ByteSize(one.size_bytes - one.kept_bytes)) if one.keys_counted else "-",
                )
                for one in found
            ],
        ),
    )


def _section(title: str, text: str, inner: str) -> str:
    said = f"<p>{escape(text)}</p>" if text else ""
    return f"<h2>{escape(title)}</h2>{said}{inner}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        first, *others = (escape(cell) for cell in cells)
        inner = f'<{tag} class="text">{first}</{tag}>' + "".join(f"<{tag}>{cell}</{tag}>" for cell in others)
        return f"<tr>{inner}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table><thead>{line(header, "th")}</thead><tbody>{body}</tbody></table></div>'


def _numbers(*numbers: int | None) -> list[str]:
    return ["-" if number is None else f"{number:,}" for number in numbers]


def _count(number: int) -> str:
    return f"{number:,}"


def _saving(topic: _Topic) -> str:
    if not topic.keys_counted:
        return topic.size
    condition = "" if topic.compacted else ", if it were compacted"
    return f"{ByteSize(topic.saved_bytes)} of {topic.size}{condition}"


def _per_key(topic: _Topic) -> str:
    key_count, record_count = topic.sum_of("key_count"), topic.sum_of("record_count")
    return f"{key_count:,} keys, {record_count / key_count:,.1f} records each" if key_count else "no keys"


def _left_out(items: Sequence[object], noun: str) -> str:
    return f" The largest {MAX_BARS} of {len(items):,} {noun}." if len(items) > MAX_BARS else ""
