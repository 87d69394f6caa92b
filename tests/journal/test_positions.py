"""What topics build on: journals by name, offsets of a commit, payloads, and trimming."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import BehindRetentionError, InDoubtError
from headrace.journal.sequencer import Flags
from headrace.journal.write.commit_id import AppendedFrame
from tests.journal.conftest import column


def committed(workspace: hr.Workspace, rows: list[int], name: str = "") -> hr.PendingCommit:
    transaction = workspace.publisher(name).begin()
    transaction.append("c", [{"n": n, "text": "x" * 200} for n in rows])
    return transaction.commit_nowait()


def test_journals_are_found_by_name(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long", key="n", journals=3)
    workspace.append("c", [{"n": n} for n in range(20)])
    listed = {info.name: info for info in workspace.journals()}
    names = ["c/0002", "missing/0000", "c/0000", "not a name", "c/0003"]
    assert workspace.journals_named(names) == [listed["c/0002"], listed["c/0000"]]
    assert workspace.journals_named([]) == []
    workspace.delete_journals(["c/0002"])
    assert workspace.journals_named(names) == [listed["c/0000"]]


def test_a_commit_tells_the_offsets_of_its_frames(workspace: hr.Workspace) -> None:
    """Also if its answer is lost, as when the owner dies."""
    workspace.collection("c", "n long, text string")
    committed(workspace, [0]).result()
    pending = committed(workspace, list(range(1, 31)))
    told = pending.offsets()
    assert sum(documents for _, documents, _ in told) == 30
    assert len(told) > 1, "several frames"
    [journal] = workspace.journals()
    frames = [each for each in workspace.frames(journal) if each.offset >= told[0][2]]
    assert told == [(each.journal, each.documents, each.offset) for each in frames]
    asked = [AppendedFrame(each.journal, each.clock) for each in frames]
    inquiry = pending._inquiry
    assert inquiry.frame_offsets(asked) == [offset for *_, offset in told]
    unknown = AppendedFrame(journal.id, frames[0].clock + 1)  # type: ignore[arg-type]
    with pytest.raises(InDoubtError, match=r"journal c/0000 has no frame of producer"):
        inquiry.frame_offsets([unknown])


def test_the_offsets_of_frames_that_were_removed_are_in_doubt(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long, text string")
    pending = committed(workspace, [1])
    [(journal, _, offset)] = pending.offsets()
    clock = next(iter(workspace.frames(workspace.journals()[0]))).clock
    for n in range(3):
        committed(workspace, [n]).result()
    [info] = workspace.journals()
    workspace.trim(info, info.head)
    with pytest.raises(InDoubtError, match="retention has removed the part of journal c/0000"):
        pending._inquiry.frame_offsets([AppendedFrame(journal, clock)])
    assert offset < workspace.journals()[0].begin
    workspace.delete_collection("c")
    with pytest.raises(InDoubtError, match="which would tell, was deleted"):
        pending._inquiry.frame_offsets([AppendedFrame(journal, clock)])


def test_payloads_are_read_without_fencing_anybody(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long, text string")
    holders = {name: workspace.publisher(name) for name in ("a:1", "a:2", "b:1")}
    for name, publisher in holders.items():
        publisher.begin().commit(name.encode())
    workspace.publisher("a:3").close()
    assert workspace.payloads("a:") == {"a:1": b"a:1", "a:2": b"a:2"}
    assert workspace.payloads("c") == {}
    holders["a:1"].begin().commit(b"again")
    assert workspace.payloads("a:1") == {"a:1": b"again"}


@pytest.mark.parametrize("where", ["frame", "inside a frame", "ack", "head", "beyond"])
def test_trimming_keeps_the_last_frame_of_documents_below(
    workspace: hr.Workspace, where: str
) -> None:
    workspace.collection("c", "n long, text string")
    for n in range(4):
        committed(workspace, [n]).result()
    [info] = workspace.journals()
    frames = list(workspace.frames(info, committed=False))
    documents = [each for each in frames if each.flags is not Flags.ACK]
    third = documents[2]
    offset, kept = {
        "frame": (third.offset, [1, 2, 3]),
        "inside a frame": (third.offset + 1, [2, 3]),
        "ack": (third.end, [2, 3]),
        "head": (info.head, [3]),
        "beyond": (info.head + 1000, [3]),
    }[where]
    workspace.trim(info, offset)
    assert column(workspace, "c", "n") == kept
    with pytest.raises(BehindRetentionError):
        list(workspace.frames(info, 0))
    # Trimming again, or less, changes nothing.
    workspace.trim(info, offset)
    workspace.trim(info, 0)
    assert column(workspace, "c", "n") == kept
