"""What workers and the master tell each other.

A conversation belongs to one worker, and is its lease: when it ends, the worker's claims are free.
Every request has one answer.
"""

from __future__ import annotations

import msgspec

from headrace.pipeline.master.inputs import StageInput

CONTROL = "pipeline-control"
"""The name of the service."""


class PoisonRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that killed the process of a worker."""

    row: int
    error: str


class ClaimWork(msgspec.Struct, frozen=True, tag="claim"):
    """The right and the duty to process messages of an input."""

    number: int
    input: StageInput
    position: int
    """Fetch from here on."""
    end: int
    """No message at or after this offset is known to the master."""
    messages_max: int
    """Process at most so many messages before you report."""
    isolate: bool = False
    """True if the first message killed workers: process it alone, and probe its rows."""
    poison: tuple[PoisonRow, ...] = ()
    """Rows of the first message to leave out."""


class NoWork(msgspec.Struct, frozen=True, tag="no-work"):
    """Nothing to do now: ask again."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The worker is to end."""

    why: str = ""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The master knows. `messages_max` is 0 if the claim is over."""

    messages_max: int = 0


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A worker begins. Answer: Go, or Leave."""

    worker: str
    stage: str


class AskWork(msgspec.Struct, frozen=True, tag="ask-work"):
    """Answer: ClaimWork, NoWork or Leave."""

    timeout_s: float


class AdvanceClaim(msgspec.Struct, frozen=True, tag="advance", kw_only=True):
    """The messages below `position` are processed, and what they made is kept. Answer: Go."""

    claim: int
    position: int
    messages: int = 0
    """Messages that were processed since the last report."""
    produced: int = 0
    end: int = 0
    """No message of the input's output is at or after this offset; 0 if none was produced."""
    rows_in: int = 0
    rows_out: int = 0
    dead: int = 0
    calls: int = 0
    reused: int = 0
    cost: float = 0.0
    is_empty: bool = False
    """True if a fetch found nothing at or after `position`."""


class ReleaseWork(msgspec.Struct, frozen=True, tag="release"):
    """The worker gives a claim back. Answer: Go."""

    claim: int


class Probing(msgspec.Struct, frozen=True, tag="probing"):
    """The worker is about to process these rows of the claim's first message. Answer: Go."""

    claim: int
    unit: str
    rows: tuple[int, ...]


class FailWork(msgspec.Struct, frozen=True, tag="fail"):
    """The worker cannot go on, and no other could. Answer: Leave."""

    error: tuple[str, str, str]
    claim: int | None = None


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """The budget is spent. Answer: Go; the worker's claim is over."""

    why: str


Request = Join | AskWork | AdvanceClaim | ReleaseWork | Probing | FailWork | Pause
Answer = ClaimWork | NoWork | Leave | Go

requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
