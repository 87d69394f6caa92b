"""What a shuffle reads: which messages make a task, what it is named, and its columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SchemaError
from headrace.pipeline.messages import QueueMessage
from headrace.pipeline.run import message_scan
from headrace.pipeline.run.message_scan import MessageScan, MessageSize, divide, scan_messages
from headrace.pipeline.run.payloads import Payloads


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([(4, 1)] * 5, [(0, 2), (2, 4), (4, 5)]),
        ([(20, 1), (1, 1)], [(0, 1), (1, 2)]),
        ([(1, 60), (1, 60), (1, 200), (1, 30)], [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ([(0, 1), (0, 1), (10, 1)], [(0, 3)]),
        ([(1, 1), (-1, 0), (-1, 0), (1, 1)], [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_a_task_has_so_many_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, sizes: list[Any], expected: list[Any]
) -> None:
    """A message whose rows nobody has counted has a task to itself."""
    monkeypatch.setattr(message_scan, "TASK_ROWS", 10)
    monkeypatch.setattr(message_scan, "TASK_BYTES", 100)
    assert list(divide([MessageSize(*each) for each in sizes])) == expected


def stored(workspace: hr.Workspace, *tables: pa.Table) -> list[QueueMessage]:
    payloads = Payloads(workspace.objects, "payloads")
    return [
        QueueMessage(f"unit {number}", payloads.put("stage", f"u{number}", table), table.num_rows)
        for number, table in enumerate(tables)
    ]


def scan(
    workspace: hr.Workspace, messages: list[QueueMessage], declared: pa.Schema | None = None
) -> MessageScan | None:
    payloads = Payloads(workspace.objects, "payloads")
    return scan_messages(messages, "stage 'rows'", declared, payloads, workspace)


def test_all_tasks_have_the_columns_of_all_units(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit without rows has none to add."""
    monkeypatch.setattr(message_scan, "TASK_ROWS", 2)
    first, second = pa.table({"a": [1, 2]}), pa.table({"a": [1.5], "b": ["x"]})
    messages = [*stored(workspace, first, second), QueueMessage("empty", "", 0)]
    found = scan(workspace, messages)
    assert found is not None
    assert found.schema == pa.schema({"a": pa.float64(), "b": pa.string()})
    tables = [unit.read() for unit in found.units()]
    assert [each.schema for each in tables] == [found.schema] * 2
    assert pa.concat_tables(tables).to_pylist() == [
        {"a": 1.0, "b": None},
        {"a": 2.0, "b": None},
        {"a": 1.5, "b": "x"},
    ]
    with pytest.raises(SchemaError, match="units of stage 'rows' have different columns"):
        scan(workspace, stored(workspace, first, pa.table({"a": ["text"]})))


def test_a_task_is_named_by_the_payloads_that_it_reads(workspace: hr.Workspace) -> None:
    messages = stored(workspace, pa.table({"a": [1]}), pa.table({"a": [2]}))
    other = stored(workspace, pa.table({"a": [1]}), pa.table({"a": [2]}))

    def task(messages: list[QueueMessage]) -> str:
        found = scan(workspace, messages)
        assert found is not None
        (unit,) = found.units()
        return unit.name

    assert task(messages) == task(messages)
    assert len({task(messages), task(messages[:1]), task(other)}) == 3


def test_without_rows_the_columns_are_those_that_are_declared(workspace: hr.Workspace) -> None:
    empty = [QueueMessage("empty", "", 0)]
    assert scan(workspace, empty) is None
    declared = pa.schema({"a": pa.int64()})
    found = scan(workspace, empty, declared)
    assert found is not None
    assert (found.schema, list(found.units())) == (declared, [])
