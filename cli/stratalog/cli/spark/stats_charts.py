"""The charts of the page of statistics, as SVG to put into it: no script, no font, nothing from a network."""

# pyright: reportUnknownMemberType=false
# (some of matplotlib's functions have stubs with open type arguments)
from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from stratalog.cli.byte_size import ByteSize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAYS, GOES, PLAIN, MARKED = "#2f6f9f", "#e08a3c", "#9aa5b1", "#b5443c"
_INK = "#3b4754"
_WIDTH_INCHES = 8.6
_BAR_INCHES = 0.32
_LABEL_CHARACTERS = 34
_SETTINGS = {
    # Text stays text, in the font of the page.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": _INK,
    # A key may have dollars.
    "text.parse_math": False,
}


class Part(NamedTuple):
    """A part of each bar of a chart."""

    name: str
    colour: str
    values: Sequence[float]


class Scale(NamedTuple):
    """The numbers of an axis."""

    base: int
    """Round numbers are simple multiples of its powers."""
    written: Callable[[float], str]


def bars(
    name: str,
    labels: Sequence[str],
    parts: Sequence[Part],
    scale: Scale,
    notes: Sequence[str] = (),
) -> str:
    """Horizontal bars whose parts stand side by side, as an SVG element. `name` is unique in its page;
    `notes` stand behind the bars."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with cast("Any", mpl).rc_context({**_SETTINGS, "svg.hashsalt": name}):
        has_legend = len(parts) > 1
        height = 0.75 + _BAR_INCHES * len(labels) + 0.3 * has_legend
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        places = range(len(labels))
        totals = [0.0] * len(labels)
        for part in parts:
            axes.barh(places, part.values, left=totals, color=part.colour, height=0.66, label=part.name)
            totals = [total + value for total, value in zip(totals, part.values, strict=True)]
        _finish(axes, labels, max(totals, default=0.0), scale)
        for place, total, note in zip(places, totals, notes, strict=False):
            axes.annotate(
                note, (total, place), xytext=(5, 0), textcoords="offset points", va="center", color=_INK
            )
        if has_legend:
            figure.legend(loc="outside upper left", ncols=len(parts), frameon=False)
        found = io.StringIO()
        figure.savefig(found, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = found.getvalue()
    return text[text.index("<svg") :].strip()


def _finish(axes: Axes, labels: Sequence[str], highest: float, scale: Scale) -> None:
    """The axes of a chart: the first bar on top, room for notes, a light grid."""
    axes.set_yticks(range(len(labels)), [shortened(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, highest * 1.18 or 1)
    ticks = _ticks(highest, scale.base)
    axes.set_xticks(ticks, [scale.written(tick) for tick in ticks])
    axes.tick_params(length=0, colors=_INK)
    axes.grid(axis="x", color="#dde3e8", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _ticks(highest: float, base: int) -> list[float]:
    """About four round numbers up to the highest, in powers of the base."""
    unit = 1.0
    while unit * base <= highest:
        unit *= base
    wanted = highest / unit / 4
    steps = (step * 10**power for power in range(-3, 4) for step in (1, 2, 5))
    step = max(1.0, unit * next((one for one in steps if one >= wanted), 1.0))
    return [number * step for number in range(int(highest / step) + 1)]


def shortened(label: str) -> str:
    """A label that leaves room for its bar: its beginning and its end."""
    if len(label) <= _LABEL_CHARACTERS:
        return label
    half = (_LABEL_CHARACTERS - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _size(value: float) -> str:
    return str(ByteSize(value))


COUNTS = Scale(10, _count)
BYTES = Scale(1024, _size)
