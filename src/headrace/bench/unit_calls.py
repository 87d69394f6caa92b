"""Calls of units, written down in a file that survives whoever makes them."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

CALL_S = 0.05
_LINE_BYTES = 32


def make_call(directory: Path, stage: str, unit: int) -> None:
    """Write down a call of a unit, and take as long as one takes."""
    note_call(directory, stage, unit)
    time.sleep(CALL_S)


def note_call(directory: Path, stage: str, unit: int) -> None:
    """Write down that a call of a unit begins."""
    line = f"{time.monotonic():15.3f} {stage:<7.7}{unit:>8}\n".encode()
    assert len(line) == _LINE_BYTES
    # One write at the end of the file: those of other processes do not mix with it.
    file = os.open(_calls(directory), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def count_calls(directory: Path) -> int:
    """Return how many calls were begun."""
    return _calls(directory).stat().st_size // _LINE_BYTES if _calls(directory).exists() else 0


def first_call_s(directory: Path, after_s: float = 0.0) -> float:
    """Return when the first call after a time was begun, on the clock of `time.monotonic`."""
    begun = [float(line.split()[0]) for line in _calls(directory).read_text().splitlines()]
    return min(each for each in begun if each >= after_s)


def count_repeated(directory: Path) -> int:
    """Return how many of the calls had been made before."""
    counts = Counter(
        line.split(maxsplit=1)[1] for line in _calls(directory).read_text().splitlines()
    )
    return counts.total() - len(counts)


def _calls(directory: Path) -> Path:
    return directory / "calls"
