"""A Session over a cut shows all of it, and then says by itself that the cut is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import OutdatedError, PeerLostError, ProtocolError, TransportError, UsageError
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.messages import StartRead
from headrace.shuffle.progress_delta import COMMIT_ROW, PART_ROW, PROGRESS_ROW, ProgressReport
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.session.effects import SendSlice
from headrace.shuffle.session.state import SessionState
from headrace.transport import Channel
from tests.shuffle.builders import source
from tests.shuffle.fake_member import fake_member, linger
from tests.shuffle.real_task import SETTINGS, SOON_S, Task, soon, swift
from tests.shuffle.session.test_state import abc

A = place(0, 0)

# -- what the Session decides ------------------------------------------------------------------


def session(
    members: int = 1, *, is_cut: bool = True, read_through: Checkpoint | None = None
) -> SessionState:
    """Return a Session that reads one journal, which ends at 100."""
    sources = Sources([source(0, "a")])
    state = SessionState(
        sources, split_evenly(members), Checkpoint(), read_through, 1 << 60, is_cut=is_cut
    )
    info = JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(100), 1)
    *_, sent = state.journals_changed(Changes([info], [], {}))
    assert isinstance(sent, SendSlice)
    assert isinstance(sent.message, StartRead)
    assert sent.message.is_cut is is_cut
    return state


def committed(through: int, clock: int = 5) -> ProgressReport:
    rows = [(A, 1, clock, -through, 0, clock)]
    return ProgressReport(
        np.array([(A, through)], JOURNAL_ROW), np.array(rows, PROGRESS_ROW), documents=1
    )


def test_a_cut_is_over_when_all_members_finished_and_everything_is_published() -> None:
    state = session(members=2)
    reader = state.assignment._readers[A]
    state.progress(reader, committed(50))
    state.finished(1 - reader)
    assert state.next_checkpoint() is not None
    assert not state.is_over, "one has yet to finish"
    state.progress(reader, committed(100, clock=6))
    state.finished(reader)
    assert not state.is_over, "the last report is not published"
    assert state.next_checkpoint() is not None
    assert state.is_over
    assert state.next_checkpoint() is None


def test_a_cut_without_anything_in_it_is_over_when_all_members_say_so() -> None:
    sources = Sources([source(0, "a")])
    state = SessionState(sources, split_evenly(2), Checkpoint(), None, 1 << 60, is_cut=True)
    assert not state.is_over
    effects = state.journals_changed(Changes([], [], {}))
    assert effects == [SendSlice(member, StartRead([], is_cut=True)) for member in range(2)]
    for member in range(2):
        assert not state.is_over
        state.finished(member)
    assert state.is_over


def test_what_waits_for_something_beyond_the_cut_does_not_hold_its_end() -> None:
    story = abc()
    story.write(1, 10)
    story.ack(1, 20, hints=[*story.hints(20, 1), (2, 500, 1, 20)])
    story.open(is_cut=True)
    assert story.next() == []
    assert story.waits_for() == [(1, "b/0000")]
    assert story.run.session.is_over


def test_what_a_replay_had_folded_is_shown_before_the_end() -> None:
    before = session()
    before.progress(0, committed(50))
    handed_out = before.next_checkpoint()
    assert handed_out is not None
    state = session(read_through=handed_out)
    state.progress(0, committed(50))
    state.progress(0, committed(100, clock=6))
    state.finished(0)
    assert state.next_checkpoint() is handed_out
    assert not state.is_over
    rest = state.next_checkpoint()
    assert rest is not None
    assert rest.frontier.journals.tolist() == [(A, 100)]
    assert state.is_over


# proves G10, G13
def test_a_cut_that_ends_before_what_is_to_be_replayed_is_refused() -> None:
    before = session()
    before.progress(0, committed(50))
    state = session(read_through=before.next_checkpoint())
    assert state.next_checkpoint() is None
    state.finished(0)
    with pytest.raises(UsageError, match=r"the cut ends before the checkpoint .*, in a/0000"):
        state.next_checkpoint()


# proves G10, G13
def test_such_a_cut_is_refused_although_it_has_reports_of_another_priority() -> None:
    """Otherwise the poll would stay open for ever: nobody folds those reports before the replay."""
    bindings = Sources([source(0, "a"), source(1, "b", lane=1, cohort=1)])
    infos = [
        JournalInfo(JournalId(number), name, Offset(0), Offset(100), 1)
        for number, name in ((1, "a/0000"), (2, "b/0000"))
    ]
    before = session()
    before.progress(0, committed(50))
    handed_out = before.next_checkpoint()
    state = SessionState(bindings, split_evenly(1), Checkpoint(), handed_out, 1 << 60, is_cut=True)
    state.journals_changed(Changes(infos, [], {}))
    b = state.assignment.place_of(JournalId(2), 1)
    rows = np.array([(b, 1, 5, -100, 0, 5)], PROGRESS_ROW)
    state.progress(0, ProgressReport(np.array([(b, 100)], JOURNAL_ROW), rows, documents=1))
    state.poll()
    state.advance()
    state.finished(0)
    with pytest.raises(UsageError, match=r"the cut ends before the checkpoint .*, in a/0000"):
        state.advance()


# proves G13
@pytest.mark.parametrize(("is_cut", "times"), [(False, 1), (True, 2)])
def test_a_member_that_finishes_out_of_turn_is_refused(is_cut: bool, times: int) -> None:
    state = session(is_cut=is_cut)
    for _ in range(times - 1):
        state.finished(0)
    with pytest.raises(ProtocolError, match="member 0 sent Finished, which nobody asked for"):
        state.finished(0)


# proves G13
def test_a_member_that_had_finished_reports_no_more() -> None:
    state = session()
    state.finished(0)
    with pytest.raises(ProtocolError, match=r"member 0 sent a ProgressDelta .* it had finished"):
        state.progress(0, committed(50))


# -- real members ------------------------------------------------------------------------------


def open_cut(task: Task, *bindings: hr.Binding, cut: Sequence[JournalInfo]) -> hr.Shuffle:
    return hr.Shuffle(task.workspace, bindings, task.addresses, cut=cut, settings=SETTINGS)


def drain_values(shuffle: hr.Shuffle, field: str = "n") -> list[Any]:
    return sorted(
        value
        for checkpoint in shuffle.drain()
        for member in range(shuffle.members)
        for _, batch in shuffle.read(member, checkpoint)
        for value in batch[field].to_pylist()
    )


def test_a_cut_is_read_to_its_end_and_the_end_stays(task: Task) -> None:
    task.append(0, 1000)
    with soon(), open_cut(task, hr.Binding(collection="a"), cut=task.workspace.journals()) as cut:
        task.append(1000, 10)
        assert drain_values(cut) == list(range(1000))
        for timeout_s in (None, 0.0, SOON_S):
            assert cut.next_checkpoint(timeout_s) is None
        assert list(cut.drain()) == []


def test_an_empty_cut_is_at_its_end(task: Task) -> None:
    for cut in ([], task.workspace.journals()):
        with soon(), open_cut(task, hr.Binding(collection="a"), cut=cut) as shuffle:
            assert shuffle.next_checkpoint() is None


def test_documents_with_a_read_delay_belong_to_the_cut(task: Task) -> None:
    task.append(0, 100)
    binding = hr.Binding(collection="a", read_delay_s=1.0)
    with soon(), open_cut(task, binding, cut=task.workspace.journals()) as shuffle:
        assert drain_values(shuffle) == list(range(100))


def test_a_transaction_that_is_open_in_the_cut_is_not_waited_for(task: Task) -> None:
    task.append(0, 10)
    with task.workspace.publisher("slow") as transaction:
        transaction.append("a", [{"n": 100 + n} for n in range(10)])
        transaction._buffer.send(transaction._buffer.seal()).result()
        cut = task.workspace.journals()
        with soon(), open_cut(task, hr.Binding(collection="a"), cut=cut) as shuffle:
            assert drain_values(shuffle) == list(range(10))


# proves G13
def test_a_journal_that_was_deleted_after_the_cut_is_named(task: Task) -> None:
    task.append(0, 10)
    cut = task.workspace.journals()
    task.workspace.delete_journals(["a/0001"])
    with soon(), open_cut(task, hr.Binding(collection="a"), cut=cut) as shuffle:
        with pytest.raises(OutdatedError) as gone:
            drain_values(shuffle)
        assert "journal a/0001 of binding 'a' was deleted after the cut" in gone.value.what


# proves G9, G13
def test_a_cut_without_the_journals_of_a_binding_is_refused(task: Task) -> None:
    workspace = task.workspace
    workspace.collection("b", "n long, p long", key="n", partition_by="p")
    with workspace.publisher("p") as transaction:
        transaction.append("a", [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}])
        transaction.append("b", [{"n": 1, "p": 1}])
    bindings = [hr.Binding(collection="a"), hr.Binding(collection="b")]
    whole = workspace.journals()
    for name in ("a/0000", "b/p=1/0000"):
        cut = [journal for journal in whole if journal.name != name]
        wanted = rf"the cut lacks {name}, which binding '{name[0]}' reads; take the cut of all"
        with pytest.raises(UsageError, match=wanted):
            hr.Shuffle(workspace, bindings, task.addresses, cut=cut)
    workspace.append("b", [{"n": 20, "p": 2}])
    with soon(), open_cut(task, *bindings, cut=whole) as shuffle:
        assert drain_values(shuffle) == [1, 1, 2, 3, 4], "what was made after the cut is not in it"


# proves G9, G13
def test_a_cut_that_lacks_what_its_transactions_name_is_refused() -> None:
    sources = Sources([source(0, "a"), source(1, "b")])
    state = SessionState(sources, split_evenly(1), Checkpoint(), None, 1 << 60, is_cut=True)
    info = JournalInfo(JournalId(1), "a/0000", Offset(0), Offset(100), 1)
    state.journals_changed(Changes([info], [], {}))
    parts = np.array([(0, 1, 5, 2, 1, 1, 5, 10)], PART_ROW)
    commits = np.array([(0, 1, 5, A, 1, 5, 4, 0)], COMMIT_ROW)
    state.progress(0, replace(committed(50), commits=commits, parts=parts))
    with pytest.raises(UsageError, match=r"the cut lacks journal 2, which binding 'b\.1' reads"):
        state.next_checkpoint()


# proves G13
def test_a_member_that_is_lost_ends_what_waits_for_the_end(task: Task) -> None:
    def die(channel: Channel[Any], opened: Any) -> None:
        """Fail after everything is read, before the member reports that it has finished."""
        channel.send(messages.Opened(opened.session))
        while not isinstance(channel.receive().control, messages.StartRead):  # type: ignore[union-attr]
            pass
        raise PeerLostError("out of power", do="see why")

    with fake_member(slice=die) as fake, soon():
        shuffle = hr.Shuffle(
            task.workspace, [hr.Binding(collection="a")], [fake.address], cut=[], service=swift()
        )
        with shuffle, pytest.raises(TransportError, match="member 0: out of power"):
            shuffle.next_checkpoint()


def test_a_session_asks_no_member_for_the_end(task: Task) -> None:
    """A member gets all reads in one message. It sends one message once it has finished them."""
    heard: list[object] = []

    def finish(channel: Channel[Any], opened: Any) -> None:
        channel.send(messages.Opened(opened.session))
        while (message := channel.receive()) is not None:
            heard.append(message.control)
            # The Session has started its reads, and its consumer waits.
            if {type(each) for each in heard} >= {messages.StartRead, messages.Starving}:
                channel.send(messages.Finished())
                break
        linger(channel)

    cut = task.workspace.journals()
    with fake_member(slice=finish) as fake, soon():
        shuffle = hr.Shuffle(
            task.workspace, [hr.Binding(collection="a")], [fake.address], cut=cut, service=swift()
        )
        with shuffle:
            assert list(shuffle.drain()) == []
    kinds = sorted(type(each).__name__ for each in heard)
    assert kinds == ["StartRead", "Starving", "Tags"]
    (start,) = [each for each in heard if isinstance(each, messages.StartRead)]
    assert start.is_cut
    assert [read.name for read in start.reads] == ["a/0000", "a/0001"]
