"""How a Session stands, for people and programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.ids import Producer, format_producer
from headrace.shuffle.messages import SliceStatus
from headrace.shuffle.session.state import SessionState

_SHOWN = 100


class JournalLag(msgspec.Struct, frozen=True):
    journal: str
    member: int
    phase: str
    taken: int
    head: int


class MemberStatus(msgspec.Struct, frozen=True):
    member: int
    reads: dict[str, int]
    queue_bytes: int
    waits: str
    """Why its Queue holds Slices back, or nothing."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """One that is not shown, and what it waits for."""

    producer: str
    journal: str
    waits_for: str


class SessionStatus(msgspec.Struct, frozen=True):
    places: int
    """Journals, each once for every binding that reads it."""
    members: list[MemberStatus]
    lagging: list[JournalLag]
    transactions: list[OpenTransaction]
    settled: bool
    """All that members know of is taken and reported; a checkpoint of it may yet be asked for."""
    behind_bytes: int = 0
    """How much journals have beyond the last checkpoint, once for each binding that reads them."""


def session_status(state: SessionState, slices: Sequence[SliceStatus]) -> SessionStatus:
    lagging = [
        JournalLag(state.assignment.journal_name(lag.place), member, lag.phase, lag.taken, lag.head)
        for member, status in enumerate(slices)
        for lag in status.lagging
    ]
    lagging.sort(key=lambda lag: lag.taken - lag.head)
    transactions = [
        OpenTransaction(
            format_producer(Producer(producer)), state.assignment.journal_name(at), "its ACK"
        )
        for status in slices
        for at, producer in status.open
    ]
    transactions += [
        OpenTransaction(format_producer(producer), journal, "this journal, which a hint names")
        for producer, journal in state.waiting_for()
    ]
    return SessionStatus(
        len(state.assignment),
        [
            MemberStatus(
                member, status.reads, status.queue_bytes, state.assignment.with_names(status.waits)
            )
            for member, status in enumerate(slices)
        ],
        lagging[:_SHOWN],
        transactions[:_SHOWN],
        all(status.settled for status in slices),
        state.behind_bytes,
    )
