"""What a stage that takes all rows reads, as the source of a query: the rows of messages.

A task reads the rows of some messages that follow one another, because each task costs a few files
whatever it reads. It is named by the payloads and units that it reads and by the columns that they
have together: so the tasks of a later run are the same, whatever its workers and cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pyarrow as pa

from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.workspace import Workspace
from headrace.pipeline.messages import UNIT, QueueMessage
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import JournalUnit, decode_unit, digest
from headrace.pipeline.source.unit_reader import read_unit, unit_columns
from headrace.plan.unified_columns import fit, unify_columns
from headrace.settings import MIB, ServiceSettings

TASK_ROWS = 100_000
TASK_BYTES = 64 * MIB
"""A task gets no more messages once it has so many rows or bytes."""

_READS_AT_ONCE = 8


class MessageSize(NamedTuple):
    """How much one message refers to."""

    rows: int
    """-1 if nobody has read them yet."""
    bytes: int
    """0 if nobody knows."""


class MessagesUnit(NamedTuple):
    """The rows of some messages. It travels to the task that reads it."""

    name: str
    messages: tuple[QueueMessage, ...]
    columns: pa.Schema
    payloads: Payloads
    workspace: WorkspaceRef

    def read(self) -> pa.Table:
        with ExitStack() as stack:
            tables = [self._read(each, stack) for each in self.messages]
        fitted = [fit(each.replace_schema_metadata(), self.columns) for each in tables]
        return pa.concat_tables(fitted)

    def _read(self, message: QueueMessage, stack: ExitStack) -> pa.Table:
        if message.data_ref:
            return self.payloads.get(message.data_ref)
        unit = decode_unit(message.metadata[UNIT])
        opened: Workspace | None = None
        if isinstance(unit, JournalUnit):
            # It listens nowhere.
            service = ServiceSettings(host="127.0.0.1", port=0)
            opened = stack.enter_context(self.workspace.open(Workspace, service))
        return read_unit(unit, self.payloads, opened)


class MessageScan:
    """Implements `operators.ScanSource`."""

    def __init__(self, label: str, schema: pa.Schema, units: Sequence[MessagesUnit] = ()) -> None:
        self.schema = schema
        self._label = label
        self._units = units

    def units(self) -> Sequence[MessagesUnit]:
        return self._units

    def __str__(self) -> str:
        return self._label


def scan_messages(
    messages: Sequence[QueueMessage],
    label: str,
    declared: pa.Schema | None,
    payloads: Payloads,
    workspace: Workspace,
) -> MessageScan | None:
    """Return the rows of messages as a source; None if there are none, and no columns are declared.

    Units may have different columns: see `unify_columns`. `label` names their stage in errors.
    """
    found = [each for each in messages if each.may_have_rows]
    if not found:
        return None if declared is None else MessageScan(label, declared)

    def look(message: QueueMessage) -> tuple[pa.Schema, MessageSize]:
        if message.data_ref:
            size = MessageSize(message.rows, payloads.size(message.data_ref))
            return payloads.schema(message.data_ref), size
        unit = decode_unit(message.metadata[UNIT])
        return unit_columns(unit, payloads, workspace), MessageSize(message.rows, 0)

    with ThreadPoolExecutor(_READS_AT_ONCE, "headrace-scan") as threads:
        schemas, sizes = zip(*threads.map(look, found), strict=True)
    columns = unify_columns(schemas, label)
    reference = workspace.reach()
    units = []
    for first, end in divide(sizes):
        part = tuple(found[first:end])
        units.append(MessagesUnit(_name(part, columns), part, columns, payloads, reference))
    return MessageScan(label, columns, units)


def divide(sizes: Sequence[MessageSize]) -> Iterator[tuple[int, int]]:
    """Yield the messages of each task, as (first, end)."""
    first = rows = bytes = 0
    for number, size in enumerate(sizes):
        is_unknown = size.rows < 0
        is_full = rows + size.rows > TASK_ROWS or bytes + size.bytes > TASK_BYTES
        if number > first and (is_unknown or is_full):
            yield first, number
            first, rows, bytes = number, 0, 0
        # Nobody knows how much it is, so nothing comes after it.
        rows += TASK_ROWS if is_unknown else size.rows
        bytes += size.bytes
    if len(sizes) > first:
        yield first, len(sizes)


def _name(messages: Sequence[QueueMessage], columns: pa.Schema) -> str:
    identities = [each.data_ref or each.split_id for each in messages]
    return digest("messages", columns.serialize().to_pybytes(), *identities)
