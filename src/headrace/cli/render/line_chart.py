"""Draws series of samples as lines of text. Pure.

In colour, every character holds 2 × 4 dots of braille. Without colour braille could not tell series
apart, so several series are drawn as letters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
from rich.text import Text

COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue", "bright_white", "bright_black")
SERIES_MAX = len(COLOURS)
"""A chart shows at most so many series."""

_BRAILLE = 0x2800
_DOT_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bit of each dot of a character, by row and column."""
_LABEL_ROWS = 4
"""A label of the y axis stands at every row of this number."""
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIXED_MAX = 1e15
_NAME_CHARS_MIN = 8
"""A legend shows at least so much of a name, rather than figures."""
_DAY_MS = 86_400_000

Floats = npt.NDArray[np.float64]
Dots = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One series: its name, and its values at ascending times."""

    name: str
    times_ms: npt.NDArray[np.int64]
    values: Floats


def draw_chart(
    lines: Sequence[ChartLine],
    *,
    start_ms: int,
    end_ms: int,
    step_ms: int,
    width: int,
    height: int,
    in_colour: bool,
) -> list[Text]:
    """Return the chart with its axes and a legend, no line wider than `width`.

    Points that are further apart than a step are not connected. Values that are not finite are not
    drawn.
    """
    shown = lines[:SERIES_MAX]
    low, high = _bounds(shown)
    labels = [_label(row, height, low, high) for row in range(height)]
    margin = max(map(len, labels))
    columns = max(8, width - margin - 2)
    scale = _Scale(start_ms, max(end_ms, start_ms + 1), low, high, columns * 2, height * 4)
    dots = [scale.dots(line, step_ms) for line in shown]
    cells = _coloured(dots) if in_colour or len(shown) < 2 else _lettered(dots)
    chart = [
        Text.assemble((f"{label:>{margin}} ", "dim"), ("┤" if label else "│", "dim"), row)
        for label, row in zip(labels, cells, strict=True)
    ]
    chart.append(Text(" " * (margin + 1) + "└" + "─" * columns, "dim"))
    chart.append(Text(" " * (margin + 2) + _time_axis(start_ms, end_ms, columns), "dim"))
    for number, line in enumerate(shown):
        mark = ("━━", COLOURS[number]) if in_colour else (_letter(number, len(shown)), "")
        chart.append(_legend(line, mark, width))
    if len(lines) > len(shown):
        rest = len(lines) - len(shown)
        chart.append(Text(f"{rest} more series are not drawn; narrow the query, or use --json"))
    return chart


def _label(row: int, height: int, low: float, high: float) -> str:
    """Return the label of the y axis at a row, or nothing."""
    if row % _LABEL_ROWS and row != height - 1:
        return ""
    share = row / (height - 1)
    return format_value(high * (1 - share) + low * share)


def format_value(value: float) -> str:
    """Return a number in few characters, such as 1.25k."""
    if not math.isfinite(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    for factor, suffix in _SUFFIXES:
        if factor <= abs(value) < _SUFFIXED_MAX:
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.4g}"


def _bounds(lines: Sequence[ChartLine]) -> tuple[float, float]:
    """Return the lowest and the highest value, never the same."""
    found = [line.values[np.isfinite(line.values)] for line in lines]
    values = np.concatenate([*found, np.empty(0)])
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if low == high:
        margin = abs(low) / 10 or 1.0
        return low - margin, high + margin
    return low, high


@dataclass(frozen=True, slots=True)
class _Scale:
    """From times and values to dots; row 0 is at the top."""

    start_ms: int
    end_ms: int
    low: float
    high: float
    width: int
    height: int

    def dots(self, line: ChartLine, step_ms: int) -> Dots:
        drawn = np.zeros((self.height, self.width), np.bool_)
        kept = np.isfinite(line.values)
        kept &= (line.times_ms >= self.start_ms) & (line.times_ms <= self.end_ms)
        times, values = line.times_ms[kept], line.values[kept]
        # Halves first: the difference of two finite values may not be finite.
        share_y = (values / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        share_x = (times - self.start_ms) / (self.end_ms - self.start_ms)
        x = share_x * (self.width - 1)
        y = (1 - share_y) * (self.height - 1)
        drawn[np.rint(y).astype(int), np.rint(x).astype(int)] = True
        for first in np.flatnonzero(np.diff(times) <= step_ms).tolist():
            reach = max(abs(x[first + 1] - x[first]), abs(y[first + 1] - y[first]))
            along = np.linspace(0, 1, int(reach) + 2)
            between_x = x[first] + along * (x[first + 1] - x[first])
            between_y = y[first] + along * (y[first + 1] - y[first])
            drawn[np.rint(between_y).astype(int), np.rint(between_x).astype(int)] = True
        return drawn


def _coloured(dots: Sequence[Dots]) -> list[Text]:
    """Return rows of braille. A character has the colour of the first series in it."""
    if not dots:
        return []
    codes = np.stack([_cells(each) for each in dots])
    together = np.bitwise_or.reduce(codes)
    firsts = np.argmax(codes > 0, axis=0)
    rows = []
    for row in range(together.shape[0]):
        text = Text()
        for code, first in zip(together[row].tolist(), firsts[row].tolist(), strict=True):
            text.append(chr(_BRAILLE + code) if code else " ", COLOURS[first] if code else "")
        text.rstrip()
        rows.append(text)
    return rows


def _lettered(dots: Sequence[Dots]) -> list[Text]:
    """Return rows of letters, one for each series; * where several are."""
    filled = np.stack([_cells(each) > 0 for each in dots])
    counts, firsts = filled.sum(axis=0), np.argmax(filled, axis=0)
    rows = []
    for row in range(counts.shape[0]):
        marks = [
            " " if not count else "*" if count > 1 else _letter(first, len(dots))
            for count, first in zip(counts[row].tolist(), firsts[row].tolist(), strict=True)
        ]
        rows.append(Text("".join(marks).rstrip()))
    return rows


def _cells(dots: Dots) -> npt.NDArray[np.int64]:
    """Return the braille code of every character."""
    height, width = dots.shape
    blocks = dots.reshape(height // 4, 4, width // 2, 2).astype(np.int64)
    codes: npt.NDArray[np.int64] = (blocks * _DOT_BITS[None, :, None, :]).sum(axis=(1, 3))
    return codes


def _letter(number: int, series: int) -> str:
    return chr(ord("a") + number) if series > 1 else "•"


def _time_axis(start_ms: int, end_ms: int, columns: int) -> str:
    """Return times below the axis, in UTC: the first, the last, and one between if it fits."""
    pattern = "%H:%M:%S" if end_ms - start_ms < 600_000 else "%H:%M"
    if start_ms // _DAY_MS != end_ms // _DAY_MS:
        pattern = "%m-%d %H:%M" if end_ms - start_ms < 60 * _DAY_MS else "%Y-%m-%d"
    times = (start_ms, (start_ms + end_ms) // 2, end_ms)
    left, middle, right = (
        datetime.fromtimestamp(each / 1000, UTC).strftime(pattern) for each in times
    )
    right += " UTC"
    gap = columns - len(left) - len(right)
    before = columns // 2 - len(middle) // 2 - len(left)
    after = gap - before - len(middle)
    if before > 0 and after > 0:
        return left + " " * before + middle + " " * after + right
    return (left + " " * gap + right) if gap > 0 else left[:columns]


def _legend(line: ChartLine, mark: tuple[str, str], width: int) -> Text:
    finite = line.values[np.isfinite(line.values)]
    figures = ""
    if len(finite):
        low, high, last = (format_value(float(x)) for x in (finite.min(), finite.max(), finite[-1]))
        figures = f"  last {last}  min {low}  max {high}"
    room = width - len(mark[0]) - 1 - len(figures)
    if room < _NAME_CHARS_MIN:
        room, figures = room + len(figures), ""
    name = line.name if len(line.name) <= room else line.name[: room - 1] + "…"
    return Text.assemble(mark, " ", name, (figures, "dim"))
