"""The records of a producer on their way into batches: bytes from the first moment on.

The classes are compiled if possible: `NATIVE` of ``kernels`` says whether they come from ``_kernels`` or from
``pure_record_accumulator``. Their bytes are the same. They are thread-safe.

RecordAccumulator(batch_bytes, max_buffered_bytes, make_receipt, now_ms=None)
    The open batches of all partitions. A batch is complete when it has `batch_bytes` (with its header, before
    compression), or when a record does not fit below that. `make_receipt(topic, partition)` makes the receipt
    of a batch when it is first asked for. `now_ms` is the clock for records without a timestamp; None: the
    system's. A subclass has four methods for what happens beside the buffer:

    wake() is called, by the thread that sends, when `take_batches` has something new.
    refuse_record() is called while the buffer is full and after `end`, and raises.
    refuse_size(topic, size_bytes, max_bytes) is called for a record that makes a batch of `size_bytes` even
        alone, where batches of the topic have at most `max_bytes`, and raises.
    send_early(topic, key, value, partition, timestamp_ms, headers_count, headers) -> Delivery
        is called for a record whose topic is unknown or held, or whose partition is above the known number.
        Later `send_encoded` takes the same arguments, also after `end`.

    send(topic, key=None, value=None, *, partition=None, timestamp_ms=None, headers=None) -> Delivery
        Adds a record to the open batch of its partition: the given one, or that of its key by Kafka's
        murmur2; records without a key fill one partition's batch at a time. Key and value are text (sent as
        UTF-8), bytes, or None; headers are pairs of a name and a value, or a mapping. Raises TypeError,
        ValueError for parts that a record cannot have, InvalidRequestError for a timestamp or a partition
        that is none, and then changes nothing.
    send_rows(topic, rows, first_row) -> (next_row, list[SentRows])
        Adds rows of a `RecordRows` as long as the buffer has room. Raises InvalidRequestError for columns
        that do not fit each other, behind the rows that it has added.
    take_batches() -> (opened, complete)
        The batches that were opened and those that are complete, in this order, since the last call.
    close_batch(batch), close_all()
        Complete an open batch, or all.
    hold_topic(topic, partition_count, first_partition, *, topic_id="", max_batch_bytes=None)
        Makes a topic known, and holds it until `open_topic`: only `send_encoded` and `send_rows` add records,
        so that those that wait are placed before all later ones. Records without keys begin at
        `first_partition`. The batches of partitions that no longer exist are complete, and all of them if the
        topic had another id. No batch is larger than `max_batch_bytes`; None: 2^31 - 1.
    open_topic(topic)
        Ends the time for which a topic is held.
    forget_topic(topic), partition_count(topic)
        Make a topic unknown; its number of partitions, 0 if it is unknown.
    reserve(size_bytes), release(size_bytes)
        Take room in the buffer, for a record that waits elsewhere, and make room: of such a record, or of a
        batch whose records are acknowledged or have failed.
    end()
        Refuses all records from now on. `max_buffered_bytes` is negative then.
    buffered_bytes
        Bytes of records that were sent and not released.

OpenBatch
    `topic`, `topic_id`, `partition`, `record_count`, `base_timestamp`, `max_timestamp`, `size_bytes`,
    `receipt`; take_section() -> memoryview takes the records section out of a batch that is complete, once.

Delivery(source, index, timestamp_ms)
    The handle of a record: number `index` of its batch, `source`. `receipt` is the source's, and knows the
    outcome: `await delivery` awaits `receipt.wait(delivery)`, `delivery.result(timeout_s)` is
    `receipt.result(delivery, timeout_s)`, and `delivery.is_done` is `receipt.is_settled(index)`. `follow`
    makes it a handle of the record of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE

__all__ = ("Delivery", "OpenBatch", "RecordAccumulator")

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_record_accumulator import Delivery, OpenBatch, RecordAccumulator
else:
    from stratalog.record.native._kernels import Delivery, OpenBatch, RecordAccumulator
