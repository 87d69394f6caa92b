"""`headrace demo`: everything at work on this machine, parts of it killed, and what was lost."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.acts.contract import DemoAct, Outcome, outcome_json
from headrace.cli.acts.demo_spark import DemoSpark
from headrace.cli.render.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.render.task_display import TaskDisplay


class Act(StrEnum):
    BANK = "bank"
    CALLS = "calls"


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace demo --act calls --rows 1000"))(demo)


def demo(
    act: Annotated[
        Act | None, typer.Option(show_default=False, help="Run this act only. Default: all.")
    ] = None,
    transactions: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many transfers the bank makes.")
    ] = 2000,
    rows: Annotated[
        int, typer.Option(min=10, metavar="N", help="How many rows a call is paid for.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="The same seed makes the same transfers.")] = 1,
    json: JsonOption = False,
) -> None:
    """Run a bank and a pipeline of paid calls, kill parts of them, and count what went wrong.

    The bank: a transfer is a transaction over journals of two collections. While the demo makes
    transfers, a task of two members on Spark appends them to Parquet files; what it sees at each
    checkpoint must sum to zero. The demo kills one member, and at the end compares the files with
    what was committed.

    The calls: a pipeline pays a server on this machine for an answer to every row. The demo kills
    it half-way and runs it again, and at the end compares rows and ledger with the server's bill.

    A last line for each act and the exit code (0 or 1) say whether the guarantees held.
    """

    def make(name: Act, scratch: Path, display: TaskDisplay) -> DemoAct:
        # Imported here: some acts start their own module as a program, which imports this one.
        from headrace.cli.acts.bank_act import BankAct
        from headrace.cli.acts.calls_act import CallsAct

        match name:
            case Act.BANK:
                return BankAct(scratch, transactions, seed, display, spark)
            case Act.CALLS:
                return CallsAct(scratch, rows, display)

    outcomes: dict[Act, Outcome] = {}
    with (
        # After a second Ctrl-C, Spark may still be writing there.
        tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as folder,
        DemoSpark(Path(folder).resolve()) as spark,
    ):
        for name in [act] if act else Act:
            scratch = Path(folder).resolve() / name
            scratch.mkdir()
            with TaskDisplay("nothing" if json else "text") as display:
                chosen = make(name, scratch, display)
                outcomes[name] = chosen.run()
            if not json:
                chosen.show()
                print_fields(outcomes[name].fields())
    if json:
        print_json({name: outcome_json(outcome) for name, outcome in outcomes.items()})
    else:
        for outcome in outcomes.values():
            print_line(outcome.verdict())
    if not all(outcome.is_good for outcome in outcomes.values()):
        raise typer.Exit(1)
