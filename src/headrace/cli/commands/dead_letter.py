"""`headrace dead-letters`: rows that stages of pipelines gave up."""

from __future__ import annotations

from typing import Annotated

import typer

import headrace as hr
from headrace.cli.options.completion import complete_job
from headrace.cli.options.workspace_options import on_workspace
from headrace.cli.render.output import JsonOption, as_example, print_json, print_line, print_table
from headrace.cli.render.units import counted

app = typer.Typer(no_args_is_help=True, help="See rows that pipelines gave up, and replay them.")

JobArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the job.", autocompletion=complete_job)
]
StageOption = Annotated[
    str, typer.Option("--stage", "-s", metavar="STAGE", show_default=False, help="Of this stage.")
]


@app.command("list", epilog=as_example("headrace dead-letters list captions --stage caption"))
@on_workspace
def list_all(
    ws: hr.Workspace, name: JobArgument, stage: StageOption = "", json: JsonOption = False
) -> None:
    """List the rows that stages gave up and nobody replayed, with the error of each.

    With --json every row comes as its stage got it.
    """
    from headrace.pipeline.status.job_catalog import find_dead_letters

    found = find_dead_letters(ws, name, stage)
    if json:
        print_json(
            [
                {
                    "stage": each.stage,
                    "unit": each.unit,
                    "row": each.row,
                    "attempts": each.attempts,
                    "error": each.error,
                    "value": each.value,
                }
                for each in found
            ]
        )
        return
    print_table(
        ((each.stage, each.unit, each.row, each.attempts, each.error) for each in found),
        ("stage", "unit", "row", "attempts", "error"),
        numbers=("row", "attempts"),
    )


@app.command(epilog=as_example("headrace dead-letters replay captions"))
@on_workspace
def replay(
    ws: hr.Workspace, name: JobArgument, stage: StageOption = "", json: JsonOption = False
) -> None:
    """Send rows that were given up back to their stage: the next run processes them.

    A running job is refused. Rows that fail again are dead letters again.
    """
    from headrace.pipeline.status.job_catalog import replay_dead_letters

    count = replay_dead_letters(ws, name, stage)
    if json:
        print_json({"job": name, "replayed": count})
    elif count:
        print_line(f"{counted(count, 'row')} of {name} will be processed by its next run")
    else:
        print_line(f"{name} has no dead letters to replay")
