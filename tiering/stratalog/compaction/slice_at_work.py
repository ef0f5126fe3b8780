"""The slice that a job reads, for errors that know only bytes: where the damage is, in words of the store."""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError, LogStoreError, StoreCorruptError
from stratalog.remote.objects.slice_entry import SliceEntry


class SliceAtWork:
    """The slice that is being read. Not thread-safe: guarded by the job."""

    def __init__(self) -> None:
        self._object_name = ""
        self._entry: SliceEntry | None = None

    def begin(self, object_name: str, entry: SliceEntry | None) -> None:
        """Bytes of this slice come next; None for those that are no slice's."""
        self._object_name = object_name
        self._entry = entry

    def end(self) -> None:
        """Forget the slice: the next work is on the output."""
        self._object_name, self._entry = "", None

    def named(self, error: LogStoreError) -> LogStoreError:
        """The error with the fields `topic`, `partition`, `object`, `slice_base_offset` and
        `slice_end_offset`, unless it names an object of its own. A damaged batch is damage of the store."""
        if not self._object_name or any(
            self._object_name not in str(error.fields.get(name, self._object_name))
            for name in ("key", "name")
        ):
            return error
        entry = self._entry
        fields = dict(error.fields)
        if entry is not None:
            fields |= {
                "topic": entry.topic,
                "partition": entry.partition,
                "slice_base_offset": entry.base_offset,
                "slice_end_offset": entry.end_offset,
            }
        fields["object"] = self._object_name
        if isinstance(error, CorruptRecordError):
            problem = error.message.partition(";")[0]
            return StoreCorruptError(
                f"a slice is damaged; keep the object and find out what changed it: {problem}", **fields
            )
        error.fields |= fields
        return error
