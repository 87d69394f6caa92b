"""Shows what a command is doing, step by step, while somebody waits for its result."""

from __future__ import annotations

import time

from rich.spinner import Spinner

from headrace.cli.render.live_display import LiveDisplay
from headrace.cli.render.output import print_note

_DRAWS_PER_S = 1
"""The process that measures also draws, so it draws rarely."""


class StepDisplay(LiveDisplay):
    """Draws one line with the step and the time on a terminal; prints a note a step elsewhere."""

    def __init__(self, what: str, *, is_silent: bool = False) -> None:
        self._what = what
        self._is_silent = is_silent
        self._begin = time.monotonic()
        self._step = ""
        super().__init__(is_drawn=not is_silent, draws_per_s=_DRAWS_PER_S)

    def step(self, text: str) -> None:
        self._step = text
        if self._live is None and not self._is_silent:
            print_note(f"{self._what}: {text}")

    def _render(self) -> Spinner:
        seconds = time.monotonic() - self._begin
        self.status(f"{self._what}: {self._step} ({seconds:.0f} s)")
        return self._spinner
