"""Sixteen processes that write at the same time, to one journal and to a thousand."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.crash import Child
from tests.journal.crash.publisher_process import SCHEMA
from tests.journal.crash.scripted_work import ownership_of

WRITERS = 16
WAIT_S = 120.0

Written = tuple[str, int]
"""The writer, and its number of the transaction."""


class Writer:
    """The writer in each of the processes."""

    def __init__(self, root: Path, label: str) -> None:
        self._workspace = hr.open(root)
        self._label = label

    def write(self, collection: str, times: int, parts: int) -> None:
        """Write in a transaction and outside of any, by turns; each is durable before the next."""
        for tx in range(times):
            batch = pa.RecordBatch.from_pylist(
                [{"label": self._label, "tx": tx, "part": n, "parts": parts} for n in range(parts)]
            )
            if tx % 2:
                self._workspace.append(collection, batch)
            else:
                with self._workspace.publisher() as transaction:
                    transaction.append(collection, batch)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[hr.Workspace, list[Child]]]:
    """The workspace, which this process owns, and the processes that write to it."""
    root = tmp_path_factory.mktemp("crowd") / "workspace"
    with hr.open(root) as workspace, ExitStack() as stack:
        writers = [
            stack.enter_context(
                Child(
                    "from tests.journal.crash.test_concurrency import Writer\n"
                    "writer = Writer(root, label)",
                    root=root,
                    label=f"writer {n}",
                )
            )
            for n in range(WRITERS)
        ]
        for each in writers:
            each.answer(WAIT_S)
        yield workspace, writers


def write_together(
    workspace: hr.Workspace, writers: list[Child], collection: str, times: int, parts: int
) -> None:
    """Let all write at once; they share syncs, so there are fewer syncs than commits."""
    log = ownership_of(workspace).owner.log
    syncs, begin = log.syncs, time.monotonic()
    for each in writers:
        each.start(
            "writer.write(collection, times, parts)",
            collection=collection,
            times=times,
            parts=parts,
        )
    for each in writers:
        each.answer(WAIT_S)
    syncs, seconds = log.syncs - syncs, time.monotonic() - begin
    commits = len(writers) * times
    print(f"{commits} commits of {parts} documents by {len(writers)} processes: {syncs} syncs")
    print(f"{commits / syncs:.1f} commits a sync, {commits / seconds:,.0f} commits a second")
    assert syncs < commits


def check_frames(workspace: hr.Workspace, name: str, times: int, parts: int) -> int:
    """Each frame is of one writer's one transaction, in its order; nothing is lost or twice.

    Returns how many journals have documents.
    """
    collection = workspace.collection(name)
    found: dict[Written, Counter[int]] = defaultdict(Counter)
    journals = 0
    for journal in workspace.journals(hr.Selector(name)):
        newest: dict[str, int] = {}
        frames = list(workspace.frames(journal))
        journals += bool(frames)
        for frame in frames:
            batch = collection.decode(frame.body, frame.schema)
            (label,) = set(batch.column("label").to_pylist())
            (tx,) = set(batch.column("tx").to_pylist())
            numbers = batch.column("part").to_pylist()
            assert numbers == sorted(numbers)
            assert tx > newest.get(label, -1), f"{label}: {tx} after {newest[label]}"
            newest[label] = tx
            found[label, tx].update(numbers)
        every = list(workspace.frames(journal, committed=False))
        ends = [journal.begin, *(frame.end for frame in every)]
        assert [frame.offset for frame in every] + [journal.head] == ends, "a gap, or an overlap"
    whole = Counter(range(parts))
    assert dict(found) == {
        (f"writer {n}", tx): whole for n in range(WRITERS) for tx in range(times)
    }
    return journals


# proves G1
def test_sixteen_processes_write_to_one_journal_without_loss_and_share_syncs(
    crowd: tuple[hr.Workspace, list[Child]],
) -> None:
    workspace, writers = crowd
    workspace.collection("crowd/one", SCHEMA)
    write_together(workspace, writers, "crowd/one", times=60, parts=7)
    assert check_frames(workspace, "crowd/one", times=60, parts=7) == 1


# proves G1, G2
def test_sixteen_processes_write_to_a_thousand_journals_without_loss_and_share_syncs(
    crowd: tuple[hr.Workspace, list[Child]],
) -> None:
    workspace, writers = crowd
    workspace.collection("crowd/thousand", SCHEMA, key="label, tx, part", journals=1000)
    write_together(workspace, writers, "crowd/thousand", times=30, parts=60)
    assert check_frames(workspace, "crowd/thousand", times=30, parts=60) == 1000
