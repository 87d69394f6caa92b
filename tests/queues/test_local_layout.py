"""How messages are split into steps: each fits, and none is lost, repeated or given another key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.clock import Clock
from headrace.errors import UsageError
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags
from headrace.queues.contract import RECORD_SCHEMA
from headrace.queues.local_layout import (
    Messages,
    PartitionId,
    check_step,
    first_offset,
    steps_of,
    to_records,
)

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


def test_what_a_frame_repeats_of_an_earlier_one_is_left_out() -> None:
    fields = list(RECORD_SCHEMA)[1:]
    values = {field.name: pa.nulls(3, field.type) for field in fields}
    documents = pa.RecordBatch.from_pydict(values | {"value": pa.array([b"a", b"b", b"c"])})
    begin = Offset(700)
    frame = Frame(
        JournalId(1),
        begin,
        Offset(900),
        Producer(5),
        Clock(9),
        3,
        0,
        Flags.OUTSIDE,
        b"",
        200,
        skip=1,
    )
    records = to_records(frame, documents)
    assert records["value"].to_pylist() == [b"b", b"c"]
    assert records["offset"].to_pylist() == [first_offset(begin) + 1, first_offset(begin) + 2]
