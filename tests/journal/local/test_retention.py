"""Retention: where a journal begins, and which segments are rewritten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.clock import Clock, from_unix_ns
from headrace.ids import JournalId, Offset
from headrace.journal.collection import define
from headrace.journal.local.index import Index, JournalIndex
from headrace.journal.local.log_frames import DOCS_ROW
from headrace.journal.local.records import JournalsCreated
from headrace.journal.local.retention import begin_after_retention, overdue, worth_rewriting
from headrace.log import Segment

SECOND_NS = 1_000_000_000


def fill(
    journal: JournalIndex, clocks: list[int], position: int = 0, frame_bytes: int = 10
) -> None:
    for clock in clocks:
        end = journal.head + frame_bytes
        journal.add(journal.head, end, position, clock, DOCS_ROW)


def index_with(*names: str) -> Index:
    index = Index()
    made = [(JournalId(i), name) for i, name in enumerate(names, 1)]
    index.apply(JournalsCreated(made), 0, 0)
    return index


@pytest.mark.parametrize(
    ("oldest_kept", "bytes_max", "begin"),
    [
        (0, None, 0),
        (10, None, 0),
        (11, None, 10),
        # The frame of clock 5 follows that of clock 20, and is removed only with it.
        (20, None, 10),
        (21, None, 30),
        (41, None, 50),
        (0, 50, 0),
        (0, 49, 0),
        (0, 40, 10),
        (0, 20, 30),
        (0, 9, 40),
        (21, 40, 30),
        (11, 20, 30),
    ],
)
def test_whole_frames_go_oldest_first(oldest_kept: int, bytes_max: int | None, begin: int) -> None:
    journal = JournalIndex(JournalId(1), "c/0000")
    fill(journal, [10, 20, 5, 30, 40])
    assert begin_after_retention(journal, bytes_max, Clock(oldest_kept)) == begin


def test_limits_apply_again_to_what_is_left() -> None:
    journal = JournalIndex(JournalId(1), "c/0000")
    fill(journal, [10, 20, 30])
    journal.trim(Offset(10))
    assert begin_after_retention(journal, None, Clock(15)) == 10
    assert begin_after_retention(journal, 10, Clock(0)) == 20


def test_only_journals_of_limited_collections_that_hold_too_much_are_overdue() -> None:
    index = index_with("c/0000", "c/0001", "c/d/0000")
    now_ns = 100 * SECOND_NS
    old, new = from_unix_ns(10 * SECOND_NS), from_unix_ns(95 * SECOND_NS)
    fill(index.journals[JournalId(1)], [old, new])
    fill(index.journals[JournalId(2)], [new])
    fill(index.journals[JournalId(3)], [old])
    limited = {"c": replace(define("c", "x long"), retention_s=60.0)}
    assert overdue(index, limited, now_ns) == [(1, 10)]
    assert overdue(index, limited, 50 * SECOND_NS) == []


@pytest.mark.parametrize(
    ("covered", "share", "chosen"),
    [(400, 0.5, [0, 200]), (300, 0.5, [0, 200]), (299, 0.5, [0]), (99, 0.5, []), (400, 0.2, [200])],
)
def test_segments_of_little_use_that_snapshots_cover_are_worth_rewriting(
    covered: int, share: float, chosen: list[int]
) -> None:
    index = index_with("c/0000")
    journal = index.journals[JournalId(1)]
    fill(journal, [1] * 3, position=50)
    fill(journal, [1] * 8, position=150)
    fill(journal, [1] * 1, position=250)
    segments = [Segment(base, base + 100) for base in (0, 100, 200, 300)]
    found = worth_rewriting(segments, index, covered, share)
    assert [s.base for s in found if s.base < 300] == chosen


def test_nothing_is_rewritten_of_an_empty_log() -> None:
    assert worth_rewriting([], Index(), 100, 0.5) == []
