"""Makes the calls of an operator for one unit after another: `OpenOperator` of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.errors import AccessError, HeadraceError, UnitError
from headrace.pipeline.calls.answer import Answer, CallContext, set_current_call
from headrace.pipeline.calls.bodies import RowBlame, is_foreseen
from headrace.pipeline.calls.call_executor import CallExecutor
from headrace.pipeline.calls.call_results import CallResult, concat, content_of, one_line
from headrace.pipeline.calls.claims import Claims, ClaimsAhead, FreeCalls
from headrace.pipeline.contract import (
    Claimed,
    ClaimStatus,
    DeadRow,
    OperatorContext,
    Processed,
    RecordedCall,
    UnitRows,
)

if TYPE_CHECKING:
    from headrace.pipeline.operators.operator import OperatorSpec

_MEND = 'mend the operator and run again, or keep failed rows with on_error="dead_letter"'


class OperatorCall(NamedTuple):
    """One call of a unit, by number; its rows by their numbers in the unit."""

    number: int
    rows: tuple[int, ...]


class CallFailedError(Exception):
    """All attempts of a call failed; its cause says why."""

    def __init__(self, attempts: int, in_doubt: bool) -> None:
        super().__init__(attempts)
        self.attempts = attempts
        self.in_doubt = in_doubt


class RecordedMeanwhileError(Exception):
    """A call in doubt has a result by now: whoever else was making it has recorded it."""

    def __init__(self, result: bytes) -> None:
        super().__init__()
        self.result = result


def plan_calls(
    rows: Sequence[int], rows_per_call: int, skip: frozenset[int]
) -> Iterator[OperatorCall]:
    """Split the rows of a unit into calls. The number of a call depends on its rows alone."""
    for number, group in groupby(rows, lambda row: row // rows_per_call):
        if kept := tuple(row for row in group if row not in skip):
            yield OperatorCall(number, kept)


class CallRunner:
    """An operator after its set-up, in a worker."""

    def __init__(
        self, spec: OperatorSpec, context: OperatorContext, executor: CallExecutor
    ) -> None:
        self.spec = spec
        self.context = context
        self.executor = executor
        self.ledger = context.ledger if spec.expensive else None
        self._token_debt = 0

    async def process(self, rows: UnitRows) -> Processed:
        return await _UnitCalls(self, rows).run()

    async def close(self) -> None:
        await self.executor.close()

    async def pass_rate_limit(self, batch: pa.RecordBatch) -> int:
        """Wait for the rate limit; return the tokens that the call was expected to use."""
        limit = self.context.rate_limit
        if limit is None or not self.spec.rate_limit_name:
            return 0
        expected = self.spec.expected_tokens(batch)
        wanted = max(0, expected + self._token_debt)
        # Calls that used more tokens than they expected are charged to the next one.
        self._token_debt -= wanted - expected
        await limit.acquire(self.spec.rate_limit_name, requests=1, tokens=wanted)
        return expected

    def settle_tokens(self, expected: int, used: int) -> None:
        if used:
            self._token_debt += used - expected

    async def penalize(self, error: BaseException) -> None:
        """Pass on that a server asked for a pause: it means all workers.

        A pause that is too long to wait for fails this call alone.
        """
        retry_after_s = getattr(error, "retry_after_s", None) or 0.0
        is_bearable = 0 < retry_after_s <= self.spec.retries.retry_after_max_s
        if self.context.rate_limit and self.spec.rate_limit_name and is_bearable:
            await self.context.rate_limit.penalize(self.spec.rate_limit_name, retry_after_s)


class _UnitCalls:
    """The calls of one unit."""

    def __init__(self, runner: CallRunner, rows: UnitRows) -> None:
        self._runner = runner
        self._spec = runner.spec
        self._unit = rows
        self._stage = runner.context.ledger_stage or runner.context.stage
        self._numbers: Sequence[int] = rows.numbers or range(rows.table.num_rows)
        self._places = {row: place for place, row in enumerate(rows.numbers)}
        self._calls: dict[int, OperatorCall] = {}
        self._results: dict[int, CallResult] = {}
        self._reused = 0
        self._calls_made = 0
        self._cost = 0.0
        self._error: BaseException | None = None
        self._begun: set[int] = set()
        """Calls that may have been paid for: none that wait for their turn, or were refused."""
        self._recordings: set[asyncio.Task[None]] = set()

    async def run(self) -> Processed:
        calls = plan_calls(self._numbers, self._spec.rows_per_call, self._unit.skip)
        at_once = 1 if self._unit.probe else self._spec.concurrency
        claims = self._open_claims(calls, at_once)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(self._make_calls(claims))
        finally:
            await claims.close()
        # Results that were paid for are recorded, whatever failed beside them.
        while self._recordings:
            await asyncio.gather(*self._recordings)
        if self._error:
            raise self._error
        found = [self._results[number] for number in sorted(self._results)]
        try:
            table = concat([result.table for result in found])
        except UnitError as error:
            raise self._named(error, (), 1) from error
        dead = [each for result in found for each in result.dead]
        return Processed(table, dead, self._calls_made, self._reused, self._cost)

    def _open_claims(self, calls: Iterator[OperatorCall], at_once: int) -> Claims:
        self._calls = {call.number: call for call in calls}
        ledger, context = self._runner.ledger, self._runner.context
        if ledger is None:
            return FreeCalls(iter(self._calls))
        # Nobody wants to decide about calls that were held only because they came next.
        is_careful = self._unit.probe or self._spec.in_doubt == "hold"
        return ClaimsAhead(
            ledger,
            (self._stage, self._unit.unit, context.worker),
            ((call.number, content_of(self._batch(call.rows))) for call in self._calls.values()),
            first=at_once,
            ahead=0 if is_careful else max(1, at_once // 2),
        )

    async def _make_calls(self, claims: Claims) -> None:
        """Make one call after another until there is none, or one of the unit has failed."""
        while not self._error:
            try:
                if (taken := await claims.take()) is None:
                    return
                await self._make(self._calls[taken[0]], taken[1])
            except Exception as error:  # noqa: BLE001  `run` raises it
                self._error = self._error or error

    async def _make(self, call: OperatorCall, claimed: Claimed) -> None:
        batch = self._batch(call.rows)
        if claimed.status == ClaimStatus.RESULT:
            assert claimed.result is not None
            self._reused += 1
            self._results[call.number] = CallResult.decode(claimed.result, call.rows)
            return
        try:
            if claimed.status == ClaimStatus.HELD:
                raise CallFailedError(0, in_doubt=True) from _held(claimed)
            self._calls_made += 1
            result = await self._call(call, batch, claimed.idempotency_key)
        except CallFailedError as failure:
            if claimed.status != ClaimStatus.HELD:
                await self._end_claim(call, failure.__cause__, failure.in_doubt)
            self._results[call.number] = CallResult(None, self._give_up(call.rows, failure))
            return
        except RecordedMeanwhileError as found:
            self._reused += 1
            self._results[call.number] = CallResult.decode(found.result, call.rows)
            return
        except HeadraceError as error:
            if call.number in self._begun:
                await self._end_claim(call, error, not isinstance(error, AccessError))
            elif self._runner.ledger:
                await self._runner.ledger.release(self._stage, self._unit.unit, [call.number])
            raise
        self._results[call.number] = result
        self._cost += result.cost
        if self._runner.ledger:
            self._record(call, result)

    async def _end_claim(
        self, call: OperatorCall, error: BaseException | None, in_doubt: bool
    ) -> None:
        ledger, unit = self._runner.ledger, self._unit.unit
        if ledger and in_doubt:
            await ledger.doubt(self._stage, unit, [call.number])
        elif ledger:
            await ledger.fail(self._stage, unit, [call.number], one_line(error))

    def _batch(self, rows: Sequence[int]) -> pa.RecordBatch:
        table = self._unit.table
        places = [self._places[row] for row in rows] if self._places else rows
        is_range = places[-1] - places[0] == len(places) - 1
        part = table.slice(places[0], len(places)) if is_range else table.take(list(places))
        return part.combine_chunks().to_batches()[0]

    def _record(self, call: OperatorCall, result: CallResult) -> None:
        """Store a result while the next call is made. The unit waits for it at its end."""
        assert self._runner.ledger is not None
        recorded = RecordedCall(call.number, result.encode(call.rows), result.cost)
        self._start(self._runner.ledger.record(self._stage, self._unit.unit, [recorded]))

    def _start(self, recording: Coroutine[Any, Any, None]) -> None:
        async def keep_error() -> None:
            try:
                await recording
            except Exception as error:  # noqa: BLE001  `run` raises it
                self._error = self._error or error

        task = asyncio.create_task(keep_error())
        self._recordings.add(task)
        task.add_done_callback(self._recordings.discard)

    # One call

    async def _call(self, call: OperatorCall, batch: pa.RecordBatch, key: str) -> CallResult:
        """Return what the call returned. Raises CallFailedError if no row has a result."""
        if self._unit.probe:
            return await self._call_row_by_row(call, key)
        try:
            return await self._attempt(call, call.rows, batch, key)
        except CallFailedError as failure:
            is_row_known = isinstance(failure.__cause__, RowBlame)
            isolates = is_row_known or self._spec.on_error == "dead_letter"
            if len(call.rows) == 1 or not isolates:
                raise
            if failure.in_doubt:
                await self._claim_again(call, failure)
        return await self._call_row_by_row(call, key)

    async def _claim_again(self, call: OperatorCall, failure: CallFailedError) -> None:
        """Ask the ledger whether a call in doubt may be sent again; it counts that.

        Raises the failure if the call is held, and RecordedMeanwhileError if it has a result.
        """
        if self._runner.ledger is None:
            return
        content = content_of(self._batch(call.rows))
        (claimed,) = await self._runner.ledger.claim(
            self._stage,
            self._unit.unit,
            [(call.number, content)],
            owner=self._runner.context.worker,
        )
        if claimed.status == ClaimStatus.HELD:
            raise failure
        if claimed.result is not None:
            raise RecordedMeanwhileError(claimed.result)

    async def _call_row_by_row(self, call: OperatorCall, key: str) -> CallResult:
        """Call each row alone, so that a row fails for its own fault only."""
        results = []
        failure: CallFailedError | None = None
        for row in call.rows:
            if self._unit.probe:
                await self._unit.probe([row])
            row_key = key if len(call.rows) == 1 else f"{key}.{row}"
            try:
                results.append(await self._attempt(call, (row,), self._batch([row]), row_key))
            except CallFailedError as failed:
                failure = failed
                results.append(CallResult(None, self._give_up((row,), failed)))
        if failure and all(result.table is None for result in results):
            raise failure
        return CallResult(
            concat([result.table for result in results]),
            [dead for result in results for dead in result.dead],
            sum(result.cost for result in results),
        )

    async def _attempt(
        self, call: OperatorCall, rows: tuple[int, ...], batch: pa.RecordBatch, key: str
    ) -> CallResult:
        """Call until it succeeds or `retries` gives up. Raises CallFailedError then."""
        attempts = self._spec.retries.begin()
        was_in_doubt = False
        was_begun = call.number in self._begun
        while True:
            expected = await self._runner.pass_rate_limit(batch)
            context = self._runner.context
            set_current_call(
                CallContext(context.stage, self._unit.unit, rows, key, attempts.number)
            )
            self._begun.add(call.number)
            try:
                answer: Answer = await self._runner.executor.call(batch, self._spec.timeout_s)
            except Exception as error:
                if not is_foreseen(error):
                    raise self._placed(error) from error
                cause = error
            else:
                self._runner.settle_tokens(expected, answer.tokens)
                return self._priced(answer)
            in_doubt = _leaves_doubt(cause)
            was_in_doubt |= in_doubt
            if not (was_begun or was_in_doubt):
                self._begun.discard(call.number)
            await self._runner.penalize(cause)
            failure = CallFailedError(attempts.number, was_in_doubt)
            failure.__cause__ = cause
            delay_s = None if isinstance(cause, RowBlame) else attempts.next_delay_s(cause)
            if delay_s is None:
                raise failure
            await asyncio.sleep(delay_s)
            if in_doubt:
                await self._claim_again(call, failure)

    def _priced(self, answer: Answer) -> CallResult:
        try:
            cost = self._spec.cost_of(answer)
        except Exception as error:  # noqa: BLE001  `run` raises it, once the result is recorded
            cost = 0.0
            self._error = self._error or HeadraceError(
                f"stage {self._runner.context.stage!r}: the cost function failed:"
                f" {one_line(error)}",
                do="mend the cost function and run again: the result is recorded",
            )
        return CallResult(answer.rows, [], cost)

    # Failures

    def _give_up(self, rows: tuple[int, ...], failure: CallFailedError) -> list[DeadRow]:
        """Return the rows as dead rows. Raises UnitError if the stage keeps none."""
        cause = failure.__cause__
        assert cause is not None
        if self._spec.on_error == "dead_letter":
            return [DeadRow(row, one_line(cause), failure.attempts) for row in rows]
        raise self._named(cause, rows, failure.attempts) from cause

    def _named(self, cause: BaseException, rows: tuple[int, ...], attempts: int) -> UnitError:
        """Say where an error happened."""
        place = f"stage {self._runner.context.stage!r}, unit {self._unit.unit}"
        if rows:
            place += f", row {rows[0]}" if len(rows) == 1 else f", rows {rows[0]} to {rows[-1]}"
        what = cause.what if isinstance(cause, HeadraceError) else one_line(cause)
        do = cause.do if isinstance(cause, HeadraceError) and cause.do else _MEND
        after = f" (after {attempts} attempts)" if attempts > 1 else ""
        return UnitError(f"{place}: {what}{after}", do=do)

    def _placed(self, error: Exception) -> Exception:
        """Name the stage in an error that no row is to blame for."""
        if not isinstance(error, HeadraceError):
            return error
        return type(error)(f"stage {self._runner.context.stage!r}: {error.what}", do=error.do)


def _leaves_doubt(error: BaseException) -> bool:
    """True if nobody can tell whether the call took effect: only a UnitError can deny it."""
    return error.in_doubt if isinstance(error, UnitError) else True


def _held(claimed: Claimed) -> UnitError:
    return UnitError(
        f"the call {claimed.idempotency_key} is in doubt, and the stage holds such calls",
        do='ask the provider about the key, then run with in_doubt="resend" or "retry"',
    )
