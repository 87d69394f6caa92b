"""The topics of a memory backend, without any of the rest: tables of what each call does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import (
    AheadOfHeadError,
    BehindRetentionError,
    ExistsError,
    FencedError,
    HeadraceError,
    NotFoundError,
    UsageError,
)
from headrace.queues.contract import OffsetCommit, Output
from headrace.queues.state import TopicsState

NOW = 1_700_000_000_000


def with_messages(count: int = 5, truncated: int = 0) -> TopicsState:
    """Return a state with a topic of two partitions; partition 0 has messages."""
    state = TopicsState()
    state.create_topic("t", 2)
    state.produce("t", [b"%d" % n for n in range(count)], None, 0, NOW)
    state.truncate_before("t", truncated, 0)
    state.validate()
    return state


@pytest.mark.parametrize(
    ("truncated", "offset", "most", "expected"),
    [
        (0, 0, 10, [0, 1, 2, 3, 4]),
        (0, 0, 2, [0, 1]),
        (0, 3, 1, [3]),
        (0, 4, 10, [4]),
        (0, 5, 10, []),
        (3, 3, 10, [3, 4]),
        (5, 5, 10, []),
        (1, 2, 2, [2, 3]),
    ],
)
def test_a_fetch_returns_the_first_messages_from_an_offset(
    truncated: int, offset: int, most: int, expected: list[int]
) -> None:
    found = with_messages(truncated=truncated).fetch("t", offset, most, 0).records()
    assert [(each.offset, each.value) for each in found] == [(n, b"%d" % n) for n in expected]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda s: s.fetch("t", 2, 1, 0), BehindRetentionError),
        (lambda s: s.fetch("t", 6, 1, 0), AheadOfHeadError),
        (lambda s: s.fetch("t", 4, 0, 0), UsageError),
        (lambda s: s.fetch("t", 0, 1, 2), NotFoundError),
        (lambda s: s.fetch("u", 0, 1, 0), NotFoundError),
        (lambda s: s.create_topic("t", 3), ExistsError),
        (lambda s: s.create_topic("", 1), UsageError),
        (lambda s: s.create_topic("a:b", 1), UsageError),
        (lambda s: s.create_topic("u", 0), UsageError),
        (lambda s: s.produce("t", [b""], [], 0, NOW), UsageError),
        (lambda s: s.commit("g", "t", 6, 0), UsageError),
        (lambda s: s.commit("g", "t", -1, 0), UsageError),
        (lambda s: s.delete_topic("u"), NotFoundError),
    ],
)
def test_what_is_refused_changes_nothing(
    call: Callable[[TopicsState], object], kind: type[HeadraceError]
) -> None:
    state = with_messages(truncated=3)
    with pytest.raises(kind) as refused:
        call(state)
    assert type(refused.value) is kind
    assert refused.value.do
    state.validate()
    assert state.topics == {"t": 2}
    assert state.bounds("t", 0) == (3, 5)
    assert state.committed("g", "t", 0) is None


@pytest.mark.parametrize(
    ("committed", "expected", "is_refused"),
    [
        (None, None, False),
        (None, 0, True),
        (0, 0, False),
        (0, None, True),
        (2, 2, False),
        (2, 1, True),
        (2, 3, True),
    ],
)
def test_a_step_is_refused_unless_the_offset_is_the_expected_one(
    committed: int | None, expected: int | None, is_refused: bool
) -> None:
    state = with_messages()
    state.create_topic("out", 1)
    if committed is not None:
        state.commit("g", "t", committed, 0)
    outputs = [Output("out", b"a"), Output("out", b"b", b"k")]
    step = OffsetCommit("g", "t", 4, expected)
    if is_refused:
        with pytest.raises(FencedError):
            state.produce_and_commit(outputs, step, NOW)
        assert state.bounds("out", 0) == (0, 0)
        assert state.committed("g", "t", 0) == committed
    else:
        assert state.produce_and_commit(outputs, step, NOW) == [0, 1]
        assert state.committed("g", "t", 0) == 4
    state.validate()


@pytest.mark.parametrize(
    "outputs", [[Output("out", b"a"), Output("u", b"b")], [Output("out", b"a", None, 1)]]
)
def test_a_step_with_one_wrong_output_produces_none(outputs: list[Output]) -> None:
    state = with_messages()
    state.create_topic("out", 1)
    with pytest.raises(NotFoundError):
        state.produce_and_commit(outputs, OffsetCommit("g", "t", 4, None), NOW)
    assert state.bounds("out", 0) == (0, 0)
    assert state.committed("g", "t", 0) is None


def test_the_least_committed_offset_is_that_of_the_slowest_group() -> None:
    state = with_messages()
    assert state.least_committed("t", 0) is None
    for group, offset in (("a", 4), ("b", 2), ("c", 5)):
        state.commit(group, "t", offset, 0)
    assert state.least_committed("t", 0) == 2
    assert state.least_committed("t", 1) is None
    state.delete_topic("t")
    state.create_topic("t", 2)
    assert state.least_committed("t", 0) is None


def test_truncating_a_long_topic_bit_by_bit_keeps_the_rest_in_place() -> None:
    state = with_messages(1000)
    for offset in range(0, 1000, 7):
        state.truncate_before("t", offset, 0)
        state.validate()
        found = state.fetch("t", offset, 3, 0).records()
        assert [each.offset for each in found] == list(range(offset, min(offset + 3, 1000)))
    assert state.produce("t", [b""], None, 0, NOW) == range(1000, 1001)


def test_truncating_beyond_the_end_removes_what_there_is_and_skips_no_offset() -> None:
    state = with_messages(5)
    state.truncate_before("t", 9, 0)
    state.validate()
    assert state.bounds("t", 0) == (5, 5)
    assert state.produce("t", [b""], None, 0, NOW) == range(5, 6)


@pytest.mark.parametrize(("bytes_max", "fitting"), [(0, 1), (9, 1), (10, 2), (14, 2), (100, 3)])
def test_an_answer_holds_as_many_messages_as_fit_and_at_least_one(
    bytes_max: int, fitting: int
) -> None:
    state = TopicsState()
    state.create_topic("t", 1)
    state.produce("t", [b"12345"] * 3, [None, b"", None], 0, NOW)
    assert len(state.fetch("t", 0, 9, 0).first(bytes_max).records()) == fitting
