"""`headrace task`: what a workspace knows of its tasks, and how far they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

import headrace as hr
from headrace.cli.completion import complete_task
from headrace.cli.opening import on_workspace
from headrace.cli.output import JsonOption, as_example, print_fields, print_json, print_table
from headrace.cli.run import (
    LogOption,
    MasterOption,
    OnceOption,
    RestartsOption,
    ShardsOption,
    run_tasks,
)
from headrace.cli.units import counted, format_size
from headrace.errors import UsageError
from headrace.shuffle import describe_task, list_checkpoints, list_tasks

app = typer.Typer(no_args_is_help=True, help="See how far tasks are, and run them.")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the task.", autocompletion=complete_task)
]


@app.command("list", epilog=as_example("headrace task list"))
@on_workspace
def list_all(ws: hr.Workspace, json: JsonOption = False) -> None:
    """All tasks that have progress here, with their last checkpoints."""
    from headrace.spark.about import get_about

    found = [(each, get_about(ws.objects, each.task)) for each in list_tasks(ws.objects)]
    if json:
        print_json(
            [
                each._asdict() | {"about": about and msgspec.structs.asdict(about)}
                for each, about in found
            ]
        )
        return
    rows = (
        (
            each.task,
            each.last,
            ", ".join(about.sources) if about else "",
            about.sink if about else "",
            format_size(each.bytes),
        )
        for each, about in found
    )
    print_table(
        rows, ("task", "checkpoint", "sources", "sink", "stored"), numbers=("checkpoint", "stored")
    )


@app.command(epilog=as_example("headrace task show movements"))
@on_workspace
def show(ws: hr.Workspace, name: NameArgument, json: JsonOption = False) -> None:
    """One task: what it reads and writes, and how far it is."""
    from headrace.spark.about import get_about

    stored = describe_task(ws.objects, name)
    about = get_about(ws.objects, name)
    if json:
        print_json(stored._asdict() | {"about": about and msgspec.structs.asdict(about)})
        return
    fields: dict[str, object] = {
        "task": stored.task,
        "generation": stored.generation,
        "checkpoint": stored.last,
        "stored": f"{counted(stored.objects, 'object')}, {format_size(stored.bytes)}",
    }
    if about:
        fields |= {
            "sources": ", ".join(about.sources),
            "sink": about.sink,
            "applied": "exactly once" if about.is_exactly_once else "at least once",
            "shards": about.shards,
            "file": about.file,
        }
    print_fields(fields)


@app.command(epilog=as_example("headrace task checkpoints movements --json"))
@on_workspace
def checkpoints(ws: hr.Workspace, name: NameArgument, json: JsonOption = False) -> None:
    """The checkpoints that are kept of a task: full ones, and what others add to them."""
    found = list_checkpoints(ws.objects, name)
    if json:
        print_json([each._asdict() for each in found])
        return
    rows = ((each.number, each.kind, format_size(each.bytes)) for each in found)
    print_table(rows, ("checkpoint", "stored as", "size"), numbers=("checkpoint", "size"))


@app.command(epilog=as_example("headrace task run movements --once"))
@on_workspace
def run(
    ws: hr.Workspace,
    name: NameArgument,
    once: OnceOption = False,
    shards: ShardsOption = 0,
    restarts: RestartsOption = 5,
    master: MasterOption = "",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Run a task from the file that defined it when it was run last, until Ctrl-C or once."""
    from headrace.spark.about import file_of
    from headrace.spark.definitions import choose_tasks, load_tasks

    describe_task(ws.objects, name)
    file = file_of(ws.objects, name)
    tasks = choose_tasks(load_tasks(file), [name])
    _check_same(ws, tasks[0].workspace, file)
    run_tasks(tasks, once, shards, restarts, master, log, as_json=json)


def _check_same(named: hr.Workspace, of_task: hr.Workspace, file: Path) -> None:
    """A path in the file may mean another place here than where it was run before."""
    here, there = (each.directory and each.directory.resolve() for each in (named, of_task))
    if here and here != there:
        raise UsageError(
            f"{file} opens {there or of_task.place}, and not {here}",
            do="use an absolute path there, or run this in the directory that it is meant for",
        )
