"""`headrace dead-letters`: rows that stages of pipelines gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import headrace as hr
from headrace.cli.options.completion import complete_job
from headrace.cli.options.workspace_options import on_workspace
from headrace.cli.render.output import JsonOption, as_example, print_json, print_line, print_table
from headrace.cli.render.units import counted

if TYPE_CHECKING:
    from headrace.pipeline.dead_letters import DeadLetter

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
    found, rows = _find(ws, name, stage)
    if json:
        print_json(
            [
                {
                    "stage": each.stage,
                    "unit": each.unit,
                    "row": each.row,
                    "attempts": each.attempts,
                    "error": each.error,
                    "value": row,
                }
                for each, row in zip(found, rows, strict=True)
            ]
        )
        return
    print_table(
        ((each.stage, each.unit, each.row, each.attempts, each.error) for each in found),
        ("stage", "unit", "row", "attempts", "error"),
        numbers=("row", "attempts"),
    )


def _find(
    ws: hr.Workspace, name: str, stage: str
) -> tuple[list[DeadLetter], list[dict[str, object]]]:
    from headrace.pipeline.dead_letters import DeadLetters
    from headrace.pipeline.job_catalog import job_record
    from headrace.pipeline.job_run import run_async
    from headrace.queues.local_backend import LocalBackend

    job_record(ws, name)

    async def find() -> tuple[list[DeadLetter], list[dict[str, object]]]:
        async with LocalBackend(ws) as backend:
            letters = DeadLetters(ws, name, backend)
            found = await letters.find(stage or None)
            return found, list(letters.rows(found))

    return run_async(find())


@app.command(epilog=as_example("headrace dead-letters replay captions"))
@on_workspace
def replay(
    ws: hr.Workspace, name: JobArgument, stage: StageOption = "", json: JsonOption = False
) -> None:
    """Send rows that were given up back to their stage: the next run processes them.

    A running job is refused. Rows that fail again are dead letters again.
    """
    from headrace.pipeline.dead_letters import DeadLetters
    from headrace.pipeline.job_catalog import job_record
    from headrace.pipeline.job_run import run_async
    from headrace.queues.local_backend import LocalBackend

    job_record(ws, name)

    async def send() -> int:
        async with LocalBackend(ws) as backend:
            return await DeadLetters(ws, name, backend).replay(stage or None)

    count = run_async(send())
    if json:
        print_json({"job": name, "replayed": count})
    elif count:
        print_line(f"{counted(count, 'row')} of {name} will be processed by its next run")
    else:
        print_line(f"{name} has no dead letters to replay")
