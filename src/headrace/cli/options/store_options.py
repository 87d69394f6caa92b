"""Arguments that name a store, moments and vectors, and how a command opens a store."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import headrace as hr
from headrace.cli.options.service_options import LOOPBACK
from headrace.cli.render.units import parse_duration
from headrace.decoders import decode_json
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.stores.service.shared_store import SharedStore
    from headrace.stores.service.shared_timeseries import SharedTimeSeries
    from headrace.stores.service.shared_vectors import SharedVectors

StoreArgument = Annotated[
    str,
    typer.Argument(metavar="STORE", help="Its directory, or the address of its owner."),
]
_RELATIVE = re.compile(r"(?:now)?\s*-\s*(\S+)")
_PORT_MAX = 65_535


def open_any_store(store: str, token: str = "", tls_root: str = "") -> SharedStore:
    from headrace.stores.service.store_access import open_store

    return open_store(store, hr.ServiceSettings(tls_root=tls_root), token=token)


def open_samples(store: str, token: str = "", tls_root: str = "") -> SharedTimeSeries:
    from headrace.stores.service.store_access import open_timeseries

    return open_timeseries(store, hr.ServiceSettings(tls_root=tls_root), token=token)


def open_embeddings(store: str, token: str = "", tls_root: str = "") -> SharedVectors:
    from headrace.stores.service.store_access import open_vectors

    return open_vectors(store, hr.ServiceSettings(tls_root=tls_root), token=token)


def parse_moment(text: str) -> int:
    """Return the milliseconds since 1970 that a text such as `now-1h` means."""
    now_ms = time.time_ns() // 1_000_000
    given = text.strip()
    if given == "now":
        return now_ms
    if relative := _RELATIVE.fullmatch(given):
        return now_ms - round(parse_duration(relative[1]) * 1000)
    try:
        return round(float(given) * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: write it like now-1h, 2026-01-31T12:00:00Z or seconds since"
            " 1970"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def moment_option(help: str) -> Any:
    return typer.Option(parser=parse_moment, metavar="TIME", show_default=False, help=help)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text such as `127.0.0.1:9090` or `[::1]:9090`."""
    host, separator, port = text.rpartition(":")
    is_port = port.isdecimal() and int(port) <= _PORT_MAX
    if not is_port or not separator or (":" in host and not host.startswith("[")):
        raise typer.BadParameter(f"{text!r} is not an address: write it like {LOOPBACK}:9090")
    return host.strip("[]") or LOOPBACK, int(port)


def parse_metadata(given: list[str]) -> dict[str, str]:
    """Return names and types of metadata columns, which are given like `name:string`."""
    found: dict[str, str] = {}
    for each in given:
        name, separator, kind = each.partition(":")
        if not (name and separator and kind):
            raise UsageError(f"--metadata {each!r} names no column", do="write it like name:string")
        if name in found:
            raise UsageError(f"--metadata names {name!r} twice", do="leave one of them out")
        found[name] = kind
    return found


def parse_vector(text: str) -> list[float]:
    """Return the numbers of a text such as `[0.1, 0.2]` or `0.1,0.2`."""
    inside = text.strip().removeprefix("[").removesuffix("]")
    try:
        return [float(each) for each in inside.split(",")]
    except ValueError:
        raise UsageError(
            f"--vector {text[:60]!r} is no list of numbers", do="write it like '[0.1, 0.2]'"
        ) from None


def parse_filter(text: str) -> dict[str, Any] | None:
    """Return a filter of metadata from its JSON."""
    if not text:
        return None
    try:
        return decode_json(text, dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"--filter {text[:60]!r} cannot be read: {error}",
            do="""write it like '{"field": "name", "eq": "ann"}'""",
        ) from None
