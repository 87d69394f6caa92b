"""The state of a run: every stage, every worker, and when the run is over. Pure.

A stage is *over* when nothing more will come to it and nothing that came is left. The run is done
when all stages are over. It may end before:

    fail      a unit failed, or a worker could not go on: all workers leave
    stop      somebody asked: workers leave when they report
    pause     the budget of a stage is spent: it and the stages above it get no more claims, and
              the stages below it finish what is there

A stage that takes all rows at once has no workers. It is *due* when the stages above it are
complete, and begins then; its result is sealed once. If one above it is paused or stops, it is not
due in this run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from headrace.errors import REPORT, ChangedError, HeadraceError, ProtocolError
from headrace.pipeline.master.messages import AdvanceClaim, ClaimWork, Go, Leave, NoWork
from headrace.pipeline.master.stage_state import InputState, StageState

UNREAD_MAX = 1000
"""An input on memory gets no more messages while so many are not processed."""

IDLE_ASKS_MAX = 5
"""A worker leaves if it found no work so often in a row, and a stage with work has no worker."""

Outcome = Literal["running", "done", "paused", "stopped", "failed"]


class TruncateTopic(NamedTuple):
    """Remove messages of a memory topic that every stage has processed."""

    topic: str
    partition: int
    offset: int


class SealReport(NamedTuple):
    """The result of a stage that takes all rows at once is kept, and so are its messages."""

    ends: Sequence[int]
    """The offsets, by input, below which everything is part of the result."""
    output_ends: Sequence[int]
    """The offsets, by partition, below which all messages of the output topic are."""
    messages: int = 0
    rows_in: int = 0
    rows_out: int = 0


class JobState:
    """Events are method calls. They return answers for the worker, and effects to carry out."""

    def __init__(
        self,
        stages: Sequence[StageState],
        upstreams: Mapping[str, Sequence[str]],
        *,
        unread_max: int = UNREAD_MAX,
    ) -> None:
        """`stages` have workers, each after its upstreams; others in `upstreams` are sources."""
        self.stages = {stage.stage: stage for stage in stages}
        self.error: HeadraceError | None = None
        self._upstreams = {name: tuple(upstreams[name]) for name in self.stages}
        self._unread_max = unread_max
        self._workers: dict[str, str] = {}
        self._idle: dict[str, int] = {}
        """How often in a row each worker found no work while another stage had no worker."""
        self._paused: dict[str, str] = {}
        self._is_stopping = False
        self._in_turn: frozenset[str] = frozenset()
        self._claims = 0
        self._readers: dict[tuple[str, int], list[InputState]] = {}
        """The inputs that read the output of a stage's input."""
        for stage in stages:
            for input in stage.inputs:
                self._readers.setdefault((input.input.upstream, input.input.partition), []).append(
                    input
                )

    # -- what workers ask ------------------------------------------------------------------

    def join(self, worker: str, stage: str) -> Go | Leave:
        if worker in self._workers:
            raise ProtocolError(f"worker {worker} has joined already", do=REPORT)
        if stage not in self.stages:
            raise ProtocolError(
                f"worker {worker} is of stage {stage!r}, which is unknown", do=REPORT
            )
        if self.stages[stage].takes_all:
            raise ProtocolError(
                f"worker {worker} is of stage {stage!r}, which has no workers", do=REPORT
            )
        if self.is_over(stage):
            return Leave(self._why(stage))
        self._workers[worker] = stage
        return Go()

    def ask(self, worker: str) -> ClaimWork | NoWork | Leave:
        stage = self._workers[worker]
        if self.is_over(stage) or self._is_ending:
            return Leave(self._why(stage))
        if stage not in self._halted:
            claim = self.stages[stage].grant(
                worker, self._claims + 1, lambda n: self._room(stage, n)
            )
            if claim:
                self._claims += 1
                self._idle.pop(worker, None)
                return claim
        return Leave("its slot is needed") if stage in self._in_turn else NoWork()

    def time_out(self, worker: str) -> NoWork | Leave:
        """The worker has waited for as long as it asked to.

        Slots may be fewer than they were, as after the loss of a machine. If the worker waits for
        one that has no slot, it gives its own back.
        """
        stage = self._workers[worker]
        if not any(self._is_starved(other) for other in self.stages if other != stage):
            self._idle.pop(worker, None)
            return NoWork()
        self._idle[worker] = self._idle.get(worker, 0) + 1
        return Leave("its slot is needed") if self._idle[worker] >= IDLE_ASKS_MAX else NoWork()

    def _is_starved(self, stage: str) -> bool:
        """True if the stage has work, and no worker."""
        state = self.stages[stage]
        if state.takes_all or not state.has_work or stage in self._halted:
            return False
        return stage not in self._workers.values()

    def advance(self, worker: str, report: AdvanceClaim) -> tuple[Go | Leave, list[TruncateTopic]]:
        name = self._workers[worker]
        stage = self.stages[name]
        input = next(each for each in stage.inputs if each.worker == worker)
        if report.end:
            for reader in self._readers.get((name, input.input.number), ()):
                reader_stage = self.stages[reader.input.stage]
                reader_stage.extend(reader.input.number, report.end, report.produced)
        more = stage.advance(worker, report, lambda n: self._room(name, n))
        effects = [] if input.input.is_input_durable else self._truncation(input)
        if self._is_ending or name in self._halted:
            if more:
                stage.release(worker, report.claim)
            return (Leave(self._why(name)) if self._is_ending else Go()), effects
        return Go(more), effects

    def release(self, worker: str, claim: int) -> Go:
        self.stages[self._workers[worker]].release(worker, claim)
        return Go()

    def probe(self, worker: str, claim: int, unit: str, rows: tuple[int, ...]) -> Go:
        self.stages[self._workers[worker]].probe(worker, claim, unit, rows)
        return Go()

    def pause(self, worker: str, why: str) -> Go:
        """The ledger lets the worker's stage make no more calls. Its claim is over."""
        stage = self._workers[worker]
        self._release_all(worker, stage)
        # The ledger of a run that stops or fails refuses calls whatever the budget is.
        if not self._is_ending:
            self._paused.setdefault(stage, why)
        return Go()

    def fail(self, error: HeadraceError) -> Leave:
        self.error = self.error or error
        return Leave(str(self.error))

    # -- what the actor tells ----------------------------------------------------------------

    def leave(self, worker: str) -> None:
        """A worker ended as it was told to; its claims are free."""
        self._idle.pop(worker, None)
        if stage := self._workers.pop(worker, None):
            self._release_all(worker, stage)

    def _release_all(self, worker: str, stage: str) -> None:
        for owner, claim in self.stages[stage].claims():
            if owner == worker:
                self.stages[stage].release(worker, claim.number)

    def lose(self, worker: str) -> None:
        """A worker is gone, and nobody knows why."""
        self._idle.pop(worker, None)
        if stage := self._workers.pop(worker, None):
            fatal = self.stages[stage].lose(worker)
            if fatal and not self._is_ending:
                self.fail(fatal)

    def stop(self) -> None:
        self._is_stopping = True

    def run_in_turn(self, stages: Collection[str]) -> None:
        """Slots are few: their workers leave if they find no work, or no room for their output."""
        self._in_turn = frozenset(stages)

    # -- stages that take all rows at once ---------------------------------------------------

    def is_due(self, stage: str) -> bool:
        """True if the stage is to begin now.

        If its result is sealed and there is more to read, it would leave that out for ever: the
        run fails.
        """
        state = self.stages[stage]
        if not state.takes_all or not state.has_work or self._is_ending or stage in self._halted:
            return False
        if not all(map(self.is_complete, self._upstreams[stage])):
            return False
        if state.is_sealed:
            self.fail(
                ChangedError(
                    f"the input of stage {stage!r} has grown since the stage was computed from all"
                    " of it",
                    do="run with on_change='recompute', which computes it and all below it again",
                )
            )
        return not state.is_sealed

    def seal(self, stage: str, report: SealReport) -> None:
        state = self.stages[stage]
        if not state.takes_all or state.is_sealed:
            raise ProtocolError(f"stage {stage!r} cannot be sealed", do=REPORT)
        state.seal(report.ends)
        state.counts.messages += report.messages
        state.counts.rows_in += report.rows_in
        state.counts.rows_out += report.rows_out
        for partition, end in enumerate(report.output_ends):
            for reader in self._readers.get((stage, partition), ()):
                self.stages[reader.input.stage].extend(reader.input.number, end, 0)

    # -- how it stands -----------------------------------------------------------------------

    @property
    def workers(self) -> Mapping[str, str]:
        """The stage of each worker."""
        return self._workers

    @property
    def paused(self) -> Mapping[str, str]:
        """Why each paused stage is paused."""
        return self._paused

    @property
    def outcome(self) -> Outcome:
        if self.error:
            return "failed"
        if not all(map(self.is_over, self.stages)):
            return "running"
        if self._is_stopping and not all(map(self.is_complete, self.stages)):
            return "stopped"
        return "paused" if self._paused else "done"

    @property
    def _is_ending(self) -> bool:
        return self.error is not None or self._is_stopping

    def is_complete(self, stage: str) -> bool:
        """True if the stage has processed all that it will ever get."""
        if stage not in self.stages:
            return True
        state = self.stages[stage]
        if state.has_claims or state.has_work or stage in self._paused:
            return False
        return all(map(self.is_complete, self._upstreams[stage]))

    def is_over(self, stage: str) -> bool:
        """True if workers of the stage have nothing more to do in this run."""
        if stage not in self.stages:
            return True
        state = self.stages[stage]
        if state.has_claims:
            return False
        if self._is_ending or stage in self._halted:
            return True
        upstreams = self._upstreams[stage]
        if state.takes_all and not all(map(self.is_complete, upstreams)):
            return all(map(self.is_over, upstreams))
        return not state.has_work and all(map(self.is_over, upstreams))

    @property
    def _halted(self) -> set[str]:
        """The paused stages and those above them."""
        halted = set(self._paused)
        for name in reversed(self.stages):
            if name in halted:
                halted.update(each for each in self._upstreams[name] if each in self.stages)
        return halted

    def _why(self, stage: str) -> str:
        if self.error:
            return str(self.error)
        if self._is_stopping:
            return "the run is stopping"
        return self._paused.get(stage, "the stage is over")

    def _room(self, stage: str, input: int) -> int:
        """How many messages the input may produce."""
        readers = [
            each
            for each in self._readers.get((stage, input), ())
            if not each.input.is_input_durable
        ]
        return self._unread_max - max((each.unread for each in readers), default=0)

    def _truncation(self, input: InputState) -> list[TruncateTopic]:
        """Return what nobody needs of the memory topic that the input reads."""
        readers = self._readers[input.input.upstream, input.input.partition]
        offset = min(each.position for each in readers)
        return [TruncateTopic(input.input.topic, input.input.partition, offset)] if offset else []

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        for name, stage in self.stages.items():
            stage.validate()
            for worker, claim in stage.claims():
                assert self._workers.get(worker) == name, (worker, claim)
            assert not (self.is_complete(name) and stage.has_claims)
        claimed = [worker for stage in self.stages.values() for worker, _ in stage.claims()]
        assert len(set(claimed)) == len(claimed), claimed
