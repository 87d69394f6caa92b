"""`headrace store`: stores of time series and of vectors."""

from __future__ import annotations

import os
import sys
import time
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import msgspec
import typer

from headrace.cli.interruption import until_stopped
from headrace.cli.options.service_options import (
    LOOPBACK,
    HostOption,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    service_settings,
    token_option,
)
from headrace.cli.options.store_options import (
    StoreArgument,
    moment_option,
    open_any_store,
    open_embeddings,
    open_samples,
    parse_address,
    parse_filter,
    parse_metadata,
    parse_moment,
    parse_vector,
)
from headrace.cli.options.workspace_options import TlsRootOption, TokenOption
from headrace.cli.render.output import (
    JsonOption,
    as_example,
    print_fields,
    print_json,
    print_line,
    print_warning,
)
from headrace.cli.render.units import counted, parse_duration
from headrace.errors import NotFoundError, UsageError
from headrace.transport.access import is_loopback

if TYPE_CHECKING:
    from headrace.stores.service.shared_store import SharedStore

app = typer.Typer(
    no_args_is_help=True, help="Create, serve, fill and query stores of time series and vectors."
)

_CHECK_S = 0.5
"""How often `serve` asks whether its store still takes writes."""

_CHART_STEPS = 140
"""A chart has about as many steps as it has dots."""


@app.command(epilog=as_example("headrace store create ./metrics --kind timeseries"))
def create(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A new or empty directory.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="timeseries or vectors.")],
    dimension: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="How many numbers a vector has."),
    ] = None,
    metric: Annotated[
        str, typer.Option(metavar="METRIC", help="What a search orders by: cosine, l2 or dot.")
    ] = "cosine",
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:TYPE", show_default=False, help="A column beside vectors; repeat it."
        ),
    ] = None,
    retention: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            show_default=False,
            help="A time series forgets samples that are older, such as 30d. Default: keep all.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="lmdb, or slatedb for objects on S3.")
    ] = "lmdb",
    objects: Annotated[
        str,
        typer.Option(
            metavar="URL", show_default=False, help="Where slatedb keeps data: s3://bucket/prefix."
        ),
    ] = "",
) -> None:
    """Create an empty store.

    Creating it again with the same settings changes nothing.
    """
    from headrace.stores.service.store_directory import StoreSettings, create_store

    settings = StoreSettings(
        backend=backend,
        objects=objects,
        retention_s=retention,
        dimension=dimension,
        metric=metric,
        metadata=parse_metadata(metadata or []),
    )
    create_store(store, kind, settings)
    print_line(f"{store} is a store of {kind}")


@app.command(epilog=as_example("headrace store serve ./metrics --http 127.0.0.1:9090"))
def serve(
    store: StoreArgument,
    http: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Serve HTTP there; port 0 is a free one."),
    ] = f"{LOOPBACK}:0",
    token: Annotated[
        str,
        token_option(
            "HEADRACE_TOKEN",
            "The token that callers must send",
            " Without it HTTP is open to this machine.",
        ),
    ] = "",
    host: HostOption = LOOPBACK,
    port: PortOption = 0,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    json: JsonOption = False,
) -> None:
    """Serve a store until Ctrl-C.

    This process opens the store, and other processes of this machine work through it. --host and
    --port are for those of other machines, --http is for Grafana, curl and other clients. It ends
    with an error when a write fails, because only a store that is opened again takes further ones.
    """
    from headrace.stores.service.shared_store import is_store_address
    from headrace.stores.service.store_access import open_store
    from headrace.stores.service.store_page import serve_http

    if is_store_address(store):
        raise UsageError(f"{store} is served already", do="name the directory of a store")
    service = service_settings(host, port, token, tls_cert, tls_key)
    http_host, http_port = parse_address(http)
    for_http = msgspec.structs.replace(service, host=http_host, port=http_port, token=token)
    if not tls_cert and is_loopback(host) and not is_loopback(http_host):
        print_warning(f"HTTP on {http_host} without TLS: tokens and data travel in the clear")
    with until_stopped(), open_store(store, service) as opened, serve_http(opened, for_http) as web:
        about = {"store": opened.place, "kind": opened.kind, "http": web.address}
        address = opened.reach().address
        if not token and not is_loopback(host):
            about["token"] = service.token
        if json:
            print_json({**about, "address": address, "process": os.getpid()})
        else:
            print_fields({**about, "address": address})
            print_line("serving it until Ctrl-C")
        _wait_for_failure(opened)


def _wait_for_failure(store: SharedStore) -> NoReturn:
    """Raise what ended the writing of the store as soon as it has ended.

    A process that went on would refuse every write, and whoever watches it would see it run.
    """
    while True:
        time.sleep(_CHECK_S)
        store.raise_failure()


@app.command(epilog=as_example("headrace store query ./metrics 'rate(visits[5m])' --start now-1h"))
def query(
    store: StoreArgument,
    promql: Annotated[str, typer.Argument(metavar="PROMQL", help="The query.")],
    at: Annotated[int | None, moment_option("Answer for this time. Default: now.")] = None,
    start: Annotated[
        int | None, moment_option("Draw a chart from this time on, such as now-1h.")
    ] = None,
    end: Annotated[int | None, moment_option("The end of the chart. Default: now.")] = None,
    step: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            show_default=False,
            help="The time between two points. Default: as many as the chart shows.",
        ),
    ] = None,
    json: JsonOption = False,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Answer a PromQL query, at one time or as a chart."""
    from headrace.cli.render import store_display as display

    if at is not None and start is not None:
        raise UsageError("--at and --start exclude each other", do="leave one of them out")
    if start is None and (end is not None or step is not None):
        raise UsageError("--end and --step are for a chart", do="give --start too, such as now-1h")
    now_ms = parse_moment("now")
    with open_samples(store, token, tls_root) as opened:
        if start is None:
            found = opened.query(promql, now_ms if at is None else at)
            display.print_answer(found, as_json=json)
            return
        last = now_ms if end is None else end
        step_ms = _step_ms(start, last, step)
        matrix = opened.query_range(promql, start, last, step_ms / 1000)
        if json:
            display.print_answer(matrix, as_json=True)
        else:
            display.print_chart(matrix.series, start, last, step_ms)


def _step_ms(start_ms: int, end_ms: int, step_s: float | None) -> int:
    if step_s is not None:
        return max(1, round(step_s * 1000))
    # Whole seconds are what rates and scrapes are made of.
    return max(1, (end_ms - start_ms) // _CHART_STEPS // 1000) * 1000


@app.command(epilog=as_example("headrace store search ./texts --id a17 -k 5"))
def search(
    store: StoreArgument,
    vector: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS", show_default=False, help="Search near these, such as '[0.1, 0.2]'."
        ),
    ] = "",
    id: Annotated[
        str,
        typer.Option(metavar="ID", show_default=False, help="Search near the vector of this id."),
    ] = "",
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="How many to find.")] = 10,
    filter: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            show_default=False,
            help="""Only rows such as '{"field": "name", "eq": "ann"}'.""",
        ),
    ] = "",
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every vector.")] = False,
    json: JsonOption = False,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Find the vectors that are nearest to a vector, nearest first.

    With --id, the vector of that id itself is left out.
    """
    import pyarrow as pa

    from headrace.cli.render.store_display import print_rows
    from headrace.stores.vectors.vector_rows import ID, VECTOR

    if bool(vector) == bool(id):
        raise UsageError("a search needs --vector or --id", do="give one of them")
    kept = parse_filter(filter)
    with open_embeddings(store, token, tls_root) as opened:
        if id:
            found = opened.get([id], [VECTOR])
            if not found.num_rows:
                raise NotFoundError(f"{store} has no vector {id!r}", do="name one that it has")
            numbers = found.column(VECTOR)[0].as_py()
        else:
            numbers = parse_vector(vector)
        rows = opened.search(numbers, k + 1 if id else k, kept, exact=exact)
        if id:
            others = [row for row, name in enumerate(rows.column(ID).to_pylist()) if name != id]
            rows = rows.take(pa.array(others[:k], pa.int64()))
        if json:
            print_json(rows.to_pylist())
        else:
            print_rows(rows)


@app.command(epilog=as_example("headrace store write ./metrics < samples.ndjson"))
def write(
    store: StoreArgument,
    json: JsonOption = False,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Store the rows of stdin, one JSON object on each line, and wait until they are durable.

    Time series: {"labels": {"__name__": "visits", "page": "/"}, "timestamp": 1700000000000,
    "value": 1}. Vectors: {"id": "a", "vector": [0.1, 0.2]} and columns of metadata.
    """
    from headrace.cli.store_rows import write_lines

    with open_any_store(store, token, tls_root) as opened:
        rows = write_lines(opened, cast(BufferedReader, sys.stdin.buffer))
    if json:
        print_json({"rows": rows})
    else:
        print_line(f"{counted(rows, 'row')} stored in {store}")


@app.command(epilog=as_example("headrace store stat ./metrics --json"))
def stat(
    store: StoreArgument,
    json: JsonOption = False,
    token: TokenOption = "",
    tls_root: TlsRootOption = "",
) -> None:
    """Show how much a store holds."""
    from headrace.cli.render.store_display import print_stat

    with open_any_store(store, token, tls_root) as opened:
        figures = opened.stat()
        about = {"store": opened.place, "kind": opened.kind, "backend": opened.settings.backend}
    if json:
        print_json(about | figures)
    else:
        print_stat(about, figures)
