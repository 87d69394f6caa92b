"""The identifiers that everything else speaks in."""

from __future__ import annotations

import secrets
from typing import NewType

Producer = NewType("Producer", int)
"""A random 48-bit writer id."""

Offset = NewType("Offset", int)
"""A position in a journal: ascending, and opaque to everybody but its backend."""

FIRST = Offset(0)
"""Where every journal begins that retention has not cut."""

JournalId = NewType("JournalId", int)
"""Numbers one incarnation of a journal in its workspace; never reused."""

Holder = NewType("Holder", int)
"""Numbers the holders of a producer; only the newest may write."""

PRODUCER_BITS = 48


def new_producer() -> Producer:
    """A random producer that is never zero: zero stands for nobody."""
    return Producer(secrets.randbelow((1 << PRODUCER_BITS) - 1) + 1)


def format_producer(producer: Producer) -> str:
    return f"{producer:012x}"
