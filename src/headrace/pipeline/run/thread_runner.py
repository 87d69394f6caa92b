"""Runs the workers of a job as threads of the driver."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from functools import partial

from headrace.errors import PeerLostError, UsageError
from headrace.pipeline.contract import RunControl
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.shuffle_stage import run_shuffle_stage
from headrace.plan.plan_run import ThreadTaskRunner


class ThreadRunner:
    """One thread a worker. A worker that is lost is started again.

    A stage that shuffles has a thread that waits for its input; its tasks then have as many threads
    as there are cores.
    """

    def __init__(self, deaths: tuple[type[BaseException], ...] = ()) -> None:
        """A worker that raises one of `deaths` counts as a process that was killed."""
        self._deaths: tuple[type[BaseException], ...] = (PeerLostError, *deaths)
        self._changed = threading.Condition()
        self._running = 0

    def run(self, control: RunControl) -> None:
        plans = [plan for plan in control.stages if not plan.is_shuffle]
        if whole := [plan.stage for plan in plans if plan.takes_all]:
            raise UsageError(
                f"stage {whole[0]!r} needs Spark, and the workers are threads",
                do="run the pipeline with a Spark session",
            )
        threads = [
            threading.Thread(
                target=self._run_thread,
                args=(partial(self._keep_running, control, plan.stage, f"{plan.stage}.{number}"),),
                name=f"headrace-{plan.stage}-{number}",
                daemon=True,
            )
            for plan in plans
            for number in range(plan.workers)
        ]
        threads += [
            threading.Thread(
                target=self._run_thread,
                args=(partial(_run_shuffle, control, plan.stage),),
                name=f"headrace-{plan.stage}",
                daemon=True,
            )
            for plan in control.stages
            if plan.is_shuffle
        ]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        try:
            self._wait()
        except KeyboardInterrupt:
            # Calls under way end and are recorded. A second Ctrl-C does not wait for them.
            control.stop()
            self._wait()
            raise

    def _wait(self) -> None:
        """Wait for all workers. An interrupted `join` would take its thread for ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _run_thread(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _keep_running(self, control: RunControl, stage: str, name: str) -> None:
        while not control.is_over(stage):
            try:
                control.assignment(stage).run(f"{name}.{secrets.token_hex(4)}")
            except self._deaths:
                continue
            except BaseException as error:  # noqa: BLE001  the run fails with it
                control.worker_failed(stage, error)
                return


def _run_shuffle(control: RunControl, stage: str) -> None:
    assert isinstance(control, JobRun)
    runner = ThreadTaskRunner(os.cpu_count() or 1, partial(control.is_over, stage))
    run_shuffle_stage(control, stage, runner)
