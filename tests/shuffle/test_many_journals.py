"""Members that read many journals."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.settings import KIB, MIB, LogSettings
from headrace.testing.crash import Child, eventually
from tests.shuffle.real_task import POLL_S

pytestmark = pytest.mark.long

JOURNALS = 200
DOCUMENTS = 8
"""Of each journal, each of about so many bytes:"""
DOCUMENT_BYTES = 64 * KIB


# proves G5, G12
def test_the_memory_of_a_member_does_not_grow_with_the_number_of_journals(tmp_path: Path) -> None:
    """Each journal has little, but all of them have much more than a member may hold."""
    fields = {"journal": range(JOURNALS), "padding": ["x" * DOCUMENT_BYTES] * JOURNALS}
    batch = pa.RecordBatch.from_pydict({name: list(some) for name, some in fields.items()})
    settings = hr.ShuffleSettings(
        queue_soft_bytes=MIB, credit_bytes=MIB, ahead_bytes=4 * MIB, patience_s=30.0
    )
    unsynced = hr.Settings(log=LogSettings(sync=False))
    member = "import pyarrow as pa, headrace as hr; member = hr.Member(folder)"
    with (
        hr.open(tmp_path / "workspace", settings=unsynced) as workspace,
        Child(member, folder=tmp_path / "member") as child,
    ):
        workspace.collection(
            "a", "journal long, padding string", key="journal", partition_by="journal"
        )
        for _ in range(DOCUMENTS):
            workspace.append("a", batch)
        with hr.Shuffle(
            workspace,
            [hr.Binding(collection="a")],
            [child.run("member.address")],
            settings=settings,
        ) as shuffle:
            # Nobody consumes: the Queue fills up, and then what waits before it.
            eventually(
                lambda: "over its soft limit" in shuffle.status().members[0].waits, POLL_S, "a stop"
            )
            seen = 0
            while seen < JOURNALS * DOCUMENTS and (found := shuffle.next_checkpoint(POLL_S)):
                seen += sum(some.num_rows for _, some in shuffle.read(0, found))
                shuffle.release(found)
            assert seen == JOURNALS * DOCUMENTS
            most = child.run("pa.default_memory_pool().max_memory()")
            assert most < 24 * MIB, f"{most // MIB} MiB"
