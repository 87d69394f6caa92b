"""Follows the heads of topics, so that a fetch can wait for a message without asking."""

from __future__ import annotations

import threading

from headrace.errors import HeadraceError
from headrace.ids import JournalId
from headrace.journal.contract import Changes, Watch
from headrace.journal.names import Selector
from headrace.journal.workspace import Workspace
from headrace.queues.change_ticket import Waiters
from headrace.queues.local_layout import PartitionId, collection_name, journal_name
from headrace.queues.local_topics import LocalTopics

_WATCH_S = 60.0


class Growth:
    """Watches each topic that somebody waits for, from the first wait on. Any thread may use it."""

    def __init__(self, workspace: Workspace, topics: LocalTopics) -> None:
        self._workspace = workspace
        self._topics = topics
        self._lock = threading.Lock()
        self._watches: dict[str, _TopicWatch] = {}

    def waiters(self, place: PartitionId) -> Waiters:
        """Return those who wait for a message of a partition."""
        with self._lock:
            watch = self._watches.get(place.topic)
            if watch is None or watch.has_ended:
                watch = _TopicWatch(self._workspace, self._topics, place.topic)
                self._watches[place.topic] = watch
            return watch.waiters(place)

    def close(self) -> None:
        with self._lock:
            watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.close()


class _TopicWatch:
    """Wakes up the waiters of each partition of one topic."""

    def __init__(self, workspace: Workspace, topics: LocalTopics, topic: str) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self._waiters: dict[str, Waiters] = {}
        """By the name of the journal, which may not exist yet."""
        self._names: dict[JournalId, str] = {}
        self.has_ended = False
        self._watch: Watch = workspace.watch(Selector(collection_name(topic)))
        self._thread = threading.Thread(
            target=self._follow, name=f"headrace-topic-{topic}", daemon=True
        )
        self._thread.start()

    def waiters(self, place: PartitionId) -> Waiters:
        with self._lock:
            return self._waiters.setdefault(journal_name(place), Waiters())

    def _follow(self) -> None:
        try:
            while True:
                self._take(self._watch.next(_WATCH_S))
        except HeadraceError:
            # It was closed, or no owner can be reached: then the next fetch says so.
            self.has_ended = True
            with self._lock:
                everybody = list(self._waiters.values())
            for waiters in everybody:
                waiters.wake()

    def _take(self, changes: Changes) -> None:
        self._topics.heads_moved(changes.heads)
        self._names |= {info.id: info.name for info in changes.created}
        moved = {info.name for info in changes.created}
        moved |= {self._names[id] for id in changes.heads if id in self._names}
        moved |= {self._names.pop(id) for id in changes.deleted if id in self._names}
        with self._lock:
            woken = [self._waiters[name] for name in moved if name in self._waiters]
        for waiters in woken:
            waiters.wake()

    def close(self) -> None:
        self._watch.close()
        self._thread.join()
