"""Workers in other processes fetch and produce for themselves: the driver moves no message."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import headrace as hr
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.messages import AdvanceClaim, Answer, AskWork, ClaimWork, Request
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.payloads import Payloads
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend
from tests.pipeline.crash.process_runner import ProcessRunner
from tests.pipeline.jobs import numbers

MOVES = ("fetch", "fetch_batch", "produce", "produce_batch", "produce_and_commit")


def add_process(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, f"process_{len(row)}": os.getpid()}


def test_worker_pull_model(workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master answers claims to workers that ask for one, and schedules nothing.

    From the moment when the source's topic is filled, the driver can neither fetch nor produce a
    message, nor read or write rows; but for the thread that counts messages for the status.
    """
    pipeline = (
        hr.pipeline("pull", workspace)
        .source(numbers(60), rows_per_unit=5)
        .map(add_process, name="first", durable=True)
        .map(add_process, name="second")
        .map(add_process, name="third", durable=True)
    )
    asked: list[tuple[Request, Answer]] = []
    handle = Master.handle

    def record(master: Master, worker: str, request: Request, is_gone: Any) -> Answer:
        answer = handle(master, worker, request, is_gone)
        asked.append((request, answer))
        return answer

    def refusal(move: Any) -> Any:
        def refuse(*of: Any, **more: Any) -> Any:
            assert move.__name__ in ("fetch", "fetch_batch"), "the driver moves data"
            assert threading.current_thread().name == "headrace-status", "the driver moves data"
            return move(*of, **more)

        return refuse

    with JobRun(workspace, pipeline.job) as run, monkeypatch.context() as patch:
        patch.setattr(Master, "handle", record)
        for backend in (LocalBackend, MemoryBackend):
            for move in MOVES:
                patch.setattr(backend, move, refusal(getattr(backend, move)))
        for move in ("get", "put", "put_all"):
            patch.setattr(Payloads, move, refusal(getattr(Payloads, move)))
        ProcessRunner().run(run)
        assert run.summary().outcome == "done"
    rows = pipeline.collect()
    assert sorted(rows["n"].to_pylist()) == list(range(60))
    processes = [set(rows[f"process_{columns}"].to_pylist()) for columns in (1, 2, 3)]
    assert len(set.union(*processes)) == 3, "one process a stage"
    assert os.getpid() not in set.union(*processes)
    claims = [request for request, answer in asked if isinstance(answer, ClaimWork)]
    assert claims
    assert all(isinstance(request, AskWork) for request in claims)
    reported = sum(request.rows_in for request, _ in asked if isinstance(request, AdvanceClaim))
    assert reported == 3 * 60
