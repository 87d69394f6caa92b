"""`headrace bench NAME`: measure this machine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.bench.catalog import bench_catalog
from headrace.bench.journal import bench_journal

bench_app = typer.Typer(help="Measure this machine, each figure beside its yardstick.")

_JSON = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
_DIRECTORY = Annotated[
    Path, typer.Option("--directory", "-d", help="Where to write; removed at the end.")
]


def _run(
    name: str, bench: Callable[[Path], dict[str, float]], directory: Path, as_json: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix=f"headrace-bench-{name}-", dir=directory) as scratch:
        result = bench(Path(scratch))
    if as_json:
        typer.echo(json.dumps({"bench": name, "cpus": os.cpu_count(), **result}))
        return
    table = Table("figure", "value", title=f"bench {name}")
    for key, value in result.items():
        table.add_row(key, f"{value:,.3f}" if value < 1000 else f"{value:,.0f}")
    Console().print(table)


@bench_app.command("journal")
def journal(
    directory: _DIRECTORY = Path("."),
    mib: Annotated[int, typer.Option(help="How much to publish in each round.")] = 256,
    as_json: _JSON = False,
) -> None:
    """Synced publishing and committed reading, against plain sequential writes."""
    _run("journal", lambda scratch: bench_journal(scratch, mib), directory, as_json)


@bench_app.command("catalog")
def catalog(
    directory: _DIRECTORY = Path("."),
    journals: Annotated[int, typer.Option(help="How many journals to make.")] = 100_000,
    as_json: _JSON = False,
) -> None:
    """Making, listing and watching very many journals."""
    _run("catalog", lambda scratch: bench_catalog(scratch, journals), directory, as_json)
