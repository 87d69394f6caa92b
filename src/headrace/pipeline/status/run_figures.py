"""The figures of one run, put together from what its master, its ledger and its topics know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.pipeline.job import Job
from headrace.pipeline.ledger.totals import CallFigures, StageTotals, to_money
from headrace.pipeline.master.actor import Master
from headrace.pipeline.run.record import JobRecord
from headrace.pipeline.run.run_services import RunServices
from headrace.pipeline.status.job_status import JobStatus, StageProgress
from headrace.pipeline.status.unit_counts import StageUnits, UnitCounts, look
from headrace.plan.plan_run import PlanRun
from headrace.queues.contract import QueueBackend


class RunFigures:
    """Made when a run begins, before its first worker. One thread asks it for a status."""

    def __init__(
        self,
        job: Job,
        record: JobRecord,
        master: Master,
        services: RunServices,
        counts: UnitCounts,
        shuffles: Mapping[str, PlanRun],
    ) -> None:
        """`shuffles` gets the query of each stage that shuffles when the run begins it."""
        self._job = job
        self._record = record
        self._master = master
        self._services = services
        self._counts = counts
        self._shuffles = shuffles
        self._began = time.time()
        self._calls_before = services.calls()
        self._start = master.look(look)
        self._units_before: dict[str, int] = {}
        self._progress: dict[str, StageProgress] = {}

    async def look(self, backend: QueueBackend | None) -> JobStatus:
        """Return how the run stands. Without a backend, leave out what must be counted."""
        # Figures that are read first are never ahead of the outcome.
        calls = await asyncio.to_thread(self._services.calls)
        if backend:
            # What cannot be read now is read the next time.
            with suppress(HeadraceError):
                self._progress = await self._count(backend, calls)
        cost, cost_in_all = self.cost(calls)
        return self._master.look(
            lambda state: JobStatus(
                self._job.id,
                state.outcome,
                self._began,
                self._began,
                {name: replace(stage.counts) for name, stage in state.stages.items()},
                str(state.error or ""),
                dict(state.paused),
                self._progress,
                cost,
                cost_in_all,
            )
        )

    async def _count(
        self, backend: QueueBackend, calls: Mapping[str, CallFigures]
    ) -> dict[str, StageProgress]:
        if self._start:
            found = await self._counts.update(backend, self._start)
            self._units_before = {name: units.units for name, units in found.items()}
            self._start = {}
        now = self._master.look(look)
        working = self._master.look(
            lambda state: {name: len(list(each.claims())) for name, each in state.stages.items()}
        )
        units = await self._counts.update(backend, now)
        return {
            stage.stage_id: _stage_progress(
                stage.spec.expensive,
                self._job.upstreams(stage.stage_id),
                units[stage.stage_id],
                self._units_before[stage.stage_id],
                working[stage.stage_id],
                calls.get(ledger_stage := self._record.stages[stage.stage_id].ledger_stage),
                self._calls_before.get(ledger_stage),
                self._shuffles.get(stage.stage_id),
            )
            for stage in self._job.operators
        }

    def cost(self, calls: Mapping[str, CallFigures]) -> tuple[float, float]:
        """Return what the results of this run cost, and those of all runs."""
        spent, before = (
            sum(each.totals.spent for each in figures.values())
            for figures in (calls, self._calls_before)
        )
        return to_money(spent - before), to_money(spent)


def _stage_progress(
    expensive: bool,
    upstreams: tuple[str, ...],
    units: StageUnits,
    units_before: int,
    working: int,
    calls: CallFigures | None,
    calls_before: CallFigures | None,
    shuffle: PlanRun | None,
) -> StageProgress:
    """Put the figures of a stage together. Pure."""
    reports = list(shuffle.reports.values()) if shuffle else []
    now = calls or CallFigures(StageTotals())
    before = calls_before or CallFigures(StageTotals())
    totals = now.totals
    return StageProgress(
        upstreams=upstreams,
        expensive=expensive,
        units=units.units,
        units_before=units_before,
        units_total=units.units_total,
        rows_left=units.rows_left,
        dead_letters=units.dead_letters,
        working=working,
        # Calls under way are of this run: those of earlier ones are in doubt.
        calls=_ended(totals) - _ended(before.totals) - now.under_way,
        calls_under_way=now.under_way,
        calls_found=totals.reused,
        calls_failed=totals.failures - before.totals.failures,
        results_before=before.totals.results,
        in_doubt=now.in_doubt,
        cost=to_money(totals.spent - before.totals.spent),
        cost_in_all=to_money(totals.spent),
        tasks=sum(each.tasks for each in reports),
        tasks_reused=sum(each.reused for each in reports),
    )


def _ended(totals: StageTotals) -> int:
    """Return the claims that were not given back, so those under way too."""
    return totals.calls - totals.releases
