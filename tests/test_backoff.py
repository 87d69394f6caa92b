"""The delays between attempts, and the end of them."""

from __future__ import annotations

import pytest

from headrace.backoff import Backoff


@pytest.mark.parametrize(
    ("retries_max", "progressed", "delays_s"),
    [
        (0, "no", [None]),
        (3, "no no no no", [0.5, 1, 2, None]),
        (2, "no yes no yes no no", [0.5, 0.5, 1, 0.5, 1, None]),
        (0, "yes", [None]),
        (9, "no " * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
    ],
)
def test_the_delay_doubles_until_an_attempt_makes_progress(
    retries_max: int, progressed: str, delays_s: list[float | None]
) -> None:
    backoff = Backoff(retries_max, first_s=0.5, longest_s=30.0)
    found = []
    for each in progressed.split():
        if each == "yes":
            backoff.reset()
        found.append(backoff.next_delay_s())
    assert found == delays_s
    assert backoff.retries_total == sum(each is not None for each in delays_s)


def test_many_retries_do_not_overflow_the_delay() -> None:
    backoff = Backoff(5000, first_s=0.5, longest_s=30.0)
    delays_s = [backoff.next_delay_s() for _ in range(5000)]
    assert delays_s[-1] == 30.0
