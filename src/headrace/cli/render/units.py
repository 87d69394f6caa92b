"""Reads and prints times, sizes and counts as people write them."""

from __future__ import annotations

import math
import re

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("iB", 1024), ("B", 1000))
    for power, prefix in enumerate("KMGT", 1)
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(text: str) -> float:
    """Return the seconds that a text such as `7d` means."""
    return _parse(text, _SECONDS, "a time", "7d; the units are s, m, h, d, w")


def parse_size(text: str) -> int:
    """Return the bytes that a text such as `10GiB` means."""
    return int(_parse(text, _BYTES, "a size", "10GiB; the units are B, KiB, MiB, GiB, KB, MB, GB"))


def _parse(text: str, units: dict[str, int], what: str, example: str) -> float:
    spelled = {name.lower(): value for name, value in units.items()}
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2].lower() not in spelled:
        raise typer.BadParameter(f"{text!r} is not {what}: write it like {example}")
    amount = float(match[1]) * spelled[match[2].lower()]
    if math.isinf(amount):
        raise typer.BadParameter(f"{text!r} is too large: write it like {example}")
    return amount


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def format_duration(seconds: float) -> str:
    for name in "dhm":
        value = _SECONDS[name]
        if seconds >= value and seconds % value == 0:
            return f"{seconds / value:g}{name}"
    return f"{seconds:g}s"


def format_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_rough_time(seconds: float) -> str:
    """Return a time that people need only roughly, such as `3 h 20 min`."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min" if minutes >= 10 else f"{minutes} min {rest_s} s"
    return f"{rest_s} s"


def format_cost(cost: float) -> str:
    """Return money with as many digits as it needs, at most six behind the point."""
    return f"{cost:,.6f}".rstrip("0").rstrip(".")
