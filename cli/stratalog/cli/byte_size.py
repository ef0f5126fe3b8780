"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class ByteSize(int):
    """A number of bytes that prints as a size such as 15.1MiB. Only JSON has the exact number."""

    def __str__(self) -> str:
        if self < 1024:
            return f"{int(self)}B"
        # 1023.96 of a unit would be rounded to 1024.0 of it.
        exponent = next(power for power in range(1, 7) if self < 1023.95 * 1024**power or power == 6)
        return f"{self / 1024**exponent:.1f}{_UNITS[exponent - 1]}"

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)
