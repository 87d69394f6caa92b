"""What a Session keeps of one producer in one place."""

from __future__ import annotations

from random import Random

import pytest

from headrace.frontier import place
from headrace.shuffle.session.pending_transactions import CommitCap
from headrace.shuffle.session.producer_row import (
    SPANS_MAX,
    CommitProgress,
    PlaceRow,
    ProducerRow,
    Span,
)


def new_row() -> ProducerRow:
    return PlaceRow(place(0, 0)).producer(1)


@pytest.mark.parametrize("signed", [0, 1, -1, 1 << 62, -(1 << 62)])
def test_a_span_survives_its_signed_form(signed: int) -> None:
    assert Span.decode(signed).encode() == signed


def test_spans_compare_as_they_follow_each_other() -> None:
    spans = [Span.decode(signed) for signed in (0, -10, 10, -20, 30)]
    assert sorted(spans) == spans


def test_the_oldest_span_above_what_is_shown_counts() -> None:
    row = new_row()
    for commit in (10, 20, 30):
        row.fold(commit, -commit, commit * 5, commit)
    row.fold(30, 170, -1, 0)
    assert row.raw == CommitProgress(30, Span(170, is_open=True))
    assert [row.withheld_since(shown) for shown in (0, 9, 10, 15, 20, 29, 30)] == [
        *(50, 50, 100, 100, 150, 150),
        0,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_however_many_spans_are_withheld_a_bounded_number_is_kept_and_none_is_skipped(
    seed: int,
) -> None:
    rng = Random(seed)
    row = new_row()
    begins: dict[int, int] = {}
    shown = 0
    for commit in range(1, rng.choice([50, 5_000])):
        begins[commit] = commit * 7
        row.fold(commit, -commit * 7 - 5, commit * 7, commit)
        assert len(row._spans) <= SPANS_MAX
        if rng.random() < 0.05:
            shown = rng.randint(shown, commit)
            since = row.withheld_since(shown)
            assert since <= begins.get(shown + 1, since), "a restart would skip a span"
            pending = commit - shown
            assert since >= begins.get(shown + 1, 0) - 7 * max(0, pending * 64 // SPANS_MAX)


# proves G5
def test_spans_that_are_joined_are_all_read_again_until_the_last_of_them_is_shown() -> None:
    row = new_row()
    commits = range(1, 4 * SPANS_MAX)
    for commit in commits:
        row.fold(commit, -commit * 7 - 5, commit * 7, commit)
    assert len(row._spans) <= SPANS_MAX
    for shown in commits[:-1]:
        oldest = 7 * (shown + 1)
        assert 0 < row.withheld_since(shown) <= oldest
    assert row.withheld_since(commits[-1]) == 0


def test_of_a_report_that_is_shown_in_part_a_restart_reads_only_what_is_pending() -> None:
    """The report has spans from offset 50 on. The pending transaction begins at 150."""
    row = new_row()
    row.place.start(300)
    row.fold(30, -300, 50, 10)
    assert row.publishable(CommitCap(19, 150)).progress == CommitProgress(
        19, Span(150, is_open=True)
    )


def test_a_report_shows_something_from_its_first_commit_on() -> None:
    row = new_row()
    row.fold(30, -30, 50, 10)
    assert [row.shows_any(commit) for commit in (9, 10, 19, 30)] == [False, True, True, True]
    assert row.withheld_since(19) == 50, "what was committed above 19 began there, or later"
    assert [row.shows_any(commit) for commit in (19, 20, 30)] == [False, True, True]
    assert row.withheld_since(30) == 0
    assert not row.shows_any(40)
