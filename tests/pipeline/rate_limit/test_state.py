"""Rate limits over simulated time."""

from __future__ import annotations

import random

import pytest

from headrace.errors import UsageError
from headrace.pipeline.rate_limit.state import RateLimitSpec, RateLimitState, Ticket
from tests.kinds import seeds


def limit(**rates: float) -> RateLimitState:
    return RateLimitState(RateLimitSpec(name="server", **rates), 0.0)


def pass_times(
    state: RateLimitState, count: int, tokens: int = 0, now_s: float = 0.0
) -> list[float]:
    """Ask for `count` requests at once; return when each passes."""
    for number in range(count):
        state.ask(Ticket(number), 1, tokens)
    times: list[float] = []
    while len(times) < count:
        granted = state.grant(now_s)
        assert granted == [Ticket(len(times) + index) for index in range(len(granted))]
        times += [now_s] * len(granted)
        now_s += state.next_grant_s() or 0.0
    return times


@pytest.mark.parametrize(
    ("rates", "tokens", "times"),
    [
        ({}, 5, [0, 0, 0, 0]),
        ({"requests_per_minute": 60}, 0, [0, 1, 2, 3]),
        ({"requests_per_minute": 120}, 0, [0, 0, 0.5, 1]),
        ({"requests_per_minute": 30}, 0, [0, 2, 4, 6]),
        ({"requests_per_minute": 60, "burst_s": 3}, 0, [0, 0, 0, 1]),
        ({"tokens_per_minute": 600}, 5, [0, 0, 0.5, 1]),
        ({"tokens_per_minute": 600}, 20, [0, 2, 4, 6]),
        ({"requests_per_minute": 60, "tokens_per_minute": 600}, 20, [0, 2, 4, 6]),
        ({"requests_per_minute": 60, "tokens_per_minute": 6000}, 20, [0, 1, 2, 3]),
    ],
)
def test_requests_pass_at_the_rate(
    rates: dict[str, float], tokens: int, times: list[float]
) -> None:
    assert pass_times(limit(**rates), 4, tokens) == pytest.approx(times)


def test_a_pause_holds_back_everybody() -> None:
    state = limit()
    state.penalize(5, 1.0)
    state.penalize(1, 2.0)
    assert pass_times(state, 2, now_s=2.0) == [6.0, 6.0]


def test_a_request_is_not_overtaken_and_can_be_withdrawn() -> None:
    state = limit(tokens_per_minute=60, burst_s=10)
    state.ask(Ticket(1), 1, 10)
    assert state.grant(0) == [1]
    state.ask(Ticket(2), 1, 8)
    state.ask(Ticket(3), 1, 1)
    assert state.grant(2) == []
    assert state.next_grant_s() == pytest.approx(6)
    state.withdraw(Ticket(2))
    assert state.grant(2) == [3]
    assert state.next_grant_s() is None


def test_a_clock_that_goes_backwards_lets_nothing_more_pass() -> None:
    state = limit(requests_per_minute=60)
    assert pass_times(state, 1, now_s=100.0) == [100.0]
    state.ask(Ticket(1), 1, 0)
    assert state.grant(0.0) == []
    assert state.grant(100.5) == []
    assert state.grant(101.0) == [1]


def test_other_rates_hold_from_now_on() -> None:
    state = limit(requests_per_minute=6)
    state.ask(Ticket(0), 1, 0)
    state.ask(Ticket(1), 1, 0)
    assert state.grant(0) == [0]
    state.change(RateLimitSpec(name="server", requests_per_minute=60), 0.0)
    assert state.grant(1) == [1]


def test_other_rates_do_not_end_a_pause() -> None:
    state = limit(requests_per_minute=60)
    state.penalize(5, 0.0)
    state.change(RateLimitSpec(name="server", requests_per_minute=120), 0.0)
    assert pass_times(state, 1) == [5.0]


def test_other_rates_do_not_forgive_a_debt() -> None:
    state = limit(tokens_per_minute=60)
    state.ask(Ticket(0), 1, 11)
    assert state.grant(0) == [0]
    state.change(RateLimitSpec(name="server", tokens_per_minute=120), 0.0)
    assert pass_times(state, 1, tokens=2) == [5.0]


@pytest.mark.long
@pytest.mark.parametrize("block", seeds(2, deep=100))
def test_no_window_sees_more_than_the_rates_allow(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        check_windows(random.Random(seed))


def check_windows(chance: random.Random) -> None:
    per_s = chance.choice([0.5, 2, 10]), chance.choice([5, 50])
    state = limit(requests_per_minute=per_s[0] * 60, tokens_per_minute=per_s[1] * 60)
    now_s, closed_until_s, asked = 0.0, 0.0, 0
    tokens_of: dict[Ticket, int] = {}
    passed: list[tuple[float, Ticket]] = []
    for _ in range(200):
        now_s += chance.expovariate(4)
        if chance.random() < 0.8:
            ticket = Ticket(asked := asked + 1)
            tokens_of[ticket] = chance.randrange(8)
            state.ask(ticket, 1, tokens_of[ticket])
        if chance.random() < 0.03:
            pause_s = chance.uniform(0, 3)
            state.penalize(pause_s, now_s)
            closed_until_s = max(closed_until_s, now_s + pause_s)
        granted = state.grant(now_s)
        assert not granted or now_s >= closed_until_s
        passed += [(now_s, ticket) for ticket in granted]
        state.validate()
    for first in range(0, len(passed), 7):
        for last in range(first, len(passed), 11):
            window_s = passed[last][0] - passed[first][0]
            tickets = [ticket for _, ticket in passed[first : last + 1]]
            # A burst, what came in since, and one request that left a bucket in debt.
            assert len(tickets) <= per_s[0] * (window_s + 1) + 2
            assert sum(map(tokens_of.__getitem__, tickets)) <= per_s[1] * (window_s + 1) + 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "a rate limit has no name"),
        ({"name": "a", "requests_per_minute": 0}, "requests_per_minute of rate limit 'a' must be"),
        ({"name": "a", "tokens_per_minute": -1}, "tokens_per_minute of rate limit 'a' must be"),
        ({"name": "a", "burst_s": float("nan")}, "burst_s of rate limit 'a' must be more than 0"),
    ],
)
def test_a_wrong_declaration_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RateLimitSpec(**fields)  # type: ignore[arg-type]


def test_wrong_requests_are_refused() -> None:
    state = limit()
    with pytest.raises(UsageError, match="was asked for 1 requests and -1 tokens"):
        state.ask(Ticket(1), 1, -1)
    with pytest.raises(UsageError, match="cannot pause for nan s"):
        state.penalize(float("nan"), 0)
