"""The identifiers that all layers share."""

from __future__ import annotations

import secrets
from typing import NewType

Producer = NewType("Producer", int)
"""A random 48-bit writer id."""

Offset = NewType("Offset", int)
"""A position in a journal. Offsets ascend; only the journal's owner knows what they count."""

FIRST = Offset(0)
"""The first offset of every journal that retention has not shortened."""

JournalId = NewType("JournalId", int)
"""The number of one incarnation of a journal in its workspace; no other journal ever gets it."""

Holder = NewType("Holder", int)
"""The number of a holder of a producer; only the newest holder may write."""

PRODUCER_BITS = 48


def new_producer() -> Producer:
    """Return a random producer. It is never zero, which stands for nobody."""
    return Producer(secrets.randbelow((1 << PRODUCER_BITS) - 1) + 1)


def format_producer(producer: Producer) -> str:
    return f"{producer:012x}"
