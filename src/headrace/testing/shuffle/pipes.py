"""Who sends messages to whom in a simulated Session."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    CONSUMER = "consumer"
    SESSION = "session"
    SLICE = "slice"
    QUEUE = "queue"
    JOURNAL = "journal"
    DISK = "disk"
    READER = "reader"


class Party(NamedTuple):
    """Somebody who sends or receives messages."""

    role: Role
    number: int = 0
    """The member; of a journal the place. There is one Session and one consumer."""

    def __str__(self) -> str:
        is_single = self.role in (Role.CONSUMER, Role.SESSION)
        return str(self.role) if is_single else f"{self.role} {self.number}"


class Pipe(NamedTuple):
    """A way from one party to another. It keeps the order of its messages."""

    sender: Party
    receiver: Party

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


CONSUMER = Party(Role.CONSUMER)
SESSION = Party(Role.SESSION)
