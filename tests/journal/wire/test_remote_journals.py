"""Answers that nobody waits for, that cannot be decoded, and that cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PeerLostError
from headrace.ids import Offset
from headrace.journal.wire import messages
from headrace.journal.wire.calls import CALLS
from headrace.journal.wire.journal_service import FetchAnswers
from headrace.journal.wire.messages import JournalAnswer
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.settings import ServiceSettings
from headrace.transport import Channel, Message, Server
from tests.journal.conftest import SETTINGS
from tests.journal.interruption import Interruption

SOON_S = 20.0
SERVICE = ServiceSettings(token="t", silence_s=60)


@pytest.fixture
def remote(owner: hr.Workspace) -> Iterator[RemoteJournals]:
    owner.collection("c", "n long")
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        journals = workspace._connection.journals()
        assert isinstance(journals, RemoteJournals)
        yield journals


def ask(journals: RemoteJournals) -> Future[Any]:
    call = CALLS["collections"]()
    return journals._ask(call, (), call.answer)


def test_an_answer_to_a_call_that_was_interrupted_does_no_harm(remote: RemoteJournals) -> None:
    files = ("journal/wire/remote_journals.py", "transport/channel.py", "transport/mailbox.py")
    with Interruption(files) as all_of_it:
        asked = ask(remote)
    asked.result(SOON_S)
    for line in range(1, all_of_it.lines + 1):
        with pytest.raises(KeyboardInterrupt), Interruption(files, line):
            ask(remote)
        assert [each.name for each in ask(remote).result(SOON_S)] == ["c"], f"at line {line}"
    assert not remote.is_lost


class OfAnotherVersion:
    """Answers every call with a text."""

    requests = messages.requests

    def stream(self, request: Any, channel: Channel[Any]) -> Any:
        raise NotImplementedError

    def converse(self, channel: Channel[Any]) -> None:
        while (message := channel.receive()) is not None:
            text = msgspec.Raw(msgspec.msgpack.encode("of another version"))
            channel.send(JournalAnswer(message.control.number, text))


def test_an_answer_that_cannot_be_understood_ends_the_conversation_with_the_cause() -> None:
    with Server({messages.JOURNALS: OfAnotherVersion()}, SERVICE) as server:
        journals = RemoteJournals(server.address, SERVICE)
        with pytest.raises(PeerLostError, match=r"ValidationError: .*; run the same version"):
            ask(journals).result(SOON_S)
        assert journals.is_lost
        with pytest.raises(PeerLostError, match="ValidationError"):
            journals.collections()
        journals.close()
        assert server.conversations == 0, "the other side has ended it too"


def test_an_answer_that_cannot_be_sent_ends_the_conversation_with_the_cause(
    owner: hr.Workspace, remote: RemoteJournals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchAnswers, "answer", lambda *_: Message(object()))
    (journal,) = owner.journals()
    with pytest.raises(PeerLostError, match=r"TypeError: .*; report it"):
        remote.fetch(journal.id, Offset(0), journal.head, 1).result(SOON_S)
    assert remote.is_lost
