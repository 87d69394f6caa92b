from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import (
    CLOCK_MAX,
    COUNTER_BITS,
    TICKS_PER_SECOND,
    ZERO,
    Clock,
    ClockSource,
    from_datetime,
    from_unix_ns,
    to_datetime,
    to_unix_ns,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NS_MAX = (1 << 60) * 100 - 1  # The last moment whose ticks fit 60 bits.

wall_ns = st.integers(0, NS_MAX // 2)
clocks = st.integers(0, CLOCK_MAX).map(Clock)
moments = st.datetimes(
    min_value=datetime(1970, 1, 2),
    max_value=datetime(5000, 1, 1),
    timezones=st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours))),
)


@given(st.lists(st.tuples(wall_ns, st.integers(1, 1000)), min_size=1), clocks)
def test_clocks_ascend_whatever_the_wall_clock_does(
    turns: list[tuple[int, int]], floor: Clock
) -> None:
    wall = iter([now for now, _ in turns])
    source = ClockSource(lambda: next(wall), floor)
    last = floor
    for now, count in turns:
        first = source.take(count)
        assert first > last
        assert first >= from_unix_ns(now)
        last = Clock(first + count - 1)


@given(wall_ns, clocks)
def test_a_floor_is_below_every_clock(now: int, floor: Clock) -> None:
    assert ClockSource(lambda: now, floor).take() > floor


def test_clocks_follow_a_wall_clock_that_moves_on() -> None:
    wall = iter([1_000_000, 2_000_000])
    source = ClockSource(lambda: next(wall))
    assert [source.take(), source.take()] == [from_unix_ns(1_000_000), from_unix_ns(2_000_000)]


def test_a_wall_clock_that_stands_still_gives_consecutive_clocks() -> None:
    source = ClockSource(lambda: 1_000_000)
    first = source.take(3)
    assert [source.take(), source.take()] == [first + 3, first + 4]


def test_a_source_follows_the_wall_clock_of_the_machine() -> None:
    before = time.time_ns()
    taken = ClockSource().take()
    assert from_unix_ns(before) <= taken <= from_unix_ns(time.time_ns())


def test_a_tick_is_a_hundred_nanoseconds_and_has_sixteen_clocks() -> None:
    assert from_unix_ns(100) - from_unix_ns(0) == 1 << COUNTER_BITS == 16
    assert from_unix_ns(1_000_000_000) == TICKS_PER_SECOND << COUNTER_BITS


@given(st.integers(0, NS_MAX))
def test_nanoseconds_come_back_rounded_down_to_the_tick(ns: int) -> None:
    assert to_unix_ns(from_unix_ns(ns)) == ns - ns % 100


@given(clocks, clocks)
def test_the_order_of_clocks_is_the_order_of_their_moments(one: Clock, other: Clock) -> None:
    earlier, later = sorted([one, other])
    assert to_unix_ns(earlier) <= to_unix_ns(later)


@given(moments)
def test_a_moment_comes_back_in_utc_from_any_time_zone(moment: datetime) -> None:
    back = to_datetime(from_datetime(moment))
    assert back == moment
    assert back.utcoffset() == timedelta(0)


def test_known_moments() -> None:
    assert to_datetime(ZERO) == datetime(1970, 1, 1, tzinfo=UTC)
    assert to_unix_ns(from_datetime(NOON)) == 1_772_366_400 * 1_000_000_000
    assert from_unix_ns(NS_MAX) >> COUNTER_BITS == CLOCK_MAX >> COUNTER_BITS


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-03-01T12:00:00 has no time zone; add one"):
        from_datetime(NOON.replace(tzinfo=None))
