"""Journals as they stood at one moment, for a Session that reads those and nothing later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from headrace.errors import UsageError
from headrace.frontier import BindingTag
from headrace.ids import FIRST, JournalId
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle.binding import Sources
from headrace.shuffle.progress_delta import ProgressReport


def check_cut(cut: Sequence[JournalInfo], now: Iterable[JournalInfo], sources: Sources) -> None:
    """Raise UsageError if the cut lacks a journal of a binding that it should have.

    `now` are the present journals of the bindings' collections. Ids ascend, so a journal with a
    greater id than all of the cut may be newer than the cut. But the cut must have a journal of
    every binding: otherwise it may be a cut of other collections.
    """
    known = {journal.id for journal in cut}
    newest = max(known, default=0)
    read = {source.tag for journal in cut for source in sources.of_journal(journal.name)}
    for journal in now:
        if journal.id in known or journal.head == FIRST:
            continue
        for source in sources.of_journal(journal.name):
            if journal.id < newest or source.tag not in read:
                raise UsageError(
                    f"the cut lacks {journal.name}, which binding {source.name!r} reads",
                    do="take the cut of all bindings at once, with `journals()`",
                )


def check_cut_has(
    delta: ProgressReport, place_of: Callable[[JournalId, int], int | None], sources: Sources
) -> None:
    """Raise UsageError if a transaction of the cut has an ACK in a journal that is not in it."""
    for journal, binding in set(delta.parts[["journal", "binding"]].tolist()):
        if place_of(journal, binding) is None:
            name = sources.by_tag[BindingTag(binding)].name
            raise UsageError(
                f"the cut lacks journal {journal}, which binding {name!r} reads and in which"
                " transactions of the cut have an ACK",
                do="take the cut of all bindings at once, with `journals()`",
            )


class CutWatch:
    """A watch that shows the journals of a cut, each up to its head, and never sees a change."""

    def __init__(self, cut: Sequence[JournalInfo]) -> None:
        self._cut = list(cut)
        self._shown = False
        self._closed = threading.Event()

    def next(self, timeout_s: float) -> Changes:
        if not self._shown:
            self._shown = True
            return Changes(self._cut, [], {})
        self._closed.wait(timeout_s)
        return Changes([], [], {})

    def close(self) -> None:
        self._closed.set()
