"""How a worker moves through an input: what it leaves out, passes on, and goes on after."""

from __future__ import annotations

import pytest

from headrace.pipeline.master.inputs import StageInput
from headrace.pipeline.messages import Origin, QueueMessage, encode_message
from headrace.pipeline.worker.input_cursor import InputCursor, Work
from headrace.queues.contract import Record


def cursor(*, durable_input: bool, is_durable: bool, committed: int | None = None) -> InputCursor:
    topic = "origin" if durable_input else "middle"
    input = StageInput("stage", 0, "above", topic, 3, durable_input, "origin", 3, "group")
    return InputCursor(input, 0, is_durable=is_durable, committed=committed)


def record(offset: int, origin_offset: int) -> Record:
    message = QueueMessage("unit", "ref", 1, origin=Origin("origin", 3, origin_offset))
    return Record(offset, None, encode_message(message), 0)


def test_a_stage_on_memory_passes_on_messages_without_rows() -> None:
    """Else the next durable stage would never commit them, and every run would repeat them."""
    work = Work(8, 8, QueueMessage("unit", "ref", 5))
    on_memory = cursor(durable_input=True, is_durable=False).output(work, "unit", "", 0)
    assert on_memory == QueueMessage("unit", "", 0, origin=Origin("origin", 3, 8))
    assert cursor(durable_input=True, is_durable=True).output(work, "unit", "", 0) is None


@pytest.mark.parametrize(
    ("committed", "repeated"),
    [(None, [False, False, True, False]), (4, [True, False, True, False]), (7, [True] * 4)],
)
def test_what_is_committed_or_there_twice_is_left_out(
    committed: int | None, repeated: list[bool]
) -> None:
    records = [record(offset, origin) for offset, origin in enumerate([4, 6, 6, 7])]
    works = cursor(durable_input=False, is_durable=True, committed=committed).select(records)
    assert [work.is_repeated for work in works] == repeated
    assert [work.next_position for work in works] == [1, 2, 3, 4]


def test_a_fenced_worker_goes_on_after_what_another_committed() -> None:
    found = cursor(durable_input=True, is_durable=True, committed=2)
    assert not found.fence(2)
    assert found.position == 2
    assert found.fence(5)
    assert found.position == 5
    assert found.commit(Work(6, 6, QueueMessage("unit", "", 0))).expected == 5
