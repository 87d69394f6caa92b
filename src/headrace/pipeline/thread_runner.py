"""Runs the workers of a job as threads of the driver."""

from __future__ import annotations

import secrets
import threading

from headrace.errors import PeerLostError, UsageError
from headrace.pipeline.contract import RunControl


class ThreadRunner:
    """One thread a worker. A worker that is lost is started again."""

    def __init__(self, deaths: tuple[type[BaseException], ...] = ()) -> None:
        """A worker that raises one of `deaths` counts as a process that was killed."""
        self._deaths: tuple[type[BaseException], ...] = (PeerLostError, *deaths)

    def run(self, control: RunControl) -> None:
        if whole := [plan.stage for plan in control.stages if plan.takes_all]:
            raise UsageError(
                f"stage {whole[0]!r} needs Spark, and the workers are threads",
                do="run the pipeline with a Spark session",
            )
        threads = [
            threading.Thread(
                target=self._keep_running,
                args=(control, plan.stage, f"{plan.stage}.{number}"),
                name=f"headrace-{plan.stage}-{number}",
                daemon=True,
            )
            for plan in control.stages
            for number in range(plan.workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(self, control: RunControl, stage: str, name: str) -> None:
        while not control.is_over(stage):
            try:
                control.assignment(stage).run(f"{name}.{secrets.token_hex(4)}")
            except self._deaths:
                continue
            except BaseException as error:  # noqa: BLE001  the run fails with it
                control.worker_failed(stage, error)
                return
