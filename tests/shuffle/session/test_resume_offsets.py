"""A restart begins at the oldest pending transaction, in random histories."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.frontier import (
    JOURNAL_ROW,
    TAG_MAX,
    BindingTag,
    Frontier,
    JournalProgress,
    JournalTag,
    ProducerProgress,
)
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Changes, Frame, JournalInfo
from headrace.journal.sequencer import Flags
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.state import SessionState
from headrace.testing.shuffle.memory_journal import Journal
from headrace.testing.shuffle.memory_run import MemoryRun
from headrace.testing.shuffle.simulator import Simulator
from tests.kinds import seeds
from tests.shuffle.builders import source

SEEDS_PER_TEST = 50


class WatchedRun(MemoryRun):
    """Remembers where the first span of each report begins, by place and producer."""

    begins: dict[tuple[int, int], list[tuple[int, int]]]

    def reported(self, member: int, delta: ProgressReport) -> None:
        super().reported(member, delta)
        for place, producer, commit, _, since, _ in delta.producers.tolist():
            if since >= 0:
                self.begins.setdefault((place, producer), []).append((commit, since))


class WatchedSimulator(Simulator):
    """Checks for every stored checkpoint how far back a restart from it would read."""

    checked = 0
    pending = 0

    def open(self, *, is_cut: bool = False, calm: bool = False) -> MemoryRun:
        run = super().open(is_cut=is_cut, calm=calm)
        run.__class__ = WatchedRun
        run.begins = {}  # type: ignore[attr-defined]
        return run

    def commit(self) -> None:
        super().commit()
        state = self.run.session
        frontier = self.last_commit.frontier
        resumes = dict(
            zip(
                frontier.journals["place"].tolist(), frontier.resume_offsets().tolist(), strict=True
            )
        )
        for place, through in frontier.journals.tolist():
            # A restarted Session knows what is settled once it has read as far as the one before.
            if state.assignment.reader(place) is None or state.frontier.places[place].is_behind:
                continue
            if self.has_window(BindingTag(place & TAG_MAX)):
                continue
            oldest = self.oldest_unsettled(place, through)
            assert resumes[place] >= oldest, (
                f"place {place}: {resumes[place]}, pending from {oldest} on"
            )
            self.checked += 1
            self.pending += oldest < through

    def oldest_unsettled(self, place: int, through: int) -> int:
        """Return where the first span begins that has a document neither shown nor rolled back.

        If the report of that span begins earlier, return where the report begins.
        """
        assignment = self.run.session.assignment
        journal = self.world.journals[assignment.journal_id(place)]
        binding = BindingTag(place & TAG_MAX)
        oldest = through
        for producer in {frame.producer for frame in journal.frames}:
            for begin, clock in self.unsettled_spans(journal, binding, producer, through):
                begins = self.run.begins.get((place, producer), [])  # type: ignore[attr-defined]
                since = next((since for commit, since in begins if commit >= clock), begin)
                oldest = min(oldest, begin, since)
                break
        return oldest

    def unsettled_spans(
        self, journal: Journal, binding: BindingTag, producer: int, through: int
    ) -> list[tuple[int, int]]:
        """Return the begin and the clock of every unsettled span below `through`."""
        found: list[tuple[int, int]] = []
        span: list[Frame] = []
        last = 0
        for frame in journal.frames:
            if frame.producer != producer or frame.offset >= through:
                continue
            if frame.flags is not Flags.ACK:
                if frame.clock + frame.documents - 1 <= last:
                    continue  # The frame is a duplicate.
                last = frame.clock + frame.documents - 1
                span.append(frame)
            if frame.flags is Flags.CONTINUE:
                continue
            numbers = [n for each in span for n in each.body["doc"].to_pylist()]
            if span and not all(self.is_settled(binding, number) for number in numbers):
                found.append((span[0].offset, frame.clock))
            span = []
        if span:
            found.append((span[0].offset, 1 << 62))
        return found

    def is_settled(self, binding: BindingTag, number: int) -> bool:
        return number not in self.world.documents or (binding, number) in self.oracle.seen

    def has_window(self, binding: BindingTag) -> bool:
        """Return True if the binding has a clock window.

        A document outside of it is never shown, whether or not its transaction is pending.
        """
        source = self.run.sources.by_tag[binding]
        return (source.not_before, source.not_after) != (ZERO, CLOCK_MAX)


# proves G7
@pytest.mark.long
@pytest.mark.parametrize("group", seeds(1, deep=10))
def test_a_restart_reads_no_more_again_than_what_is_pending(group: int) -> None:
    checked = pending = 0
    for seed in range(group * SEEDS_PER_TEST, (group + 1) * SEEDS_PER_TEST):
        simulator = WatchedSimulator(seed)
        try:
            simulator.simulate(70)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        checked += simulator.checked
        pending += simulator.pending
    assert checked > 5 * SEEDS_PER_TEST
    assert pending > SEEDS_PER_TEST


# proves G5
def test_a_span_that_is_read_again_and_then_withheld_is_read_by_the_next_restart() -> None:
    """Because of producer 2 a Slice reads from 0 on; producer 1 has an open span at 30."""
    open_spans = {
        Producer(1): ProducerProgress(Clock(12), 30),
        Producer(2): ProducerProgress(ZERO, 0),
    }
    last_commit = Checkpoint(
        Frontier.build([JournalProgress(JournalTag(0), BindingTag(0), Offset(40), open_spans)]),
        {JournalTag(0): JournalRef(JournalId(1), "a/0000")},
        {BindingTag(0): "a.0"},
        tags_used=1,
    )
    state = SessionState(Sources([source(0, "a")]), split_evenly(1), last_commit, None, 1 << 60)
    head = JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(60), 1)
    state.journals_changed(Changes([head], [], {}))
    checkpoint = last_commit
    for through, rows, commits, parts in (
        (20, [(0, 1, 12, -20, -1), (0, 2, 15, -20, 0)], [], []),
        # Its transaction waits for an ACK in another journal.
        (
            60,
            [(0, 1, 45, -50, 30), (0, 2, 46, -60, 50)],
            [(0, 1, 45, 0, 1, 45, 31, 30)],
            [(0, 1, 45, 2, 0, 1, 45, 7)],
        ),
    ):
        report = ProgressReport(
            np.array([(0, through)], JOURNAL_ROW),
            np.array([(*row, row[2] * (row[4] >= 0)) for row in rows], PROGRESS_ROW),
            np.array(commits, COMMIT_ROW),
            np.array(parts, PART_ROW),
            1,
        )
        state.progress(0, report)
        delta = state.next_checkpoint(may_be_empty=True)
        assert delta is not None
        checkpoint = checkpoint.merge(delta)
    (progress,) = checkpoint.frontier
    assert progress.producers[Producer(1)] == ProducerProgress(Clock(30), 30)
    assert progress.resume_offset == 30
