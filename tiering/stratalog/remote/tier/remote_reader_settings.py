"""What reading from the object store may cost."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReaderSettings:
    """Immutable."""

    read_ahead_bytes: int = 4 << 20
    """Size of a data request. Larger means fewer requests for a long read and more waste for a short one."""
    data_cache_bytes: int = 256 << 20
    """Data of objects in memory. At least a few `read_ahead_bytes` for each reader that lags behind."""
    index_cache_bytes: int = 32 << 20
    """Indexes of slices in memory; about 100 KB for a slice of 256 MiB."""

    def __post_init__(self) -> None:
        assert self.read_ahead_bytes > 0
        assert self.data_cache_bytes >= 0
        assert self.index_cache_bytes >= 0
