"""`headrace run FILE.py`: run the tasks that a file defines, on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.interruption import run_aside, until_stopped
from headrace.cli.render.output import JsonOption, as_example
from headrace.cli.render.task_display import TaskDisplay
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.spark import Task

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
    app.command(epilog=as_example("headrace run bank.py --once"))(run)


def run(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A Python file that defines tasks at its top level."),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", metavar="NAME", help="Run this task only; repeatable."),
    ] = None,
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run the tasks that a Python file defines until Ctrl-C, or once.

    A task is a function under @hr.derivation or @hr.materialization. Code below
    `if __name__ == "__main__":` does not run. Each task continues where it was, whatever ended it.

    All tasks run at the same time; with --once they run one after the other, in the order of the
    file, so that one may read what another publishes. A terminal shows a table of the tasks; a pipe
    gets a line for each checkpoint that a task has applied.
    """
    from headrace.spark.tasks.task_file import choose_tasks, load_tasks

    tasks = choose_tasks(load_tasks(file), task or ())
    run_tasks(tasks, once, shards, restarts, master, log, as_json=json)


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
    from headrace.spark.tasks.task_file import blamed

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
