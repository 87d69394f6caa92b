"""Scans read from the journals exactly what checkpoints have shown."""

from __future__ import annotations

import pytest

from headrace.errors import NotFoundError
from headrace.frontier import BindingTag
from headrace.shuffle.batch.journal_scan import scans_between, select_rows
from headrace.shuffle.checkpoint import Checkpoint
from headrace.testing.shuffle.simulator import Simulator
from tests.kinds import seeds

pytestmark = pytest.mark.long

STEPS = 70
SEEDS_PER_TEST = 40

Shown = set[tuple[BindingTag, int]]


class RecordingSimulator(Simulator):
    """Keeps every checkpoint and what it showed."""

    def __init__(self, seed: int) -> None:
        self.kept = [Checkpoint()]
        self.deltas: list[Checkpoint] = []
        self.shown: list[Shown] = []
        super().__init__(seed, bindings_change=False)

    def commit(self) -> None:
        assert self.prepared
        self.deltas.append(self.prepared)
        self.shown.append(set(self.prepared_documents))
        super().commit()
        self.kept.append(self.last_commit)

    def scan(self, first: int, last: int) -> list[tuple[BindingTag, int]]:
        """Read what the checkpoints after `first`, up to `last`, have shown."""
        present = self.world.there()
        journals = {id: journal.info() for id, journal in present.items()}
        deltas = self.deltas[first:last]
        return [
            (scan.binding, number)
            for scan in scans_between(self.run.sources, self.kept[first], deltas, journals)
            for frame, skip, end in select_rows(
                self.run.sources.by_tag[scan.binding],
                scan,
                present[scan.journal.id].fetch(scan.offset, scan.journal.head, 1 << 40),
            )
            for number in frame.body.column(0).to_pylist()[skip:end]
        ]

    def check_pair(self, first: int, last: int) -> bool:
        """Compare the two and return True, or return False if a journal was deleted meanwhile."""
        expected = set().union(*self.shown[first:last])
        present = self.world.there()
        try:
            found = self.scan(first, last)
        except NotFoundError:
            moved = (progress for delta in self.deltas[first:last] for progress in delta.frontier)
            names = {tag: ref.id for kept in self.kept for tag, ref in kept.journals.items()}
            assert any(names[each.journal] not in present for each in moved)
            return False
        assert len(found) == len(set(found)), "nothing twice"
        assert set(found) == expected, f"from {first} to {last}"
        return True


# proves G7
@pytest.mark.parametrize("group", seeds(1, deep=10))
def test_every_pair_of_checkpoints_gives_what_those_between_them_showed(group: int) -> None:
    """This holds whatever was open, withheld, rolled back, pruned or deleted meanwhile."""
    compared = refused = 0
    for seed in range(group * SEEDS_PER_TEST, (group + 1) * SEEDS_PER_TEST):
        history = RecordingSimulator(seed)
        history.simulate(STEPS)
        for first in range(len(history.kept)):
            for last in range(first + 1, len(history.kept)):
                try:
                    was_compared = history.check_pair(first, last)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise
                compared += was_compared
                refused += not was_compared
    assert compared > 10 * SEEDS_PER_TEST
    assert refused, "some journals were deleted"
