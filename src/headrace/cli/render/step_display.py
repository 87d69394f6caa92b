"""Shows what a command is doing, step by step, while somebody waits for its result."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.spinner import Spinner

from headrace.cli.render.output import console, print_note

_DRAWS_PER_S = 1


class StepDisplay:
    """Draws one line with the step and the time on a terminal; prints a note a step elsewhere."""

    def __init__(self, what: str, *, is_silent: bool = False) -> None:
        self._what = what
        self._is_silent = is_silent
        self._begin = time.monotonic()
        self._step = ""
        self._spinner = Spinner("dots")
        screen = console(stderr=True)
        is_live = screen.is_terminal and not is_silent
        # The process that measures also draws, so it draws rarely.
        self._live = (
            Live(
                console=screen,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=_DRAWS_PER_S,
            )
            if is_live
            else None
        )

    def step(self, text: str) -> None:
        self._step = text
        if self._live is None and not self._is_silent:
            print_note(f"{self._what}: {text}")

    def _render(self) -> Spinner:
        seconds = time.monotonic() - self._begin
        self._spinner.update(text=f"{self._what}: {self._step} ({seconds:.0f} s)")
        return self._spinner

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
