"""Judges the documents that checkpoints show.

The oracle knows what publishers meant and what bindings ask for. It uses no code of the states that
it judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.frontier import TAG_BITS, TAG_MAX, BindingTag, JournalTag
from headrace.shuffle.binding import Binding
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.routing import Router
from headrace.testing.shuffle.bindings import is_in_window, reads
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.memory_journal import Document, batch_of
from headrace.testing.shuffle.world import World

Key = tuple[BindingTag, int]
"""A binding, and the number of a document."""


class Oracle:
    def __init__(self, world: World, counts: Counter[Kind]) -> None:
        self._world = world
        self._counts = counts
        self._bindings: dict[BindingTag, Binding] = {}
        self._router: Router | None = None
        self.seen: dict[Key, int] = {}
        """The documents of stored checkpoints, each with the number of its checkpoint."""
        self.checkpoints = 0

    def session_opened(self, bindings: Mapping[BindingTag, Binding], router: Router) -> None:
        """Judge by these bindings and routes from now on."""
        self._bindings = dict(bindings)
        self._router = router

    # -- one checkpoint --------------------------------------------------------------------

    def shown(self, by_member: Sequence[Sequence[Key]]) -> set[Key]:
        """Return what a checkpoint shows, and check that: safety, once, order, route."""
        committed = self._world.documents
        found: set[Key] = set()
        for member, keys in enumerate(by_member):
            last: dict[tuple[BindingTag, int, int], int] = {}
            for key in keys:
                binding, number = key
                assert key not in found, f"document {number} is shown twice"
                found.add(key)
                assert number in committed, f"document {number} is not committed"
                document = committed[number]
                self._check_selected(binding, document)
                stream = binding, document.journal, document.producer
                assert last.get(stream, 0) < document.clock, f"order of {document}"
                last[stream] = document.clock
            self._check_route(member, keys)
        return found

    def check_unseen(self, shown: set[Key]) -> None:
        """Check that nothing is shown again, and that each cohort shows transactions whole."""
        again = shown & self.seen.keys()
        assert not again, f"{again} are shown twice"
        touched = {(self._cohort(tag), self._transaction(number)): number for tag, number in shown}
        for cohort, transaction in touched:
            whole = set(self._keys(cohort, self._world.committed[transaction]))
            parts = whole - shown - self.seen.keys()
            assert not parts, f"transaction {transaction} is shown in parts: {parts} are left out"

    def check_ordered(self, ordered: Sequence[Sequence[Key]], shown: set[Key]) -> None:
        """Check an ordered read: the same documents, by priority, then clock plus read delay."""
        assert sum(map(len, ordered)) == len(shown)
        assert {key for keys in ordered for key in keys} == shown
        for keys in ordered:
            ranks = [self._rank(*key) for key in keys]
            assert ranks == sorted(ranks), f"{keys} are not in order"

    def check_commits(
        self, delta: Checkpoint, refs: Mapping[JournalTag, JournalRef], shown: set[Key]
    ) -> None:
        """Check that checkpoints show all that they say is committed, even if deleted since."""
        for place, producer, commit, _ in delta.frontier.producers.tolist():
            journal = refs[JournalTag(place >> TAG_BITS)].id
            tag = BindingTag(place & TAG_MAX)
            for document in self._world.streams.get((journal, producer), ()):
                if document.clock > commit or not is_in_window(self._bindings[tag], document):
                    continue
                key = tag, document.number
                assert key in shown or key in self.seen, f"{document} is not shown"

    def commit(self, shown: set[Key]) -> None:
        for key in shown:
            assert key not in self.seen, f"{key} is shown twice"
            self.seen[key] = self.checkpoints
        self.checkpoints += 1
        self._counts[Kind.CHECKPOINT] += 1
        self._counts[Kind.DOCUMENT] += len(shown)

    def _check_selected(self, tag: BindingTag, document: Document) -> None:
        binding = self._bindings[tag]
        journal = self._world.journals[document.journal]
        assert reads(binding, journal), f"{binding.name} does not read {journal.name}"
        assert is_in_window(binding, document), f"{document} is outside the window"

    def _check_route(self, member: int, keys: Sequence[Key]) -> None:
        """Check that every document is on the member that owns it."""
        assert self._router
        for tag, binding in self._bindings.items():
            mine = [self._world.documents[number] for each, number in keys if each == tag]
            clocks = np.array([document.clock for document in mine], np.uint64)
            key = ("key",) if binding.key is None else binding.key
            owners = self._router.route(batch_of(mine), key, clocks)
            assert (owners == member).all(), f"{mine} are not all of member {member}"

    def _transaction(self, number: int) -> int:
        return self._world.transactions[number]

    def _cohort(self, tag: BindingTag) -> tuple[int, float]:
        binding = self._bindings[tag]
        return binding.priority, binding.read_delay_s

    def _rank(self, tag: BindingTag, number: int) -> tuple[int, float]:
        binding, document = self._bindings[tag], self._world.documents[number]
        return -binding.priority, document.clock + binding.read_delay_s

    def _keys(
        self, cohort: tuple[int, float] | None, documents: Iterable[Document]
    ) -> Iterable[Key]:
        """Yield the documents of existing journals, under each binding of the cohort that reads
        them; None: of any cohort."""
        for document in documents:
            journal = self._world.journals[document.journal]
            if journal.id not in self._world.deleted:
                for tag, binding in self._bindings.items():
                    is_wanted = cohort is None or self._cohort(tag) == cohort
                    if is_wanted and reads(binding, journal) and is_in_window(binding, document):
                        yield tag, document.number

    # -- all of them -----------------------------------------------------------------------

    def all_committed(self) -> set[Key]:
        """Return all committed documents of existing journals that the bindings ask for."""
        return set(self._keys(None, self._world.documents.values()))

    def check_cut(self, cut: set[Key]) -> None:
        """Check that exactly the cut is shown, of what the bindings ask for."""
        assert self.all_committed() & self.seen.keys() == cut, "exactly the cut is shown"

    def check_complete(self) -> None:
        lost = self.all_committed() - self.seen.keys()
        assert not lost, f"documents are lost: {sorted(lost)}"
        self._count_left_out()

    def _count_left_out(self) -> None:
        for document in self._world.documents.values():
            journal = self._world.journals[document.journal]
            for binding in self._bindings.values():
                if binding.collection == journal.collection:
                    is_read = reads(binding, journal)
                    self._counts[Kind.SELECTOR] += not is_read
                    self._counts[Kind.CLOCK_WINDOW] += not is_in_window(binding, document)
