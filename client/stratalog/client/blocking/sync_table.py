"""A table for threads without an event loop.

The loop keeps the table up to date. A thread looks a key up directly, which is one step of a dictionary; what
has several keys is a copy, which the loop makes between two changes.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from types import TracebackType
from typing import Any, Self

from stratalog.client.blocking.table_calls import TableCalls


class SyncTable(TableCalls):
    """The latest values by key, and the changes as they come. Thread-safe; use `with`, which returns when the
    table has caught up.

    Keys are bytes, unless the table has a decoder for them; a text then stands for its UTF-8. Once the topic
    cannot be read any further, every look at the table raises the reason.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """The latest value of the key, or the default."""
        return self._table.get(key, default)

    def keys(self) -> KeysView[Any]:
        """The keys that have a value now."""
        return self._copy().keys()

    def values(self) -> ValuesView[Any]:
        """The latest values, as they are now."""
        return self._copy().values()

    def items(self) -> ItemsView[Any, Any]:
        """The keys with their latest values, as they are now."""
        return self._copy().items()

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._copy())

    def _copy(self) -> dict[Any, Any]:
        return self._thread.call(lambda: dict(self._table.items()))

    def __enter__(self) -> Self:
        self._thread.run(self._table.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.aclose()
