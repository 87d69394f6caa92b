"""`headrace run FILE.py`: run the tasks that a file defines, on Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import JsonOption, as_example, print_note
from headrace.cli.progress import Display
from headrace.cli.stopping import until_stopped

if TYPE_CHECKING:
    from headrace.spark import Task

OnceOption = Annotated[
    bool, typer.Option("--once", help="Apply what is committed by now, and end.")
]
MasterOption = Annotated[
    str,
    typer.Option(metavar="URL", help="Of a Spark cluster. Without, Spark runs on this machine."),
]
ShardsOption = Annotated[
    int, typer.Option(min=0, help="Members of each task; 0: as many as the file says.")
]
RestartsOption = Annotated[
    int, typer.Option(min=0, help="How often in a row a task that fails is started again.")
]
LogOption = Annotated[
    Path | None,
    typer.Option(dir_okay=False, show_default=False, help="For what Spark says."),
]


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace run bank.py --once"))(run)


def run(
    file: Annotated[Path, typer.Argument(help="Defines tasks at its top level.")],
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Of several, this one.")
    ] = None,
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run the tasks that a Python file defines until Ctrl-C, or once.

    Each goes on where it was, whatever ended it. On a terminal their progress is shown as it is;
    elsewhere as a line for every checkpoint.
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
    """All at once; with `once` one after the other, since one may read what another publishes."""
    from headrace.spark import session
    from headrace.spark.running import run_beside

    # The display says what the library would log.
    logging.getLogger("headrace").setLevel(logging.ERROR)
    for each in tasks:
        each.shards = shards or each.shards
    directory = tasks[0].workspace.directory
    written = log or (directory / "spark.log" if directory else "")
    slots = max(each.shards for each in tasks) if once else sum(each.shards for each in tasks)
    with until_stopped():
        spark = session(slots, master=master, log=written)
        if written:
            print_note(f"what Spark says is in {written}")
        try:
            with Display(as_json=as_json) as display:
                if once:
                    for each in tasks:
                        each.run(
                            spark, once=True, restarts=restarts, watch=display.reporter(each.name)
                        )
                else:
                    run_beside(spark, tasks, restarts, display.reporter)
        finally:
            spark.stop()
