"""The tasks of a workspace: how each stands. Resets and deletes a task from outside of it."""

from __future__ import annotations

import msgspec

from headrace.errors import NotFoundError
from headrace.journal.workspace import Workspace
from headrace.shuffle import Checkpoint, History, TaskInfo, describe_task, list_tasks
from headrace.shuffle.checkpoints.checkpoint_history import delete_checkpoints, reset_task
from headrace.spark.tasks.lag_watch import behind_bytes
from headrace.spark.tasks.query_logs import committed_checkpoint, delete_logs, logs_folder
from headrace.spark.tasks.run_fence import RunFence
from headrace.spark.tasks.run_record import RunRecord, check_not_running, forget_runs, last_run
from headrace.spark.tasks.task_record import (
    TaskRecord,
    delete_task_record,
    get_task_record,
    list_task_records,
)


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the workspace knows of a task."""

    task: str
    stored: TaskInfo | None
    """Its checkpoints; None before its first run."""
    record: TaskRecord | None
    """None for a stream: it is no task, but it has checkpoints, too."""
    run: RunRecord | None
    """Its last run; None if it never ran, or if this process does not see the directory."""
    applied: int
    """The last checkpoint that is known to be applied."""
    behind_bytes: int | None
    """Bytes that its sources have beyond that checkpoint; None if nobody can tell."""

    @property
    def state(self) -> str:
        """`running`, `stopped`, `failed` or `never run`; empty for a stream."""
        if self.run:
            return self.run.state
        return "never run" if self.record else ""


def list_statuses(workspace: Workspace) -> list[TaskStatus]:
    """Return all tasks that were registered or run, and all streams, by name."""
    stored = {each.task: each for each in list_tasks(workspace.objects)}
    records = {each.task: each for each in list_task_records(workspace.objects)}
    return [
        _status(workspace, name, stored.get(name), records.get(name))
        for name in sorted(stored.keys() | records.keys())
    ]


def task_status(workspace: Workspace, task: str) -> TaskStatus:
    """Return how one task stands; raise NotFoundError if the workspace knows no such task."""
    record = get_task_record(workspace.objects, task)
    try:
        stored = describe_task(workspace.objects, task)
    except NotFoundError:
        if record is None:
            raise
        stored = None
    return _status(workspace, task, stored, record)


def _status(
    workspace: Workspace, task: str, stored: TaskInfo | None, record: TaskRecord | None
) -> TaskStatus:
    run = last_run(workspace, task)
    applied = _applied(workspace, task, stored, run) if record else 0
    behind = None
    if record and record.bindings:
        checkpoint = _checkpoint(workspace, task, applied) if stored else Checkpoint()
        behind = behind_bytes(workspace, record.bindings, checkpoint)
    return TaskStatus(
        task=task, stored=stored, record=record, run=run, applied=applied, behind_bytes=behind
    )


def _applied(
    workspace: Workspace, task: str, stored: TaskInfo | None, run: RunRecord | None
) -> int:
    """Return the higher of what the last run reported and what Spark's commit log says."""
    if stored is None or workspace.directory is None:
        return 0
    logged = committed_checkpoint(str(logs_folder(workspace, task) / stored.generation))
    return min(max(logged, run.checkpoint if run else 0), stored.last)


def _checkpoint(workspace: Workspace, task: str, number: int) -> Checkpoint:
    history = History(workspace.objects, task)
    try:
        return history.load(number)
    except NotFoundError:
        # A task that runs has released the checkpoint since.
        return history.load(history.last())


def reset(workspace: Workspace, task: str) -> str:
    """Forget how far a task is, and return its new generation.

    Raises UsageError while the task runs.
    """
    _take_over(workspace, task)
    generation = reset_task(workspace.objects, task)
    forget_runs(workspace, task)
    return generation


def delete(workspace: Workspace, task: str) -> None:
    """Remove everything that the workspace knows of a task.

    Raises UsageError while the task runs. The task is reset first. So a crash on the way leaves a
    task that starts from the beginning, never one that takes old checkpoints for its own. The
    highest number of its fence stays, so that a run which was replaced long ago stays replaced.
    """
    _take_over(workspace, task)
    try:
        reset_task(workspace.objects, task)
    except NotFoundError:
        if get_task_record(workspace.objects, task) is None:
            raise
    delete_checkpoints(workspace.objects, task)
    delete_task_record(workspace.objects, task)
    forget_runs(workspace, task)
    delete_logs(workspace, task)


def _take_over(workspace: Workspace, task: str) -> None:
    task_status(workspace, task)
    check_not_running(workspace, task)
    # This refuses a run that begins at this moment.
    RunFence(workspace.objects, task)
