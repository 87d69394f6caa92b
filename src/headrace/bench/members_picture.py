"""Draws the figures of `headrace bench members` as a picture in SVG. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headrace.settings import MIB

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 60, 60
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Millions of documents a second between two lines of the grid."""
_GRID_LINES_MAX = 8
_MARGIN = 1.08

_COUNT = re.compile(r"docs_per_s_(\d+)")

Point = tuple[int, float]
"""A number of members, and millions of documents a second."""


@dataclass(frozen=True)
class _Line:
    label: str
    colour: str
    points: list[Point]
    is_dashed: bool = False


_CURVES = (
    ("", "frames of 1 000", "#1f77b4"),
    ("_unsynced", "frames of 1 000, without sync", "#2ca02c"),
    ("_large_frames", "frames of 16 000", "#d62728"),
)


def draw_members(figures: Mapping[str, float]) -> str:
    """Return the picture: documents a second against members, beside the disk's own rate."""
    counts = [int(found[1]) for name in figures if (found := _COUNT.fullmatch(name))]
    lines = [
        _Line(
            label,
            colour,
            [(count, figures[f"docs_per_s_{count}{suffix}"] / 1e6) for count in counts],
        )
        for suffix, label, colour in _CURVES
    ]
    disk = figures["disk_mib_per_s"] * MIB / figures["document_bytes"] / 1e6
    ends = (counts[0], counts[-1])
    lines.append(_Line("the disk's sequential rate", "#555", [(n, disk) for n in ends], True))
    return "\n".join(_picture(lines, counts)) + "\n"


def _picture(lines: Sequence[_Line], counts: Sequence[int]) -> Iterator[str]:
    top = max(rate for line in lines for _, rate in line.points) * _MARGIN
    span = math.log2(counts[-1] / counts[0]) or 1.0

    def x(members: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(members / counts[0]) / span

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * rate / top

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="13" fill="#222">'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    step = next((each for each in _STEPS if top / each <= _GRID_LINES_MAX), _STEPS[-1])
    for number in range(int(top / step) + 1):
        height = y(number * step)
        yield _stroke([(_LEFT, height), (_WIDTH - _RIGHT, height)], "#ddd", 1)
        yield _text(_LEFT - 8, height + 4, f"{number * step:g}", "end")
    for members in counts:
        yield _text(x(members), _HEIGHT - _BOTTOM + 20, str(members), "middle")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, "members", "middle")
    yield _text(8, 18, "million documents a second")
    for number, line in enumerate(lines):
        places = [(x(members), y(rate)) for members, rate in line.points]
        yield _stroke(places, line.colour, 2, is_dashed=line.is_dashed)
        if not line.is_dashed:
            for across, height in places:
                yield f'<circle cx="{across:.1f}" cy="{height:.1f}" r="3.5" fill="{line.colour}"/>'
        column, row = divmod(number, 2)
        across, height = 260 + 240 * column, 18 + 20 * row
        yield _stroke(
            [(across - 32, height - 4), (across - 8, height - 4)],
            line.colour,
            2,
            is_dashed=line.is_dashed,
        )
        yield _text(across, height, line.label)
    yield "</svg>"


def _stroke(
    points: Sequence[tuple[float, float]], colour: str, width: int, *, is_dashed: bool = False
) -> str:
    path = " ".join(f"{across:.1f},{height:.1f}" for across, height in points)
    dashes = ' stroke-dasharray="6 4"' if is_dashed else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def _text(across: float, height: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{across:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
