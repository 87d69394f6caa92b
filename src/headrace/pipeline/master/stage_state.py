"""How far one stage is: its inputs, who works on them, and what killed workers. Pure.

An input is in one of these states:

    waiting     no message is known at or after its position
    ready       there is work, and nobody has a claim
    claimed     one worker has a claim

A worker that is lost with a claim counts against the message at the input's position. After
DEATHS_BEFORE_ISOLATION of them the message is processed alone, and the worker says which rows it is
about to process. Rows on which two workers are lost then are poison: one may be lost for another
reason, such as the end of its machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.errors import REPORT, HeadraceError, ProtocolError, UnitError
from headrace.pipeline.contract import OnError
from headrace.pipeline.master.inputs import StageInput
from headrace.pipeline.master.messages import AdvanceClaim, ClaimWork, PoisonRow

DEATHS_BEFORE_ISOLATION = 2
DEATHS_MAX = 10
"""The run fails if so many workers are lost on one message and none of its rows is to blame."""


@dataclass(slots=True)
class InputState:
    """One input. Offsets are those of the partition that it reads."""

    input: StageInput
    position: int
    """Everything below is processed, and what it made is kept."""
    end: int
    """No message at or after this offset is known. There need not be one below it."""
    unread: int = 0
    """Messages of a memory topic that are there and not processed."""
    claim: ClaimWork | None = None
    worker: str = ""
    served: int = 0
    """The number of the claim that was granted last."""
    deaths: int = 0
    probing: tuple[str, tuple[int, ...]] | None = None
    suspects: set[tuple[int, ...]] = field(default_factory=set)
    """Rows on which one worker was lost."""
    poison: tuple[PoisonRow, ...] = ()

    @property
    def has_work(self) -> bool:
        return self.position < self.end

    def move(self, position: int) -> None:
        if position > self.position:
            self.deaths, self.probing, self.poison = 0, None, ()
            self.suspects.clear()
        self.position = position
        # The upstream worker may have produced what it has not reported yet.
        self.end = max(self.end, position)

    def validate(self) -> None:
        assert 0 <= self.position <= self.end, self
        assert (self.claim is None) == (self.worker == ""), self
        assert self.unread >= 0, self
        assert self.deaths <= DEATHS_MAX, self
        assert self.probing is None or self.claim is not None, self


@dataclass(slots=True)
class StageCounts:
    """What a stage has done in this run."""

    messages: int = 0
    rows_in: int = 0
    rows_out: int = 0
    dead: int = 0
    calls: int = 0
    reused: int = 0
    cost: float = 0.0
    deaths: int = 0

    def add(self, report: AdvanceClaim) -> None:
        self.messages += report.messages
        self.rows_in += report.rows_in
        self.rows_out += report.rows_out
        self.dead += report.dead
        self.calls += report.calls
        self.reused += report.reused
        self.cost += report.cost


@dataclass(slots=True)
class StageState:
    """One stage that has workers."""

    stage: str
    inputs: list[InputState]
    batch_size: int = 100
    on_error: OnError = "fail"
    counts: StageCounts = field(default_factory=StageCounts)
    takes_all: bool = False
    """True if the stage has no workers: its result is computed from all rows at once."""
    is_sealed: bool = False
    """True if that result is kept, and never computed again."""

    @property
    def has_claims(self) -> bool:
        return any(input.claim for input in self.inputs)

    @property
    def has_work(self) -> bool:
        is_due = self.takes_all and not self.is_sealed
        return is_due or any(input.has_work for input in self.inputs)

    def seal(self, ends: Sequence[int]) -> None:
        """The result of all messages below `ends`, by input, is kept."""
        for input, end in zip(self.inputs, ends, strict=True):
            if end < input.end:
                raise ProtocolError(
                    f"stage {self.stage!r} left out what is between {end} and {input.end} of input"
                    f" {input.input.number}",
                    do=REPORT,
                )
            input.move(end)
        self.is_sealed = True

    def grant(self, worker: str, number: int, room: Callable[[int], int]) -> ClaimWork | None:
        """Claim the input that was served longest ago; `room(input)` limits what it may produce."""
        ready = [input for input in self.inputs if input.claim is None and input.has_work]
        for input in sorted(ready, key=lambda each: each.served):
            if (messages_max := self._messages_max(input, room)) > 0:
                isolate = input.deaths >= DEATHS_BEFORE_ISOLATION or bool(input.poison)
                input.claim = ClaimWork(
                    number,
                    input.input,
                    input.position,
                    input.end,
                    messages_max,
                    isolate,
                    input.poison,
                )
                input.worker, input.served = worker, number
                return input.claim
        return None

    def _messages_max(self, input: InputState, room: Callable[[int], int]) -> int:
        isolate = input.deaths >= DEATHS_BEFORE_ISOLATION or input.poison
        return min(1 if isolate else self.batch_size, room(input.input.number))

    def advance(self, worker: str, report: AdvanceClaim, room: Callable[[int], int]) -> int:
        """Take a report. Return how many messages the worker may process next; 0 ends its claim."""
        input = self._claimed(worker, report.claim)
        claim = input.claim
        assert claim is not None
        if report.position < input.position:
            raise ProtocolError(
                f"worker {worker} went back from {input.position} to {report.position} in input"
                f" {input.input.number} of stage {self.stage!r}",
                do=REPORT,
            )
        is_same_message = report.position == input.position
        input.move(report.position)
        input.unread = max(input.unread - report.messages, 0)
        self.counts.add(report)
        if report.is_empty and input.end == claim.end:
            # Nothing was produced since the claim, so the end was only an upper bound.
            input.end = input.position
        more = self._messages_max(input, room) if input.has_work else 0
        if more <= 0 or (claim.isolate and is_same_message):
            self._free(input)
            return 0
        input.claim = ClaimWork(claim.number, input.input, input.position, input.end, more)
        return more

    def release(self, worker: str, number: int) -> None:
        self._free(self._claimed(worker, number))

    def probe(self, worker: str, number: int, unit: str, rows: tuple[int, ...]) -> None:
        """The worker is about to process these rows of the message at the input's position."""
        input = self._claimed(worker, number)
        input.probing = (unit, rows) if rows else None

    def lose(self, worker: str) -> HeadraceError | None:
        """A worker is gone. Return the error that ends the run, if it killed itself for good."""
        fatal: HeadraceError | None = None
        for input in self.inputs:
            if input.worker == worker:
                self.counts.deaths += 1
                fatal = fatal or self._count_death(input)
                self._free(input)
        return fatal

    def _count_death(self, input: InputState) -> HeadraceError | None:
        if input.probing is None:
            input.deaths += 1
            if input.deaths < DEATHS_MAX:
                return None
            return UnitError(
                f"stage {self.stage!r} lost {input.deaths} workers in a row on the message at"
                f" {input.position} of {input.input.topic}, partition {input.input.partition}",
                do="see the logs of the workers; they may need more memory",
            )
        unit, rows = input.probing
        if rows not in input.suspects:
            input.suspects.add(rows)
            return None
        named = ", ".join(map(str, rows))
        error = f"the worker's process ended while it processed row {named}"
        if self.on_error == "fail":
            return UnitError(
                f"stage {self.stage!r}, unit {unit}: {error}",
                do='mend the operator, or declare on_error="dead_letter"',
            )
        input.poison += tuple(PoisonRow(row, error) for row in rows)
        return None

    def extend(self, input: int, end: int, messages: int) -> None:
        """The upstream stage has produced messages below `end`."""
        found = self.inputs[input]
        found.end = max(found.end, end)
        found.unread += messages

    def claims(self) -> Iterable[tuple[str, ClaimWork]]:
        return [(input.worker, input.claim) for input in self.inputs if input.claim]

    def _claimed(self, worker: str, number: int) -> InputState:
        for input in self.inputs:
            if input.claim and input.claim.number == number and input.worker == worker:
                return input
        raise ProtocolError(
            f"worker {worker} has no claim {number} in stage {self.stage!r}", do=REPORT
        )

    def _free(self, input: InputState) -> None:
        input.claim, input.worker, input.probing = None, "", None

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        for number, input in enumerate(self.inputs):
            input.validate()
            assert input.input.number == number
        assert not (self.takes_all and self.has_claims), self.stage
        assert self.takes_all or not self.is_sealed, self.stage
        numbers = [claim.number for _, claim in self.claims()]
        assert len(set(numbers)) == len(numbers), numbers
