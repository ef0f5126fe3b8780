"""Reads records as an Arrow table: the columns are filled by a kernel, straight from the batches."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import InvalidRequestError, UnsupportedOperationError
from stratalog.client.consuming.consumer_settings import ConsumerSettings
from stratalog.client.consuming.fetch_decoding import ReceivedPartition
from stratalog.client.consuming.followed_partition import FollowedPartition
from stratalog.client.consuming.topic_follower import TopicFollower
from stratalog.client.errors import RecordDecodingError
from stratalog.client.messages import answer_end
from stratalog.record.columns import ColumnBuffers
from stratalog.record.native.consumer_records import decoded_part
from stratalog.record.reading.column_portions import ColumnPortion, column_portions
from stratalog.record.reading.readable_batches import readable_batches
from stratalog.record.reading.record_portions import RecordReading

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise UnsupportedOperationError(
        "reading as Arrow needs pyarrow; install the extra `arrow`", reason=missing
    ) from missing

from stratalog.record.reading.arrow_arrays import HEADER_TYPE, headers_of, keys_of, numbers_of, values_of

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import Decoder

    AnyArray = pa.Array[Any]

TIMESTAMP_TYPE = pa.timestamp("ms", tz="UTC")


class _Column:
    """A column of the table. Immutable."""

    def __init__(
        self, kind: pa.DataType, array_of: Callable[[ColumnBuffers, int], AnyArray], decode: Decoder = None
    ) -> None:
        if decode not in (None, "utf-8"):
            raise InvalidRequestError('columns are bytes, or text with "utf-8"; functions cannot decode them')
        self.is_text = decode is not None
        self.kind = pa.string() if self.is_text else kind
        self._array_of = array_of

    def array(self, rows: ColumnBuffers, partition: int) -> AnyArray:
        """The column of these rows. Raises ArrowInvalid for bytes that are no text."""
        found = self.bytes_array(rows, partition)
        return found.cast(pa.string()) if self.is_text else found

    def bytes_array(self, rows: ColumnBuffers, partition: int) -> AnyArray:
        """The column of these rows, text as bytes."""
        return self._array_of(rows, partition)


def columns_of(names: Sequence[str] | None, decode_key: Decoder, decode_value: Decoder) -> dict[str, _Column]:
    """The named columns, or all. Raises InvalidRequestError."""
    known = {
        "partition": _Column(
            pa.int32(), lambda rows, partition: pa.repeat(pa.scalar(partition, pa.int32()), rows.row_count)
        ),
        "offset": _Column(pa.int64(), lambda rows, _: numbers_of(pa.int64(), rows.offset)),
        "timestamp": _Column(TIMESTAMP_TYPE, lambda rows, _: _timestamps(rows)),
        "key": _Column(pa.binary(), lambda rows, _: keys_of(rows), decode_key),
        "value": _Column(pa.binary(), lambda rows, _: values_of(rows), decode_value),
        "headers": _Column(pa.list_(HEADER_TYPE), lambda rows, _: headers_of(rows, null_without=False)),
    }
    for name in names or ():
        if name not in known:
            raise InvalidRequestError("there is no such column", column=name, allowed=", ".join(known))
    return known if names is None else {name: known[name] for name in names}


async def read_arrow(
    follower: TopicFollower, settings: ConsumerSettings, names: Sequence[str] | None
) -> pa.Table:
    """All records of the follower as rows, partition by partition as they come. Raises as the follower."""
    columns = columns_of(names, settings.decode_key, settings.decode_value)
    schema = pa.schema([pa.field(name, column.kind) for name, column in columns.items()])
    batches: list[pa.RecordBatch] = []
    row_count, max_count = 0, settings.max_records
    try:
        while (answered := await follower.next_answer()) is not None:
            answer, followed = answered
            for portion in _portions(answer, followed, columns):
                arrays = _arrays(portion.rows, answer, columns)
                batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
                row_count += portion.rows.row_count
                if max_count is not None and row_count >= max_count:
                    return pa.Table.from_batches(batches, schema).slice(0, max_count)
    finally:
        await follower.close()
    return pa.Table.from_batches(batches, schema)


def _portions(
    answer: ReceivedPartition, followed: FollowedPartition, columns: dict[str, _Column]
) -> Sequence[ColumnPortion]:
    """The rows of an answer; the position moves behind them. Only the wanted columns are decoded."""

    def new_columns() -> ColumnBuffers:
        return ColumnBuffers(keys="key" in columns, values="value" in columns, headers="headers" in columns)

    limit = answer_end(answer, followed.end_offset)
    reading = RecordReading(answer.topic, answer.partition, followed.next_offset, limit)
    portions = list(
        column_portions(answer.batches, reading, readable_batches(answer.aborted_transactions), new_columns)
    )
    followed.next_offset = limit
    followed.pass_epoch(answer, portions[-1].last_epoch if portions else -1)
    return portions


def _arrays(rows: ColumnBuffers, answer: ReceivedPartition, columns: dict[str, _Column]) -> list[AnyArray]:
    """The columns of the rows. Raises RecordDecodingError."""
    try:
        return [column.array(rows, answer.partition) for column in columns.values()]
    except pa.ArrowInvalid:
        texts = {
            name: column.bytes_array(rows, answer.partition)
            for name, column in columns.items()
            if column.is_text
        }
        for index, offset in enumerate(rows.offset):
            for name, text in texts.items():
                try:
                    decoded_part(text[index].as_py(), "utf-8")
                except UnicodeDecodeError as error:
                    raise RecordDecodingError(
                        topic=answer.topic,
                        partition=answer.partition,
                        offset=offset,
                        origin=name,
                        reason=error,
                    ) from error
        raise


def _timestamps(rows: ColumnBuffers) -> AnyArray:
    """The timestamps; null for a record without one, which Kafka writes as -1."""
    raw = numbers_of(pa.int64(), rows.timestamp_ms)
    if rows.row_count and pc.min(raw).as_py() < 0:
        raw = pc.if_else(pc.equal(raw, pa.scalar(-1, pa.int64())), pa.scalar(None, pa.int64()), raw)
    return raw.cast(TIMESTAMP_TYPE)
