"""Operators: what a stage does to rows, and how it travels to the workers that do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import cloudpickle
import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, UsageError
from headrace.journal.documents.schema import parse_schema
from headrace.pipeline.calls.answer import Answer, CallContext, current_call
from headrace.pipeline.calls.bodies import ROW_KINDS, Kind, make_body
from headrace.pipeline.calls.call_executor import call_executor
from headrace.pipeline.calls.call_results import one_line
from headrace.pipeline.calls.runner import CallRunner
from headrace.pipeline.contract import CallTerms, InDoubtPolicy, OnError, OperatorContext
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.rate_limit.state import RateLimitSpec
from headrace.plan.source_hash import source_hash

__all__ = [
    "Answer",
    "CallContext",
    "Operator",
    "OperatorSpec",
    "current_call",
    "operator_spec",
]

Cost = float | Callable[[Any], float]

ROWS_PER_CALL = 100
"""The rows of a call of a batch operator that declares nothing else."""


class Operator:
    """The base of operators that are set up once in each worker.

        class Caption(hr.Operator):
            def setup(self): self.model = load()
            def process(self, batch): return batch.append_column("caption", self.model(batch))

    `process` takes a RecordBatch and returns a RecordBatch, a Table, a pandas DataFrame or a dict
    of columns, with a row for each row. Each method may be `async def`; if `process` is, several
    calls run at once in one event loop, and no method may block it.
    """

    version: str = ""
    """Identifies what the operator does. If it is empty, the source of the class does."""
    schema: pa.Schema | str | None = None
    """What `process` returns, as an Arrow schema or DDL. None takes what comes."""

    def setup(self) -> Any:
        """Prepare for calls. It runs in the thread, or the event loop, that makes them."""

    def process(self, batch: pa.RecordBatch) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no process method")

    def close(self) -> Any:
        """Free what `setup` took. It does not run if the process is killed."""

    def expected_tokens(self, batch: pa.RecordBatch) -> int:
        """Return the tokens that a call will use, for a rate limit by tokens."""
        return 0


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """An operator and how to call it. It implements `contract.OperatorSpec`."""

    kind: Kind
    target: Any
    """A function, an operator, or a class of operators."""
    schema: pa.Schema | None = None
    version: str = ""
    batch_size: int = ROWS_PER_CALL
    """The rows of a call of `filter` and `map_batches`."""
    concurrency: int = 1
    """Calls that one worker makes at once: coroutines of an `async def`, else threads."""
    timeout_s: float | None = None
    """For one attempt of one call."""
    retries: Retries = field(default_factory=lambda: Retries(attempts_max=3))
    on_error: OnError = "fail"
    same_rows: bool = True
    """False if `map_batches` may return more or fewer rows than it gets."""
    expensive: bool = False
    """True if calls are recorded in the ledger and never repeated."""
    cost: Cost | None = None
    """Of one call: a number, or a function of what the call returned.

    That is the row for `map`, and the table of rows for the others. None if the operator returns an
    `Answer` with its cost, or if calls cost nothing.
    """
    in_doubt: InDoubtPolicy = "resend"
    reuse_equal: bool = False
    """True if rows with equal values are paid for once."""
    budget: float | None = None
    """The stage pauses before a call that may exceed it."""
    rate_limit: RateLimitSpec | None = None
    """All workers share it, also with other stages that give the same name."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "concurrency"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"{name} must be at least 1, got {value}", do=f"raise {name}")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise UsageError(
                f"timeout_s must be more than 0, got {self.timeout_s:g}",
                do="leave it out to wait for ever",
            )
        for name, choices in (
            ("in_doubt", get_args(InDoubtPolicy)),
            ("on_error", get_args(OnError)),
        ):
            if (value := getattr(self, name)) not in choices:
                raise UsageError(
                    f"{name} is {value!r}", do=f"use one of {', '.join(map(repr, choices))}"
                )
        if self.budget is not None and not self.expensive:
            raise UsageError(
                f"a stage has a budget of {self.budget:g}, and its calls are not recorded",
                do="declare expensive=True, or leave out the budget",
            )
        if not callable(self.target) and not hasattr(self.target, "process"):
            raise UsageError(
                f"{self.target!r} is no operator",
                do="give a function, or an object or a class with a process method",
            )

    @property
    def rows_per_call(self) -> int:
        if self.kind not in ROW_KINDS:
            return self.batch_size
        # Where a call matters, it is one row. Other functions of rows spare the switch of threads.
        is_alone = self.expensive or self.concurrency > 1 or self.timeout_s or self.rate_limit
        return 1 if is_alone else self.batch_size

    @property
    def rate_limit_name(self) -> str:
        return self.rate_limit.name if self.rate_limit else ""

    def expected_tokens(self, batch: pa.RecordBatch) -> int:
        expected = getattr(self.target, "expected_tokens", None)
        return expected(batch) if expected and not isinstance(self.target, type) else 0

    def cost_of(self, answer: Answer) -> float:
        if answer.cost is not None:
            return float(answer.cost() if callable(answer.cost) else answer.cost)
        if not callable(self.cost):
            return float(self.cost or 0.0)
        is_row = self.kind == "map" and answer.rows.num_rows == 1
        return float(self.cost(answer.rows.to_pylist()[0] if is_row else answer.rows))

    @property
    def terms(self) -> CallTerms:
        return CallTerms(
            in_doubt=self.in_doubt,
            reuse_equal=self.reuse_equal,
            cost=None if callable(self.cost) else self.cost,
            budget=self.budget,
        )

    def fingerprint(self) -> str:
        what = self.version or getattr(self.target, "version", "") or source_hash(self.target)
        # The calls of a unit are numbered, so their size belongs to what is recorded.
        size = self.rows_per_call if self.expensive or self.kind not in ROW_KINDS else 0
        schema = self.schema.to_string() if self.schema is not None else ""
        return source_hash((what, self.kind, size, self.same_rows, schema))

    async def open(self, context: OperatorContext) -> CallRunner:
        """Set the operator up, in the worker that is to use it."""
        if self.expensive and context.ledger:
            terms = msgspec.structs.replace(self.terms, name=context.stage)
            await context.ledger.declare(context.ledger_stage or context.stage, terms)
        # Each thread gets a copy, because set-up changes an operator.
        pickled = cloudpickle.dumps(self.target)
        make = partial(_make_body, pickled, self.kind, self.schema, self.same_rows)
        try:
            executor = call_executor(make, f"headrace-{context.stage}")
            await executor.open()
        except asyncio.CancelledError:
            raise
        except HeadraceError as error:
            raise type(error)(f"stage {context.stage!r}: {error.what}", do=error.do) from error
        except Exception as error:
            raise HeadraceError(
                f"stage {context.stage!r}: the set-up of its operator failed: {one_line(error)}",
                do="mend the operator's setup and run again",
            ) from error
        return CallRunner(self, context, executor)


def _make_body(pickled: bytes, kind: Kind, schema: pa.Schema | None, same_rows: bool) -> Any:
    return make_body(kind, cloudpickle.loads(pickled), schema, same_rows)


def operator_spec(
    kind: Kind, target: Any, *, schema: pa.Schema | str | None = None, **options: Any
) -> OperatorSpec:
    """Return the spec of an operator. `options` are the fields of OperatorSpec.

    `retries` may be a number: then every error is tried again so many times. What a ready
    operator, such as `http`, declares for itself are the defaults.
    """
    if known := set(options) - set(OperatorSpec.__dataclass_fields__):
        raise UsageError(
            f"{', '.join(sorted(known))} is no option of an operator",
            do=f"choose from {', '.join(sorted(OperatorSpec.__dataclass_fields__))}",
        )
    retries = options.get("retries")
    if isinstance(retries, int):
        options["retries"] = Retries(attempts_max=retries + 1, any_error=True)
    declared = schema if schema is not None else getattr(target, "schema", None)
    parsed = parse_schema(declared) if declared is not None else None
    defaults = getattr(target, "spec_defaults", None)
    if defaults is not None and not isinstance(target, type):
        options = {**defaults(), **options}
        kind = "map_batches"
    spec = OperatorSpec(kind=kind, target=target, schema=parsed, **options)
    try:
        cloudpickle.dumps(spec)
    except Exception as error:
        raise UsageError(
            f"{target!r} cannot travel to workers: {one_line(error)}",
            do="make in setup what cannot be pickled, such as connections and locks",
        ) from error
    return spec
