"""`headrace demo`: everything at work on this machine, parts of it killed, and what was lost."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace.cli.acts.contract import DemoAct, Outcome, outcome_json
from headrace.cli.acts.demo_spark import DemoSpark
from headrace.cli.render.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.render.task_display import TaskDisplay


class Act(StrEnum):
    BANK = "bank"
    CALLS = "calls"
    STORES = "stores"


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
    sales: Annotated[
        int, typer.Option(min=20, metavar="N", help="How many sales the stores are filled with.")
    ] = 2000,
    seed: Annotated[
        int, typer.Option(help="The same seed makes the same transfers and sales.")
    ] = 1,
    json: JsonOption = False,
) -> None:
    """Run a bank, paid calls and two stores, kill parts of them, and count what went wrong.

    The bank: a transfer is a transaction over journals of two collections. While the demo makes
    transfers, a task of two members on Spark appends them to Parquet files; what it sees at each
    checkpoint must sum to zero. The demo kills one member, and at the end compares the files with
    what was committed.

    The calls: a pipeline pays a server on this machine for an answer to every row. The demo kills
    it half-way and runs it again, and at the end compares rows and ledger with the server's bill.

    The stores: two tasks on Spark fill a store of time series with what bakeries sell, and a store
    of vectors with what customers write. The demo kills the process that has the stores open, and
    at the end compares what they hold, and their answers to a query each, with what was published.

    A last line for each act and the exit code (0 or 1) say whether the guarantees held.
    """
    sizes = _Sizes(transactions, rows, sales, seed)
    outcomes: dict[Act, Outcome] = {}
    with (
        # After a second Ctrl-C, Spark may still be writing there.
        tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as folder,
        DemoSpark(Path(folder).resolve()) as spark,
    ):
        for name in [act] if act else Act:
            with TaskDisplay("nothing" if json else "text") as display:
                running = _make(name, sizes, Path(folder).resolve(), display, spark)
                outcomes[name] = running.run()
            if not json:
                running.show()
                print_fields(outcomes[name].fields())
    if json:
        print_json({name: outcome_json(outcome) for name, outcome in outcomes.items()})
    else:
        for outcome in outcomes.values():
            print_line(outcome.verdict())
    if not all(outcome.is_good for outcome in outcomes.values()):
        raise typer.Exit(1)


class _Sizes(NamedTuple):
    """How much the acts do."""

    transactions: int
    rows: int
    sales: int
    seed: int


def _make(
    name: Act, sizes: _Sizes, folder: Path, display: TaskDisplay, spark: DemoSpark
) -> DemoAct:
    # Imported here: a module that is started as a program must not be imported with the commands.
    from headrace.cli.acts.bank_act import BankAct
    from headrace.cli.acts.calls_act import CallsAct
    from headrace.cli.acts.stores_act import StoresAct

    scratch = folder / name
    scratch.mkdir()
    match name:
        case Act.BANK:
            return BankAct(scratch, sizes.transactions, sizes.seed, display, spark)
        case Act.CALLS:
            return CallsAct(scratch, sizes.rows, display)
        case Act.STORES:
            return StoresAct(scratch, sizes.sales, sizes.seed, display, spark)
