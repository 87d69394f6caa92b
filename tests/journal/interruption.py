"""Interrupts a thread at a chosen line, as Ctrl-C would."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any, Self


class Interruption:
    """Raises KeyboardInterrupt at the n-th line that this thread runs of the files named.

    Not at `with`, which is run again when its block ends, nor at `try`: Python itself looks for no
    signal there, and an exception would leave locks taken.
    """

    def __init__(self, files: tuple[str, ...], at: int = 0) -> None:
        """`files` are ends of their paths; without `at` the lines are only counted."""
        self._files = files
        self._at = at
        self.lines = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "try:")):
            self.lines += 1
            if self.lines == self._at:
                raise KeyboardInterrupt
        return self._trace
