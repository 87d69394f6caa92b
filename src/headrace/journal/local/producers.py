"""The state of one producer, and what that producer may write. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.errors import ProtocolError
from headrace.ids import Holder, JournalId, Offset, Producer, format_producer
from headrace.journal.contract import NO_HOLDER, PAYLOAD_BYTES_MAX, Prepared, Write
from headrace.journal.local import records
from headrace.journal.sequencer import Flags

Client = int
"""A conversation with the owner; 0 is the owner's own process."""

NOBODY: Client = -1
COMMITS_REMEMBERED = 64


@dataclass(slots=True)
class ProducerState:
    last_clock: Clock = ZERO
    """The greatest clock that the producer used."""
    commits: deque[tuple[Holder, Clock]] = field(
        default_factory=lambda: deque(maxlen=COMMITS_REMEMBERED)
    )
    """Each holder that committed, with its greatest committed clock: the owner answers from this a
    client that lost the answer to its commit. One clock per holder is enough: a holder's commits
    keep their order, and the first one that the owner refuses ends its lease."""
    spans: dict[JournalId, Offset] = field(default_factory=dict)
    """The offset at which its open span begins in each journal."""
    name: str = ""
    """The publisher's name; empty for an anonymous producer."""
    client: Client = NOBODY
    holder: Holder = NO_HOLDER
    transaction: int = 0
    """The transaction that it coordinates or joined; 0 for none."""
    prepared: Prepared | None = None
    lost: set[str] = field(default_factory=set)
    """Names of journals that somebody deleted while it had an open span there."""

    def check_write(
        self, write: Write, bodies: int, journal_name: Callable[[JournalId], str]
    ) -> None:
        """Raises ProtocolError if the producer may not write this now."""
        who = format_producer(write.producer)
        if self.prepared:
            raise ProtocolError(
                f"publisher {who} has already prepared its transaction",
                do="write everything before you prepare",
            )
        if bodies != len(write.docs):
            raise ProtocolError(
                f"publisher {who} sent {bodies} bodies for {len(write.docs)} frames",
                do="send one body with each frame",
            )
        last_clock = self._check_frames(write, journal_name)
        if write.commit and len(write.commit.payload) > PAYLOAD_BYTES_MAX:
            raise ProtocolError(
                f"publisher {who} commits with a payload of {len(write.commit.payload)} bytes",
                do=f"keep it below {PAYLOAD_BYTES_MAX}",
            )
        if write.commit and not last_clock < write.commit.clock <= CLOCK_MAX:
            raise ProtocolError(
                f"publisher {who} acknowledges clock {write.commit.clock} after writing"
                f" clock {last_clock}",
                do="clocks of a producer must ascend",
            )

    def _check_frames(self, write: Write, journal_name: Callable[[JournalId], str]) -> Clock:
        """Returns the clock of the last document."""
        who = format_producer(write.producer)
        last_clock = self.last_clock
        opened: set[JournalId] = set()
        for head in write.docs:
            fits = (
                1 <= head.documents <= records.COUNT_MAX
                and 0 <= head.schema <= records.SCHEMA_MAX
                and last_clock < head.clock <= CLOCK_MAX - head.documents
            )
            if not fits or head.flags is Flags.ACK:
                raise ProtocolError(
                    f"publisher {who} wrote {head.documents} documents of clock {head.clock} and"
                    f" schema {head.schema} after clock {last_clock}"
                    f" to {journal_name(head.journal)}",
                    do="clocks of a producer must ascend, and a frame must hold documents",
                )
            if head.flags is Flags.CONTINUE:
                opened.add(head.journal)
            elif head.journal in opened or head.journal in self.spans:
                raise ProtocolError(
                    f"publisher {who} wrote outside its open transaction"
                    f" to {journal_name(head.journal)}",
                    do="commit or roll back first",
                )
            last_clock = Clock(head.clock + head.documents - 1)
        return last_clock

    def validate(self, producer: Producer) -> None:
        """Assert what holds of a producer by itself, once its owner has rolled back old spans."""
        who = format_producer(producer)
        assert self.last_clock <= CLOCK_MAX, f"{who}: clock {self.last_clock}"
        assert all(clock <= self.last_clock for _, clock in self.commits), f"{who}: {self.commits}"
        assert (self.client == NOBODY) == (self.holder == NO_HOLDER), f"{who}: half a lease"
        if self.client == NOBODY:
            left = self.spans or self.transaction or self.prepared or self.lost
            assert not left, f"{who}: nobody holds it, and {left} is left of a transaction"
        if self.prepared:
            assert (self.prepared.producer, self.prepared.holder) == (producer, self.holder), who
            assert self.prepared.clock > self.last_clock, f"{who} wrote after it had prepared"
