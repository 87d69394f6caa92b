"""How messages are split into steps: each fits, and none is lost, repeated or given another key."""

from __future__ import annotations

import pytest

from headrace.errors import UsageError
from headrace.queues.local_layout import Messages, PartitionId, check_step, steps_of

TO = PartitionId("t", 0)


def test_a_step_that_fits_exactly_is_taken_and_a_larger_one_is_refused() -> None:
    step = [Messages(TO, [b"12345"], [b"k"])]
    check_step(step, step[0].step_bytes)
    with pytest.raises(UsageError, match="one step would take"):
        check_step(step, step[0].step_bytes - 1)


@pytest.mark.parametrize("has_keys", [False, True])
def test_steps_hold_every_message_once_with_its_key(has_keys: bool) -> None:
    values = [b"%d" % number * 30 for number in range(50)]
    values[0] = values[20] = bytes(5000)
    keys = [b"key %d" % number for number in range(50)] if has_keys else None
    steps = list(steps_of(Messages(TO, values, keys), 2000))
    assert [value for step in steps for value in step.values] == values
    if keys:
        assert [key for step in steps for key in step.keys or ()] == keys
    assert all(step.values for step in steps)
    assert all(step.step_bytes <= 2000 or len(step.values) == 1 for step in steps)
