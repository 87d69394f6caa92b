"""What a Session keeps of one producer in one place."""

from __future__ import annotations

from random import Random

import pytest

from headrace.shuffle.session.producer_row import SPANS_MAX, ProducerRow


def test_the_oldest_span_above_what_is_shown_counts() -> None:
    row = ProducerRow()
    for commit in (10, 20, 30):
        row.report(commit, -commit, commit * 5, commit)
    row.report(30, 170, -1, 0)
    assert row.raw == (30, 170)
    assert [row.withheld_since(shown) for shown in (0, 9, 10, 15, 20, 29, 30)] == [
        *(50, 50, 100, 100, 150, 150),
        0,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_however_many_spans_are_withheld_a_bounded_number_is_kept_and_none_is_skipped(
    seed: int,
) -> None:
    rng = Random(seed)
    row = ProducerRow()
    begins: dict[int, int] = {}
    shown = 0
    for commit in range(1, rng.choice([50, 5_000])):
        begins[commit] = commit * 7
        row.report(commit, -commit * 7 - 5, commit * 7, commit)
        assert len(row._spans) <= SPANS_MAX
        if rng.random() < 0.05:
            shown = rng.randint(shown, commit)
            since = row.withheld_since(shown)
            assert since <= begins.get(shown + 1, since), "a restart would skip a span"
            pending = commit - shown
            assert since >= begins.get(shown + 1, 0) - 7 * max(0, pending * 64 // SPANS_MAX)


# proves G5
def test_spans_that_are_joined_are_all_read_again_until_the_last_of_them_is_shown() -> None:
    row = ProducerRow()
    commits = range(1, 4 * SPANS_MAX)
    for commit in commits:
        row.report(commit, -commit * 7 - 5, commit * 7, commit)
    assert len(row._spans) <= SPANS_MAX
    for shown in commits[:-1]:
        oldest = 7 * (shown + 1)
        assert 0 < row.withheld_since(shown) <= oldest
    assert row.withheld_since(commits[-1]) == 0


def test_a_report_shows_something_from_its_first_commit_on() -> None:
    row = ProducerRow()
    row.report(30, -30, 50, 10)
    assert [row.shows_any(commit) for commit in (9, 10, 19, 30)] == [False, True, True, True]
    assert row.withheld_since(19) == 50, "what was committed above 19 began there, or later"
    assert [row.shows_any(commit) for commit in (19, 20, 30)] == [False, True, True]
    assert row.withheld_since(30) == 0
    assert not row.shows_any(40)
