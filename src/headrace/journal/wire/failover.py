"""Reads and watches that continue with the next owner of the workspace when theirs is gone.

What an owner shows is durable, and journals keep their ids and offsets. So the next owner shows the
same frames at the same offsets, and possibly more. A reader that repeats its unanswered requests
reads on as if nothing had happened. This holds for reading only: the open transactions of a
publisher end with their owner.

A workspace that is known only by an address has no next owner: the owner of another workspace may
answer there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

from headrace.errors import HeadraceError, PeerLostError, UsageError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, Frame, Journals, Watch
from headrace.journal.local.records import CollectionPut
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX, WorkspaceConnection
from headrace.journal.names import Selector


class _Fetch(NamedTuple):
    journal: JournalId
    offset: Offset
    through: Offset
    bytes_max: int
    answer: Future[list[Frame]]
    owners_lost: int = 0


class _Lost(NamedTuple):
    fetch: _Fetch
    journals: Journals
    """The journals that did not answer."""


class FailoverReads:
    """Asks the present owner of the workspace what a reader of many journals needs.

    Any thread may call. `fetch` does not wait for the next owner: its future does.
    """

    def __init__(self, connection: WorkspaceConnection) -> None:
        self._connection = connection
        self._lost: SimpleQueue[_Lost | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def collections(self) -> list[CollectionPut]:
        return self._connection.call(lambda journals: journals.collections())

    def journal_names(self, journals: Sequence[JournalId]) -> list[str]:
        return self._connection.call(lambda owned: owned.journal_names(journals))

    def at_most_bytes(self, offset: Offset, through: Offset) -> int:
        return self._connection.attached.at_most_bytes(offset, through)

    def fetch(
        self, journal: JournalId, offset: Offset, through: Offset, bytes_max: int
    ) -> Future[list[Frame]]:
        answer: Future[list[Frame]] = Future()
        self._send(_Fetch(journal, offset, through, bytes_max, answer), self._connection.attached)
        return answer

    def close(self) -> None:
        """Fail the fetches that wait for the next owner. The caller closes the connection."""
        with self._lock:
            self._closed = True
            self._lost.put(None)

    def _send(self, fetch: _Fetch, journals: Journals) -> None:
        try:
            answer = journals.fetch(fetch.journal, fetch.offset, fetch.through, fetch.bytes_max)
        except HeadraceError as error:
            self._failed(fetch, journals, error)
            return
        answer.add_done_callback(lambda done: self._settle(fetch, journals, done))

    def _settle(self, fetch: _Fetch, journals: Journals, done: Future[list[Frame]]) -> None:
        if (error := done.exception()) is None:
            fetch.answer.set_result(done.result())
        else:
            self._failed(fetch, journals, error)

    def _failed(self, fetch: _Fetch, journals: Journals, error: BaseException) -> None:
        is_lost = isinstance(error, PeerLostError) and fetch.owners_lost < OWNERS_LOST_MAX
        again = _Lost(fetch._replace(owners_lost=fetch.owners_lost + 1), journals)
        if not (is_lost and self._connection.finds_next_owner and self._ask_later(again)):
            fetch.answer.set_exception(error)

    def _ask_later(self, lost: _Lost) -> bool:
        """Pass a fetch to the thread that finds the next owner; return False if this is closed.

        The first call starts the thread.
        """
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow, name="headrace-failover", daemon=True
                )
                self._thread.start()
            self._lost.put(lost)
            return True

    def _follow(self) -> None:
        while (lost := self._lost.get()) is not None:
            try:
                journals = self._connection.reattach(lost.journals)
            except HeadraceError as error:
                lost.fetch.answer.set_exception(error)
            else:
                self._send(lost.fetch, journals)
        while not self._lost.empty():
            if left := self._lost.get():
                left.fetch.answer.set_exception(
                    UsageError("the reader is closed", do="open another reader")
                )


class FailoverWatch:
    """A watch that reports of the next owner's journals only what it has not reported before.

    One thread calls `next`; any thread may close it.
    """

    def __init__(self, connection: WorkspaceConnection, *selectors: Selector) -> None:
        self._connection = connection
        self._selectors = selectors
        self._heads: dict[JournalId, Offset] = {}
        """The head of every journal, as last reported."""
        self._lock = threading.Lock()
        self._closed = False
        self._watch = connection.call(lambda journals: journals.watch(*selectors))

    def next(self, timeout_s: float) -> Changes:
        try:
            changes = self._watch.next(timeout_s)
        except PeerLostError as error:
            changes = self._next_of_the_next_owner(error)
        self._heads.update((info.id, info.head) for info in changes.created)
        self._heads.update(changes.heads)
        for id in changes.deleted:
            self._heads.pop(id, None)
        return changes

    def _next_of_the_next_owner(self, error: PeerLostError) -> Changes:
        for _ in range(OWNERS_LOST_MAX):
            if not self._connection.finds_next_owner:
                break
            try:
                self._use(self._connection.call(lambda journals: journals.watch(*self._selectors)))
                return self._differing(self._watch.next(0))
            except PeerLostError as again:
                error = again
        raise error

    def _use(self, watch: Watch) -> None:
        with self._lock:
            self._watch, before = watch, self._watch
            is_closed = self._closed
        before.close()
        if is_closed:
            watch.close()
            raise UsageError("the watch is closed", do="open another")

    def _differing(self, first: Changes) -> Changes:
        """Return what the next owner's first answer adds to what was reported before."""
        listed = {info.id: info.head for info in first.created}
        reported = listed | self._heads
        # Heads may have moved since the owner listed the journals.
        heads = listed | first.heads
        return Changes(
            [info for info in first.created if info.id not in self._heads],
            [id for id in self._heads if id not in heads],
            {id: head for id, head in heads.items() if reported[id] != head},
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch = self._watch
        watch.close()
