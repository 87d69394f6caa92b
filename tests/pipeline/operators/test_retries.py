from __future__ import annotations

import pytest

from headrace.errors import RetryableError, UsageError
from headrace.pipeline.operators.retries import Retries


def test_delays_double_up_to_the_longest_and_end() -> None:
    attempts = Retries(attempts_max=5, first_s=1, longest_s=3).begin()
    error = RetryableError("busy")
    assert [attempts.next_delay_s(error) for _ in range(5)] == [1, 2, 3, 3, None]
    assert attempts.number == 5


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    attempts = Retries(first_s=1, longest_s=8).begin()
    assert attempts.next_delay_s(RetryableError("busy", retry_after_s=30)) == 30
    assert attempts.next_delay_s(RetryableError("busy", retry_after_s=0.1)) == 2


def test_a_server_that_asks_for_too_long_a_pause_is_given_up() -> None:
    attempts = Retries(retry_after_max_s=60).begin()
    assert attempts.next_delay_s(RetryableError("busy", retry_after_s=61)) is None
    assert attempts.number == 1


def test_other_errors_are_retried_only_if_asked() -> None:
    assert Retries().begin().next_delay_s(ValueError()) is None
    assert Retries(any_error=True).begin().next_delay_s(ValueError()) == 0.5


@pytest.mark.parametrize("wrong", [{"attempts_max": 0}, {"first_s": -1}, {"first_s": 99}])
def test_impossible_retries_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Retries(**wrong)  # type: ignore[arg-type]
