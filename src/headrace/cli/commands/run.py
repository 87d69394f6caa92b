"""`headrace run FILE.py`: run the tasks that a file defines, on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.interruption import aside, until_stopped
from headrace.cli.output import JsonOption, as_example
from headrace.cli.spark_engine import spark_for
from headrace.cli.task_display import Display
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.spark import Task

OnceOption = Annotated[
    bool, typer.Option("--once", help="Apply what is committed when it starts, and end.")
]
MasterOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Of a Spark cluster. Without it, Spark runs on this machine.",
    ),
]
ShardsOption = Annotated[
    int,
    typer.Option(
        min=0,
        show_default=False,
        metavar="N",
        help="Members of each task. Without it, as many as the file says.",
    ),
]
RestartsOption = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="How often in a row a task that fails is started again."),
]
LogOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        show_default=False,
        metavar="FILE",
        help="For what Spark says. Without it, spark.log in the workspace.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace run bank.py --once"))(run)


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file, with tasks at its top level.")
    ],
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", metavar="NAME", help="Only this one; may be repeated."),
    ] = None,
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run the tasks that a Python file defines until Ctrl-C, or once.

    A task is a function under @hr.derivation or @hr.materialization. What the file has below
    `if __name__ == "__main__":` is left out. Each task goes on where it was, whatever ended it.

    All tasks run beside each other; with --once one after the other, in the order of the file, so
    that one may read what another publishes. A terminal shows how they stand; elsewhere there is a
    line for each checkpoint that is applied.
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
    with until_stopped(), Display("json" if as_json else "text") as display:
        display.status("starting Spark")
        if written:
            display.note(f"what Spark says is in {written}")
        running = _Running(tasks, restarts, display, once=once)
        try:
            aside(lambda: running.run(master, written), running.stop)
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


class _Running:
    """Tasks beside each other, or one after the other."""

    def __init__(
        self, tasks: Sequence[Task], restarts: int, display: Display, *, once: bool
    ) -> None:
        self._restarts = restarts
        self._display = display
        self._once = once
        self._is_stopping = False
        self.unfinished = list(tasks)

    def run(self, master: str, log: str | Path) -> None:
        shards = [each.shards for each in self.unfinished]
        with spark_for(max(shards) if self._once else sum(shards), master=master, log=log) as spark:
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
