"""`headrace run FILE.py`: run the pipelines and the tasks that a file defines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from headrace.cli.interruption import run_aside, until_stopped
from headrace.cli.render.output import JsonOption, as_example
from headrace.cli.render.task_display import TaskDisplay
from headrace.errors import HeadraceError, UsageError
from headrace.python_file import blamed, run_python_file

if TYPE_CHECKING:
    from headrace.pipeline.builder import Pipeline
    from headrace.spark import Task

PAUSED = 4
INTERRUPTED = 130
OnChange = Literal["refuse", "resume", "restart", "recompute"]

OnceOption = Annotated[
    bool, typer.Option("--once", help="Apply what is committed when the task starts, then end.")
]
MasterOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="The master of a Spark cluster. Default: Spark on this machine.",
    ),
]
ShardsOption = Annotated[
    int,
    typer.Option(
        min=0,
        show_default=False,
        metavar="N",
        help="Members of each task. Default: as many as the file says.",
    ),
]
RestartsOption = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Start a task that fails again, this often in a row."),
]
OnChangeOption = Annotated[
    OnChange,
    typer.Option(help="What to do if a source or an operator has changed."),
]
LogOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        show_default=False,
        metavar="FILE",
        help="Spark's log. Default: spark.log in the workspace.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace run captions.py"))(run)


def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A Python file that defines pipelines or tasks at its top level."
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", metavar="NAME", help="Run this task only; repeatable."),
    ] = None,
    pipeline: Annotated[
        list[str] | None,
        typer.Option("--pipeline", "-p", metavar="NAME", help="Run this pipeline; repeatable."),
    ] = None,
    on_change: OnChangeOption = "refuse",
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run what a Python file defines: first its pipelines, then its tasks until Ctrl-C or --once.

    A pipeline is a variable that holds hr.pipeline(...); a task is a function under @hr.derivation
    or @hr.materialization. Code below `if __name__ == "__main__":` does not run. Everything
    continues where it was, whatever ended it.

    Pipelines run one after another, on Spark if they need it or --master is given, else in
    threads; the exit code is 4 if a budget paused one. Tasks run at the same time; with --once
    one after another.
    """
    defined = run_python_file(file)
    chosen = _choose(defined, file, task or (), pipeline or ())
    paused = False
    if chosen.pipelines:
        paused = run_pipelines(chosen.pipelines, file, on_change, master, log, as_json=json)
    if chosen.tasks:
        run_tasks(chosen.tasks, once, shards, restarts, master, log, as_json=json)
    if paused:
        raise typer.Exit(PAUSED)


class _Chosen(NamedTuple):
    """What a command runs."""

    pipelines: Sequence[Pipeline]
    tasks: Sequence[Task]


def _choose(
    defined: Mapping[str, Any], file: Path, tasks: Sequence[str], pipelines: Sequence[str]
) -> _Chosen:
    """Return what is named; all that the file defines if nothing is."""
    from headrace.pipeline.pipeline_file import choose_pipelines, find_pipelines

    found = find_pipelines(defined, file)
    found_tasks: Sequence[Task] = []
    if tasks or "headrace.spark" in sys.modules:
        from headrace.spark.tasks.task_file import choose_tasks, find_tasks

        found_tasks = choose_tasks(find_tasks(defined, file), tasks)
    if not found and not found_tasks:
        raise UsageError(
            f"{file} defines no task and no pipeline",
            do="use @hr.derivation or @hr.materialization on a function, or keep hr.pipeline(...)"
            " in a variable, at its top level",
        )
    found = choose_pipelines(found, pipelines)
    if pipelines and not tasks:
        return _Chosen(found, [])
    if tasks and not pipelines:
        return _Chosen([], found_tasks)
    return _Chosen(found, found_tasks)


def run_pipelines(
    pipelines: Sequence[Pipeline],
    file: Path,
    on_change: OnChange,
    master: str,
    log: Path | None,
    *,
    as_json: bool,
) -> bool:
    """Run pipelines one after another. Return True if a budget paused one of them.

    Exits with 130 if somebody stopped them.
    """
    from headrace.cli.pipeline_runs import PipelineRuns
    from headrace.cli.render.pipeline_display import PipelineDisplay

    is_ended = False
    with until_stopped(), PipelineDisplay(as_json=as_json) as display:
        runs = PipelineRuns(pipelines, display, on_change=on_change, master=master, log=log)
        runs.run(file)
        is_ended = True
    if not is_ended:
        raise typer.Exit(INTERRUPTED)
    return any(each.outcome == "paused" for each in runs.summaries)


def run_tasks(
    tasks: Sequence[Task],
    once: bool,
    shards: int,
    restarts: int,
    master: str,
    log: Path | None,
    *,
    as_json: bool,
) -> None:
    for each in tasks:
        each.shards = shards or each.shards
        each.register()
    directory = tasks[0].workspace.directory
    written = log or (directory / "spark.log" if directory else "")
    with until_stopped(), TaskDisplay("json" if as_json else "text") as display:
        display.status("starting Spark")
        if written:
            display.note(f"Spark logs to {written}")
        running = _TaskRuns(tasks, restarts, display, once=once)
        try:
            run_aside(lambda: running.run(master, written), running.stop)
        except KeyboardInterrupt:
            for each in running.unfinished:
                display.ended(each.name, "stopped")
            raise
        except HeadraceError:
            raise
        except Exception as error:
            if found := blamed(error, [Path(each.about().file) for each in tasks]):
                raise found from error
            raise


class _TaskRuns:
    """Runs tasks at the same time, or one after the other."""

    def __init__(
        self, tasks: Sequence[Task], restarts: int, display: TaskDisplay, *, once: bool
    ) -> None:
        self._restarts = restarts
        self._display = display
        self._once = once
        self._is_stopping = False
        self.unfinished = list(tasks)

    def run(self, master: str, log: str | Path) -> None:
        shards = [each.shards for each in self.unfinished]
        from headrace.spark.spark_session import temporary_session

        total = max(shards) if self._once else sum(shards)
        with temporary_session(total, master=master, log=log) as spark:
            if self._is_stopping:
                return
            if self._once:
                self._display.status("applying what is committed")
                self._run_once(spark)
            else:
                self._display.status("running until Ctrl-C")
                self._run_beside(spark)

    def _run_once(self, spark: Any) -> None:
        for each in list(self.unfinished):
            report = self._display.reporter(each.name)
            each.run(spark, once=True, restarts=self._restarts, watch=report)
            if self._is_stopping:
                return
            self.unfinished.remove(each)

    def _run_beside(self, spark: Any) -> None:
        from headrace.spark.tasks.concurrent_runs import run_beside

        run_beside(spark, self.unfinished, self._restarts, self._display.reporter)

    def stop(self) -> None:
        self._is_stopping = True
        self._display.status("stopping")
        for each in self.unfinished:
            each.stop()
