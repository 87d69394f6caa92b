"""How often the Spark job of a stage is started again."""

from __future__ import annotations

from headrace.spark.pipelines.spark_runner import _SOON_S, FAILURES_MAX, _Attempts


def test_a_stage_that_fails_again_and_again_soon_after_its_start_is_given_up() -> None:
    attempts = _Attempts()
    assert all(attempts.may_start_again(0.0) for _ in range(FAILURES_MAX - 1))
    assert not attempts.may_start_again(0.0)


def test_a_stage_that_ran_for_a_while_may_fail_as_often_again() -> None:
    attempts = _Attempts()
    for _ in range(3):
        assert attempts.may_start_again(_SOON_S)
        assert all(attempts.may_start_again(0.0) for _ in range(FAILURES_MAX - 2))
