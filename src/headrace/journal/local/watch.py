"""A watch: reports journals that come and go, and heads that move."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from headrace.errors import UsageError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes
from headrace.journal.local.index import JournalIndex
from headrace.journal.names import JournalName, Selector, parse_journal_name


class LocalWatch:
    """Collects changes of matching journals for the next call. Idle it costs nothing.

    It does not report a journal that came and went between two calls. The owner calls `created`,
    `deleted` and `moved` with `lock` held.
    """

    def __init__(self, lock: threading.Lock, selectors: Sequence[Selector] = ()) -> None:
        """Watch the journals that any selector matches; without selectors, all journals."""
        self._selectors: dict[str, list[Selector]] = {}
        for selector in selectors or [Selector()]:
            self._selectors.setdefault(selector.collection, []).append(selector)
        self._matching: set[JournalId] = set()
        self._changes = Changes([], [], {})
        self._listed = False
        self._changed = threading.Condition(lock)
        self._closed = False

    def next(self, timeout_s: float) -> Changes:
        with self._changed:
            # The first call does not wait for a journal: it reports that there is none.
            self._changed.wait_for(
                lambda: self._changes or self._closed or not self._listed, timeout_s
            )
            self._listed = True
            if self._closed:
                raise UsageError("the watch is closed", do="open another")
            seen, self._changes = self._changes, Changes([], [], {})
            return seen

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def created(self, journals: Iterable[JournalIndex]) -> None:
        for journal in journals:
            if self._matches(parse_journal_name(journal.name)):
                self._matching.add(journal.id)
                self._changes.created.append(journal.info())
        self._changed.notify_all()

    def _matches(self, name: JournalName) -> bool:
        """Ask only the selectors of the journal's collection, and those without a collection."""
        of_collection, of_all = self._selectors.get(name.collection), self._selectors.get("")
        return any(each.matches(name) for each in [*(of_collection or ()), *(of_all or ())])

    def deleted(self, ids: Iterable[JournalId]) -> None:
        gone = self._matching.intersection(ids)
        self._matching -= gone
        created, deleted, heads = self._changes
        unseen = gone.intersection(journal.id for journal in created)
        created[:] = [journal for journal in created if journal.id not in gone]
        deleted.extend(gone - unseen)
        for id in gone:
            heads.pop(id, None)
        self._changed.notify_all()

    def moved(self, heads: dict[JournalId, Offset]) -> None:
        self._changes.heads.update((id, head) for id, head in heads.items() if id in self._matching)
        if self._changes.heads:
            self._changed.notify_all()
