"""A watch reports every change once, nothing else, and wakes up for it."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import UsageError
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes
from headrace.journal.local.index import JournalIndex
from headrace.journal.local.log_frames import DOCS_ROW
from headrace.journal.local.watch import LocalWatch
from headrace.journal.names import selector

NOTHING = Changes([], [], {})
SOON_S = 20.0


class Watched:
    """A watch, and the owner's side of it."""

    def __init__(self, *names: str, collection: str = "c") -> None:
        self.lock = threading.Lock()
        self.watch = LocalWatch(self.lock, [selector(collection)])
        self.journals: dict[str, JournalIndex] = {}
        self.create(*names)

    def create(self, *names: str) -> None:
        made = [JournalIndex(JournalId(len(self.journals) + i), n) for i, n in enumerate(names, 1)]
        self.journals |= {journal.name: journal for journal in made}
        with self.lock:
            self.watch.created(made)

    def delete(self, *names: str) -> None:
        with self.lock:
            self.watch.deleted([self.journals.pop(name).id for name in names])

    def move(self, name: str, head: int) -> None:
        journal = self.journals[name]
        journal.add(journal.head, head, 0, 1, DOCS_ROW)
        with self.lock:
            self.watch.moved({journal.id: Offset(head)})


def test_the_first_answer_lists_everything_that_matches() -> None:
    watched = Watched("c/0000", "d/0000", "c/x=1/0000", "c/d/0000")
    changes = watched.watch.next(0)
    assert [journal.name for journal in changes.created] == ["c/0000", "c/x=1/0000"]
    assert (changes.deleted, changes.heads) == ([], {})
    assert watched.watch.next(0) == NOTHING


def test_changes_between_two_questions_are_told_together_and_once() -> None:
    watched = Watched("c/0000", "c/0001")
    watched.watch.next(0)
    for head in (10, 20, 30):
        watched.move("c/0000", head)
    watched.delete("c/0001")
    watched.create("c/0002")
    changes = watched.watch.next(0)
    assert [journal.name for journal in changes.created] == ["c/0002"]
    assert (changes.deleted, changes.heads) == ([2], {1: 30})
    assert watched.watch.next(0) == NOTHING


def test_what_came_and_went_in_between_is_not_told_of() -> None:
    watched = Watched("c/0000")
    watched.watch.next(0)
    watched.create("c/0001")
    watched.move("c/0001", 10)
    watched.delete("c/0001")
    assert watched.watch.next(0) == NOTHING


def test_the_head_of_a_deleted_journal_is_not_told_of() -> None:
    watched = Watched("c/0000")
    watched.watch.next(0)
    watched.move("c/0000", 10)
    watched.delete("c/0000")
    assert watched.watch.next(0) == Changes([], [JournalId(1)], {})


def test_a_watch_is_not_told_of_others_journals() -> None:
    watched = Watched("d/0000")
    watched.move("d/0000", 10)
    watched.delete("d/0000")
    assert watched.watch.next(0) == NOTHING


def in_thread(watch: LocalWatch) -> tuple[threading.Thread, list[Changes | UsageError]]:
    got: list[Changes | UsageError] = []

    def ask() -> None:
        try:
            got.append(watch.next(SOON_S))
        except UsageError as error:
            got.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, got


@pytest.mark.parametrize("what", ["create", "delete", "move"])
def test_a_waiter_is_woken_by_what_concerns_it(what: str) -> None:
    watched = Watched("c/0000", "d/0000")
    watched.watch.next(0)
    thread, got = in_thread(watched.watch)
    watched.move("d/0000", 5)
    match what:
        case "create":
            watched.create("c/0001")
        case "delete":
            watched.delete("c/0000")
        case "move":
            watched.move("c/0000", 10)
    thread.join(SOON_S)
    assert len(got) == 1
    assert got[0]


def test_closing_wakes_a_waiter_and_refuses_later_questions() -> None:
    watched = Watched()
    watched.watch.next(0)
    thread, got = in_thread(watched.watch)
    watched.watch.close()
    thread.join(SOON_S)
    assert isinstance(got[0], UsageError)
    assert watched.watch.closed
    with pytest.raises(UsageError, match="the watch is closed"):
        watched.watch.next(0)
