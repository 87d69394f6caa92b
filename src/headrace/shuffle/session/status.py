"""The status of a Session, for people and programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.ids import Producer, format_producer
from headrace.shuffle.messages import SliceStatus
from headrace.shuffle.session.state import SessionState

_ROWS_MAX = 100
"""A status has at most this many journals, and as many transactions."""


class JournalLag(msgspec.Struct, frozen=True):
    """A journal that a member has not read to its head."""

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
    """Why its Queue holds Slices back; empty if it does not."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that no checkpoint shows yet, and what it waits for."""

    producer: str
    journal: str
    waits_for: str


class SessionStatus(msgspec.Struct, frozen=True):
    places: int
    """Number of journals, each counted once for every binding that reads it."""
    members: list[MemberStatus]
    lagging: list[JournalLag]
    transactions: list[OpenTransaction]
    settled: bool
    """True if members have read and reported everything that they know of.

    The consumer may still have to ask for a checkpoint of it.
    """
    behind_bytes: int = 0
    """Bytes that journals have beyond the last checkpoint, once for each binding."""


def session_status(state: SessionState, slices: Sequence[SliceStatus]) -> SessionStatus:
    """Return the status of a Session whose members answered `slices`, in their order."""
    lagging = [
        JournalLag(state.assignment.journal_name(lag.place), member, lag.phase, lag.taken, lag.head)
        for member, status in enumerate(slices)
        for lag in status.lagging
    ]
    lagging.sort(key=lambda lag: lag.taken - lag.head)
    transactions = [
        OpenTransaction(
            format_producer(Producer(producer)), state.assignment.journal_name(place), "its ACK"
        )
        for status in slices
        for place, producer in status.open
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
        lagging[:_ROWS_MAX],
        transactions[:_ROWS_MAX],
        all(status.settled for status in slices),
        state.behind_bytes,
    )
