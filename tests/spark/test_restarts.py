"""When a task that failed is started again."""

from __future__ import annotations

import pytest

from headrace.spark.tasks.restarts import Restarts


@pytest.mark.parametrize(
    ("most", "progressed", "delays_s"),
    [
        (0, "no", [None]),
        (3, "no no no no", [0.5, 1, 2, None]),
        (2, "no yes no yes no no", [0.5, 0.5, 1, 0.5, 1, None]),
        (0, "yes", [None]),
        (9, "no " * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
    ],
)
def test_the_delay_doubles_until_something_gets_done(
    most: int, progressed: str, delays_s: list[float | None]
) -> None:
    restarts = Restarts(most)
    found = [restarts.delay_s(progressed=each == "yes") for each in progressed.split()]
    assert found == delays_s
    assert restarts.total == sum(each is not None for each in delays_s)
