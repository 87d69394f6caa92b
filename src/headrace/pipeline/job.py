"""A job: stages, what each reads from, and what identifies them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import msgspec
import pyarrow as pa

from headrace.errors import UsageError
from headrace.pipeline.contract import StageOperator
from headrace.pipeline.ledger.totals import to_nanos
from headrace.pipeline.operators.shuffles import ShuffleOperator
from headrace.pipeline.source.source_units import digest
from headrace.pipeline.source.sources import UnitSource
from headrace.plan.unified_columns import unify_columns

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage runs. Nothing here changes its results."""

    queue_backend: Literal["local", "memory"] = "local"
    """Where its output topic lives. A stage on "memory" runs again after a crash."""
    batch_size: int = 100
    """A worker fetches at most so many messages at once."""
    fetch_timeout_ms: int = 1000
    """A worker without work asks again after this long."""
    enable_persistence: bool = True
    """False is another way to say queue_backend="memory"."""
    workers: int = 1
    resources: dict[str, float] = {}
    """What each worker needs, such as {"gpu": 1}."""

    @property
    def is_durable(self) -> bool:
        return self.queue_backend == "local" and self.enable_persistence

    def check(self, stage: str) -> None:
        for name in ("batch_size", "fetch_timeout_ms", "workers"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(
                    f"stage {stage!r}: {name} must be at least 1, got {value}",
                    do=f"give {name} a larger number",
                )
        if self.queue_backend not in ("local", "memory"):
            raise UsageError(
                f"stage {stage!r} has the queue backend {self.queue_backend!r}",
                do='use "local" or "memory"',
            )


@dataclass(frozen=True)
class Stage:
    """A source, or an operator that processes what its upstream stages produce."""

    stage_id: str
    operator: StageOperator | UnitSource
    config: StageConfig = field(default_factory=StageConfig)

    @property
    def source(self) -> UnitSource | None:
        return self.operator if isinstance(self.operator, UnitSource) else None

    @property
    def takes_all(self) -> bool:
        """True if the stage begins when its input is complete, and gets all rows at once."""
        return getattr(self.operator, "takes_all", False)

    @property
    def is_sink(self) -> bool:
        """True if the stage writes rows out, so that no stage reads them from it."""
        return getattr(self.operator, "is_sink", False)

    @property
    def shuffle(self) -> ShuffleOperator | None:
        """The operator of a stage that takes all rows at once and is run as a query."""
        return self.operator if isinstance(self.operator, ShuffleOperator) else None

    @property
    def spec(self) -> StageOperator:
        """The operator of a stage that is not a source."""
        assert not isinstance(self.operator, UnitSource)
        return self.operator


class Job:
    """Stages in the order in which they were added: each after those that it reads from."""

    def __init__(self, id: str, *, budget: float | None = None) -> None:
        """The stages make no call that may exceed the budget; None for no limit."""
        self.id = check_name("job", id)
        self.budget = budget
        if budget is not None:
            to_nanos(budget, f"the budget of job {id!r}")
        self.stages: dict[str, Stage] = {}
        self._upstreams: dict[str, tuple[str, ...]] = {}

    def add_stage(self, stage: Stage, upstream_stages: Sequence[str] = ()) -> Self:
        """Add a stage that reads all that its upstream stages produce."""
        name = check_name("stage", stage.stage_id)
        stage.config.check(name)
        if name in self.stages:
            raise UsageError(f"job {self.id!r} has two stages {name!r}", do="rename one of them")
        for upstream in upstream_stages:
            if upstream not in self.stages:
                raise UsageError(
                    f"stage {name!r} reads from {upstream!r}, which job {self.id!r} does not have",
                    do="add the upstream stage first",
                )
            if self.stages[upstream].is_sink:
                raise UsageError(
                    f"stage {name!r} reads from the sink {upstream!r}",
                    do="name a stage that the sink reads from",
                )
        if len(set(upstream_stages)) < len(upstream_stages):
            raise UsageError(f"stage {name!r} names an upstream twice", do="name each once")
        if stage.source and upstream_stages:
            raise UsageError(f"stage {name!r} is a source and reads from another", do="split it")
        if not stage.source and not upstream_stages:
            raise UsageError(f"stage {name!r} reads from nothing", do="name its upstream stages")
        self.stages[name] = stage
        self._upstreams[name] = tuple(upstream_stages)
        return self

    def upstreams(self, stage: str) -> tuple[str, ...]:
        return self._upstreams[stage]

    def downstreams(self, stage: str) -> list[str]:
        return [each for each, upstreams in self._upstreams.items() if stage in upstreams]

    @property
    def operators(self) -> list[Stage]:
        """The stages that have workers."""
        return [stage for stage in self.stages.values() if stage.source is None]

    @property
    def sources(self) -> list[Stage]:
        return [stage for stage in self.stages.values() if stage.source is not None]

    def is_durable(self, stage: str) -> bool:
        found = self.stages[stage]
        return found.source is not None or found.config.is_durable

    def validate(self) -> None:
        """Raise UsageError if the job cannot run."""
        if not self.operators:
            raise UsageError(f"job {self.id!r} has no stage but sources", do="add a stage")
        if self.budget is not None and not any(each.spec.expensive for each in self.operators):
            raise UsageError(
                f"job {self.id!r} has a budget, and none of its stages is expensive",
                do="declare expensive=True for the stages that cost something",
            )
        for stage in self.stages.values():
            if stage.takes_all:
                self._check_takes_all(stage)
            if stage.shuffle:
                self.columns(stage.stage_id)
            is_read = bool(self.downstreams(stage.stage_id))
            if not is_read and stage.source:
                raise UsageError(f"nobody reads source {stage.stage_id!r}", do="remove it")
            if not is_read and not stage.config.is_durable:
                raise UsageError(
                    f"stage {stage.stage_id!r} is the last one, and its output is on memory",
                    do='give it queue_backend="local", or add a sink',
                )
            if stage.source or stage.config.is_durable:
                continue
            if stage.spec.on_error == "dead_letter":
                raise UsageError(
                    f"stage {stage.stage_id!r} keeps dead letters, and its output is on memory",
                    do='give it queue_backend="local"',
                )
            if stage.spec.expensive:
                raise UsageError(
                    f"stage {stage.stage_id!r} is expensive, and its output is on memory",
                    do='give it queue_backend="local"',
                )

    def _check_takes_all(self, stage: Stage) -> None:
        on_memory = [each for each in self.upstreams(stage.stage_id) if not self.is_durable(each)]
        if not stage.config.is_durable:
            on_memory = [stage.stage_id]
        if on_memory:
            raise UsageError(
                f"stage {stage.stage_id!r} takes all rows at once, and the output of"
                f" {on_memory[0]!r} is on memory",
                do=f'give {on_memory[0]!r} queue_backend="local"',
            )
        phases = self.phases()
        for name in self.stages:
            late = [each for each in self.downstreams(name) if phases[each] > phases[name]]
            if late and not self.is_durable(name):
                raise UsageError(
                    f"stage {name!r} is on memory, and {late[0]!r}, which reads it, waits for"
                    f" {stage.stage_id!r}, which takes all rows at once",
                    do=f'give {name!r} queue_backend="local"',
                )

    def columns(self, *stages: str) -> pa.Schema | None:
        """Return the columns of what stages produce together; None if only a run shows them.

        Raises UsageError, which names stage, operator and column, for a shuffle that cannot run.
        """
        found: dict[str, pa.Schema | None] = {}
        for name in self.stages:
            found[name] = self._columns(name, [found[each] for each in self.upstreams(name)])
        return _unified([found[each] for each in stages])

    def _columns(self, stage: str, above: Sequence[pa.Schema | None]) -> pa.Schema | None:
        operator = self.stages[stage].operator
        try:
            if not isinstance(operator, ShuffleOperator):
                declared = getattr(operator, "schema", None)
                is_filter = declared is None and getattr(operator, "kind", "") == "filter"
                return _unified(above) if is_filter else declared
            if operator.sides == 1:
                return operator.columns([_unified(above)])
            if operator.sides != len(above):
                raise UsageError(
                    f"{operator} reads {operator.sides} stages, got {len(above)}",
                    do="name so many upstream stages",
                )
            return operator.columns(above)
        except UsageError as error:
            raise type(error)(f"stage {stage!r}: {error.what}", do=error.do) from error

    def phases(self) -> dict[str, int]:
        """Return the phase of each stage, from 0.

        A stage that takes all rows at once is in a later phase than those that it reads from, and
        those that read it are in a later one than itself.
        """
        found: dict[str, int] = {}
        for name, stage in self.stages.items():
            found[name] = max(
                (
                    found[each] + (stage.takes_all or self.stages[each].takes_all)
                    for each in self.upstreams(name)
                ),
                default=0,
            )
        return found

    def fingerprint(self, stage: str) -> str:
        """Identify what the results of a stage depend on, apart from its input.

        Whether it is durable belongs to it, because the offsets of other stages depend on that.
        """
        found = self.stages[stage]
        what = "source" if found.source else found.spec.fingerprint()
        return digest(what, str(self.is_durable(stage)), *self.upstreams(stage))

    def layout(self, stage: str) -> str:
        """Identify what the offsets of a stage, and of those below it, are offsets of."""
        return digest(str(self.is_durable(stage)), *self.upstreams(stage))


def _unified(schemas: Sequence[pa.Schema | None]) -> pa.Schema | None:
    known = [each for each in schemas if each is not None]
    return unify_columns(known) if known and len(known) == len(schemas) else None


def check_name(kind: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a {kind}",
            do="use up to 64 letters, digits, '_' and '-'",
        )
    return name
