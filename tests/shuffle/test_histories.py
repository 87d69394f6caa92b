"""Random histories over real services, compared with what their publishers meant."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.shuffle.checkpoint import Checkpoint
from tests.shuffle.real_task import Shown, Task

pytestmark = pytest.mark.long

COLLECTIONS = ("a", "b")
MEMBERS = 3
PUBLISHERS = 3
QUIET_S = 0.05

Key = tuple[str, int]
"""A collection and a document of it."""


@dataclass
class History:
    """A workspace, its publishers and a task that reads it, with all that must hold."""

    task: Task
    numbers: int = 0
    open: dict[int, tuple[hr.Transaction, list[Key]]] = field(default_factory=dict)
    committed: list[set[Key]] = field(default_factory=list)
    """The documents of each transaction; one outside of any is a transaction of its own."""
    seen: dict[Key, int] = field(default_factory=dict)
    """The number of the checkpoint that showed each document."""
    checkpoints: int = 0
    prepared: Shown | None = None
    replaying: Shown | None = None
    members: int = 2

    def rows(self, collection: str, count: int) -> tuple[list[dict[str, int]], list[Key]]:
        first, self.numbers = self.numbers, self.numbers + count
        numbers = range(first, self.numbers)
        return [{"n": n} for n in numbers], [(collection, n) for n in numbers]

    # -- what happens ----------------------------------------------------------------------

    def write(self, publisher: int, collection: str, count: int) -> None:
        if publisher not in self.open:
            begun = self.task.workspace.publisher(f"p{publisher}").begin()
            self.open[publisher] = begun, []
        transaction, keys = self.open[publisher]
        rows, more = self.rows(collection, count)
        transaction.append(collection, rows)
        transaction._buffer.send(transaction._buffer.seal()).result()
        keys += more

    def end(self, publisher: int, commits: bool) -> None:
        if publisher in self.open:
            transaction, keys = self.open.pop(publisher)
            if commits:
                transaction.commit()
                self.committed.append(set(keys))
            else:
                transaction.rollback()

    def append(self, collection: str, count: int) -> None:
        rows, keys = self.rows(collection, count)
        self.task.workspace.append(collection, rows)
        self.committed += [{key} for key in keys]

    def poll(self, timeout_s: float = QUIET_S) -> bool:
        """Take one checkpoint; the next poll stores it, so that a crash may come first."""
        self.commit()
        shown = self.task.look(timeout_s)
        if shown is None:
            return False
        keys = [(d.binding, d.fields["n"]) for d in shown.documents]
        assert len(set(keys)) == len(keys), "a document is there twice"
        assert set(keys) <= set().union(*self.committed), "a document is not committed"
        assert not set(keys) & self.seen.keys(), "a document was shown before"
        if self.replaying:
            wanted, self.replaying = self.replaying, None
            assert shown.checkpoint.delta.encode() == wanted.checkpoint.delta.encode()
            assert sorted(keys) == sorted((d.binding, d.fields["n"]) for d in wanted.documents)
        self.prepared = shown
        return True

    def commit(self) -> None:
        if self.prepared:
            self.task.commit(self.prepared)
            self.checkpoints += 1
            for document in self.prepared.documents:
                self.seen[document.binding, document.fields["n"]] = self.checkpoints
            self.prepared = None
            for transaction in self.committed:
                shown_in = {self.seen.get(key) for key in transaction}
                assert len(shown_in) == 1, "a transaction is shown in parts"

    def crash(self, members: int) -> None:
        """Open the next Session; it begins with the checkpoint that was taken and not stored."""
        self.replaying = self.prepared or self.replaying
        self.prepared = None
        through: Checkpoint | None = self.replaying and self.replaying.checkpoint.delta
        addresses = self.task.addresses[:members]
        self.task.open(*COLLECTIONS, read_through=through, members=addresses)

    def finish(self) -> None:
        for publisher in list(self.open):
            self.end(publisher, commits=publisher % 2 == 0)
        wanted = set().union(*self.committed)
        while self.seen.keys() != wanted:
            assert self.poll(20.0), f"{wanted - self.seen.keys()} are lost"
            self.commit()


count = st.integers(1, 30)
collection = st.sampled_from(COLLECTIONS)
publisher = st.integers(0, PUBLISHERS - 1)
Action = Callable[[History], object]
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda p, c, n: lambda h: h.write(p, c, n), publisher, collection, count),
    st.builds(lambda p, c, n: lambda h: h.write(p, c, n), publisher, collection, count),
    st.builds(
        lambda p, yes: lambda h: h.end(p, yes), publisher, st.sampled_from([True, True, False])
    ),
    st.builds(lambda c, n: lambda h: h.append(c, n), collection, count),
    st.just(lambda h: h.poll()),
    st.just(lambda h: h.poll()),
    st.builds(lambda m: lambda h: h.crash(m), st.integers(1, MEMBERS)),
)


# proves G5, G6, G7, G9, G10, G11
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.lists(actions, min_size=15, max_size=40))
def test_every_committed_document_is_shown_once_and_transactions_as_a_whole(
    history: list[Action],
) -> None:
    with tempfile.TemporaryDirectory() as root, Task(Path(root), MEMBERS) as task:
        for name in COLLECTIONS:
            task.workspace.collection(name, "n long", key="n", journals=3)
        running = History(task)
        running.crash(2)
        for action in history:
            action(running)
        running.finish()
