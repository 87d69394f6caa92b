"""`headrace run FILE.py`: run the tasks that a file defines, on Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.engine import spark_for
from headrace.cli.output import JsonOption, as_example
from headrace.cli.progress import Display
from headrace.cli.stopping import until_stopped

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
    file: Annotated[Path, typer.Argument(help="A Python file, with tasks at its top level.")],
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
    from headrace.spark.definitions import choose_tasks, load_tasks

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
    # The display says what the library would log.
    logging.getLogger("headrace").setLevel(logging.ERROR)
    for each in tasks:
        each.shards = shards or each.shards
    slots = max(each.shards for each in tasks) if once else sum(each.shards for each in tasks)
    directory = tasks[0].workspace.directory
    written = log or (directory / "spark.log" if directory else "")
    with until_stopped(), Display("json" if as_json else "text") as display:
        display.status("starting Spark")
        if written:
            display.note(f"what Spark says is in {written}")
        with spark_for(slots, master=master, log=written) as spark:
            display.status("starting members")
            if once:
                for each in tasks:
                    report = display.reporter(each.name)
                    each.run(spark, once=True, restarts=restarts, watch=report)
                    display.ended(each.name, "done")
            else:
                _run_until_stopped(spark, tasks, restarts, display)


def _run_until_stopped(spark: Any, tasks: Sequence[Task], restarts: int, display: Display) -> None:
    from headrace.spark.running import run_beside

    try:
        run_beside(spark, tasks, restarts, display.reporter)
    except KeyboardInterrupt:
        for each in tasks:
            display.ended(each.name, "stopped")
        raise
