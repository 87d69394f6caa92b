"""The loop of a worker: claim, fetch, process, keep, commit, report.

The order is that of the package: payloads first, then messages and the offset in one step, then
the report to the master.
"""

from __future__ import annotations

from headrace.errors import HeadraceError, PeerLostError, UnitError, to_wire
from headrace.pipeline.calls.call_results import one_line
from headrace.pipeline.contract import OperatorContext
from headrace.pipeline.master.messages import AskWork, ClaimWork, FailWork, Join, Leave, NoWork
from headrace.pipeline.worker.claimed_work import ClaimedWork
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage


class Worker:
    """Runs one stage, in one event loop, until the master lets it leave."""

    def __init__(self, name: str, stage: WorkerStage, environment: WorkerEnvironment) -> None:
        self._name = name
        self._stage = stage
        self._environment = environment
        self._control = environment.control

    async def run(self) -> None:
        """Work until the master says Leave. Raises PeerLostError if the master is gone."""
        if isinstance(await self._control.ask(Join(self._name, self._stage.stage)), Leave):
            return
        try:
            await self._run_operator()
        except PeerLostError:
            raise
        except Exception as error:  # noqa: BLE001  the master ends the run with it
            await self._control.ask(FailWork(to_wire(self._named(error))))

    def _named(self, error: Exception) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        return UnitError(
            f"stage {self._stage.stage!r}: {one_line(error)}",
            do="mend the operator, and run the job again",
        )

    async def _run_operator(self) -> None:
        context = OperatorContext(
            self._stage.stage,
            self._name,
            self._stage.ledger_stage,
            self._environment.ledger,
            self._environment.rate_limit,
        )
        operator = await self._stage.operator.open(context)
        try:
            timeout_s = self._stage.fetch_timeout_ms / 1000
            while not isinstance(answer := await self._control.ask(AskWork(timeout_s)), Leave):
                if isinstance(answer, NoWork):
                    continue
                assert isinstance(answer, ClaimWork), answer
                work = ClaimedWork(self._stage, self._environment, operator, answer)
                if isinstance(await work.run(), Leave):
                    return
        finally:
            await operator.close()
