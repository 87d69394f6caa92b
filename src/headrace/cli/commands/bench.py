"""`headrace bench NAME`: measure this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.bench.bench_catalog import bench_catalog
from headrace.bench.bench_journal import bench_journal
from headrace.bench.bench_recovery import bench_recovery
from headrace.bench.bench_scale import bench_scale
from headrace.bench.bench_shuffle import bench_shuffle
from headrace.bench.steps import heard_by
from headrace.bench.targets import noise, unit_of, verdict
from headrace.cli.render.output import JsonOption, as_example, print_json, print_note, print_table
from headrace.cli.render.step_display import StepDisplay
from headrace.decoders import decode_json
from headrace.errors import UsageError
from headrace.files import storage_errors

app = typer.Typer(
    no_args_is_help=True, help="Measure this machine, and beside each figure its yardstick."
)

DirectoryOption = Annotated[
    Path, typer.Option("--directory", "-d", help="Write here; everything is removed at the end.")
]


@app.command(epilog=as_example("headrace bench journal --directory . --json"))
def journal(
    directory: DirectoryOption = Path("."),
    mib: Annotated[int, typer.Option(min=1, help="MiB to publish in each round.")] = 256,
    json: JsonOption = False,
) -> None:
    """Compare synced publishing and committed reading with plain sequential writes."""
    _run("journal", lambda scratch: bench_journal(scratch, mib), directory, as_json=json)


@app.command(epilog=as_example("headrace bench catalog --journals 10000"))
def catalog(
    directory: DirectoryOption = Path("."),
    journals: Annotated[int, typer.Option(min=1, help="Journals to create.")] = 100_000,
    json: JsonOption = False,
) -> None:
    """Compare creating, listing and watching very many journals with plain files and syncs."""
    _run("catalog", lambda scratch: bench_catalog(scratch, journals), directory, as_json=json)


@app.command(epilog=as_example("headrace bench shuffle --mib 64 --json"))
def shuffle(
    directory: DirectoryOption = Path("."),
    mib: Annotated[int, typer.Option(min=1, help="MiB to read in each round.")] = 256,
    json: JsonOption = False,
) -> None:
    """Compare reading documents through member processes with the disk and Bytewax."""
    _run("shuffle", lambda scratch: bench_shuffle(scratch, mib), directory, as_json=json)


@app.command(epilog=as_example("headrace bench members --members 4 --json"))
def members(
    directory: DirectoryOption = Path("."),
    mib: Annotated[int, typer.Option(min=1, help="MiB to read in each run.")] = 1536,
    members: Annotated[
        int | None, typer.Option(min=1, help="The most members; as many as cores if left out.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the figures into this file, in SVG.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Measure nothing: draw the figures that --json printed into this file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Read documents through 1, 2, 4, 8 and 16 member processes, as far as there are cores."""
    from headrace.bench.bench_members import bench_members
    from headrace.bench.members_picture import draw_members

    def draw(found: dict[str, float], into: Path) -> None:
        with storage_errors(f"cannot write {into}", do="name a file that you can write to"):
            into.write_text(draw_members(found))

    def bench(scratch: Path) -> dict[str, float]:
        found = bench_members(scratch, mib, members)
        if picture:
            draw(found, picture)
        return found

    if not figures:
        _run("members", bench, directory, as_json=json)
    elif not picture:
        raise UsageError("there is no file to draw the figures into", do="add --picture FILE")
    else:
        draw(_read_figures(figures, "members"), picture)


@app.command(epilog=as_example("headrace bench scale --journals 10000 --members 4"))
def scale(
    directory: DirectoryOption = Path("."),
    journals: Annotated[int, typer.Option(min=1, help="Journals to read.")] = 100_000,
    members: Annotated[int, typer.Option(min=1, help="Member processes that read them.")] = 10,
    json: JsonOption = False,
) -> None:
    """Read very many journals through many member processes."""
    _run("scale", lambda scratch: bench_scale(scratch, journals, members), directory, as_json=json)


@app.command(epilog=as_example("headrace bench queue --messages 100000 --json"))
def queue(
    directory: DirectoryOption = Path("."),
    messages: Annotated[
        int, typer.Option(min=1000, help="Messages to produce, fetch and recover.")
    ] = 1_000_000,
    json: JsonOption = False,
) -> None:
    """Measure topics in memory, served and durable on journals, and the stages between them."""
    from headrace.bench.bench_queue import bench_queue
    from headrace.bench.bench_stage import bench_stage

    def bench(scratch: Path) -> dict[str, float]:
        return bench_queue(scratch, messages) | bench_stage(scratch, messages // 10)

    _run("queue", bench, directory, as_json=json)


@app.command(epilog=as_example("headrace bench utilisation --units 200 --json"))
def utilisation(
    directory: DirectoryOption = Path("."),
    units: Annotated[int, typer.Option(min=8, help="Units of 50 ms in each of two stages.")] = 1000,
    json: JsonOption = False,
) -> None:
    """Compare a pipeline with the ideal, and count what it repeats after a kill; so Ray Data."""
    from headrace.bench.bench_utilisation import bench_utilisation

    _run("utilisation", lambda scratch: bench_utilisation(scratch, units), directory, as_json=json)


@app.command(epilog=as_example("headrace bench recovery --documents 100000"))
def recovery(
    directory: DirectoryOption = Path("."),
    documents: Annotated[
        int,
        typer.Option(min=1000, help="Documents that members have read ahead when it is killed."),
    ] = 1_000_000,
    strikes: Annotated[
        int,
        typer.Option(min=0, help="How often to kill, and to stop, the owner; 0 leaves Spark out."),
    ] = 3,
    json: JsonOption = False,
) -> None:
    """Kill a Session, and the owner of the journals under a task; time the recovery."""

    def bench(scratch: Path) -> dict[str, float]:
        result = bench_recovery(scratch, documents)
        if strikes:
            from headrace.bench.bench_takeover import bench_takeover

            result |= bench_takeover(scratch, strikes)
        return result

    _run("recovery", bench, directory, as_json=json)


@app.command(epilog=as_example("headrace bench ledger --results 100000 --json"))
def ledger(
    directory: DirectoryOption = Path("."),
    results: Annotated[int, typer.Option(min=1000, help="Results to look up.")] = 1_000_000,
    calls: Annotated[int, typer.Option(min=1, help="Calls of 100 ms to make in each round.")] = 480,
    json: JsonOption = False,
) -> None:
    """Measure what the ledger adds to paid calls, and how fast it finds results."""
    from headrace.bench.bench_ledger import bench_ledger

    _run("ledger", lambda scratch: bench_ledger(scratch, results, calls), directory, as_json=json)


@app.command(epilog=as_example("headrace bench ingest --scale 0.1 --json"))
def ingest(
    directory: DirectoryOption = Path("."),
    scale: Annotated[
        float, typer.Option(min=0.001, help="Size of each part, as a part of the default.")
    ] = 1.0,
    part: Annotated[
        list[str] | None, typer.Option(help="Measure this part alone; may be repeated.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure the write coordinator and the stores on it, each beside its yardstick."""
    from headrace.bench.bench_ingest import bench_ingest

    _run(
        "ingest", lambda scratch: bench_ingest(scratch, scale, part or ()), directory, as_json=json
    )


@app.command(epilog=as_example("headrace bench exchange --scale 0.1 --json"))
def exchange(
    directory: DirectoryOption = Path("."),
    scale: Annotated[
        float, typer.Option(min=0.00001, help="Rows of each data set, as a part of the default.")
    ] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take the median of.")] = 5,
    json: JsonOption = False,
) -> None:
    """Compare a shuffle through the exchange with Spark's own, plain and with a checkpoint."""
    from headrace.bench.bench_exchange import bench_exchange

    _run(
        "exchange", lambda scratch: bench_exchange(scratch, scale, rounds), directory, as_json=json
    )


@app.command(epilog=as_example("headrace bench spark --mib 64 --json"))
def spark(
    directory: DirectoryOption = Path("."),
    mib: Annotated[int, typer.Option(min=1, help="MiB to read in each round.")] = 512,
    journals: Annotated[
        int, typer.Option(min=1, help="Journals for the overhead of a trigger.")
    ] = 1000,
    triggers: Annotated[int, typer.Option(min=1, help="Triggers to measure.")] = 15,
    json: JsonOption = False,
) -> None:
    """Compare a Spark aggregation of journals with bare Python data sources and Parquet."""
    from headrace.bench.bench_spark import bench_spark

    def bench(scratch: Path) -> dict[str, float]:
        return bench_spark(scratch, mib, journals, triggers)

    _run("spark", bench, directory, as_json=json)


def _read_figures(path: Path, bench: str) -> dict[str, float]:
    """Return the figures that a benchmark printed with --json, from the last line of a file."""
    with storage_errors(f"cannot read {path}", do="name a file with the output of --json"):
        lines = path.read_text().splitlines() or [""]
    try:
        found = decode_json(lines[-1], dict[str, float | str])
    except msgspec.MsgspecError:
        found = {}
    if found.pop("bench", "") != bench:
        raise UsageError(
            f"{path} has no figures of this benchmark",
            do=f"write the output of 'headrace bench {bench} --json' into it",
        )
    return {name: value for name, value in found.items() if isinstance(value, float)}


def _run(
    name: str, bench: Callable[[Path], dict[str, float]], directory: Path, *, as_json: bool
) -> None:
    prefix = f"headrace-bench-{name}-"
    do = "name a directory that you can write to, with enough free space"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with (
        storage_errors(f"cannot measure in {directory}", do=do),
        tempfile.TemporaryDirectory(prefix=prefix, dir=directory) as scratch,
        StepDisplay(name, is_silent=as_json) as display,
        heard_by(display.step),
    ):
        result = bench(Path(scratch).resolve())
    if as_json:
        print_json({"bench": name, "cpus": cores, "load": load, **result})
        return
    figures = (
        (key, _shown(value), unit_of(key), verdict(name, key, value))
        for key, value in result.items()
    )
    print_table(figures, ("figure", "value", "unit", "verdict"), numbers=("value",))
    print_note(noise(load, cores))


def _shown(value: float) -> str:
    return f"{value:,.3f}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
