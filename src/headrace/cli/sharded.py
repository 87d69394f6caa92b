"""Documents of collections through a shuffle, for `headrace read --shards`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, NamedTuple

import pyarrow as pa
import typer

import headrace as hr
from headrace.cli.access import token_option
from headrace.cli.resuming import Sessions
from headrace.cli.units import counted
from headrace.cli.workspace_argument import checked_place
from headrace.errors import UsageError
from headrace.journal.location.workspace_name import is_address
from headrace.settings import ServiceSettings
from headrace.shuffle.binding import Source, document_schema
from headrace.shuffle.block import without_ours
from headrace.shuffle.local_members import LocalMembers

SHARDS_MAX = 64
"""Each talks to each: on one machine, more are slower."""

ShardsOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=SHARDS_MAX, metavar="N", show_default=False, help="Through N shuffle members."
    ),
]


def _addresses(given: list[str] | None) -> list[str]:
    addresses = given or []
    for at, each in enumerate(addresses):
        if not is_address(each):
            what = f"{each!r} is not an address: write it like grpc://localhost:7071"
            raise typer.BadParameter(what)
        if checked_place(each) in addresses[:at]:
            raise typer.BadParameter(f"{each} is one member: name it once")
    return addresses


MemberOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        callback=_addresses,
        help="Through this one, of `shuffle member`; repeat it for more.",
    ),
]
MemberTokenOption = Annotated[
    str, token_option("HEADRACE_MEMBER_TOKEN", "What those members ask for")
]


class Through(NamedTuple):
    """Members at addresses, or so many that are made for it."""

    shards: int | None
    members: Sequence[str]
    service: ServiceSettings
    """How they are reached."""

    @contextmanager
    def opened(self, *, processes: bool) -> Iterator[tuple[list[str], ServiceSettings]]:
        """Where members listen, and how they are reached. `processes`: what those made are."""
        if self.members:
            yield list(self.members), self.service
            return
        with LocalMembers(self.shards or 1, processes=processes, service=self.service) as made:
            yield made.addresses, made.service


def sharded_batches(
    ws: hr.Workspace,
    collections: Mapping[str, hr.Selector],
    through: Through,
    *,
    follow: threading.Event | None,
    meta: bool,
) -> Iterator[pa.RecordBatch]:
    """Whole transactions, checkpoint by checkpoint.

    Those committed now; with `follow` also those that commit later, until it is set.
    """
    if through.members and through.shards and through.shards != len(through.members):
        raise UsageError(
            f"{counted(through.shards, 'shard')} for {counted(len(through.members), 'member')}",
            do="leave --shards out: every member is one",
        )
    bindings = [hr.Binding(collection=c, selector=s) for c, s in collections.items()]
    read = partial(_read, meta=meta)
    if follow:
        # As processes: whatever becomes of one, the others and this one can go on.
        open_members = partial(through.opened, processes=True)
        yield from Sessions(ws, bindings, open_members, read, follow).batches()
        return
    cut = ws.journals()
    with (
        through.opened(processes=False) as (addresses, service),
        hr.Shuffle(ws, bindings, addresses, cut=cut, service=service) as shuffle,
    ):
        for checkpoint in shuffle.drain():
            yield from read(shuffle, checkpoint)
            shuffle.release(checkpoint)


def _read(
    shuffle: hr.Shuffle, checkpoint: hr.NextCheckpoint, *, meta: bool
) -> Iterator[pa.RecordBatch]:
    for member in range(shuffle.members):
        for source, batch in shuffle.read(member, checkpoint):
            yield _shown(source, member, batch, meta=meta)


def _shown(source: Source, member: int, batch: pa.RecordBatch, *, meta: bool) -> pa.RecordBatch:
    schema = document_schema(source)
    documents = without_ours(batch, schema)
    if not meta:
        return documents
    rows = batch.num_rows
    return (
        documents.append_column("_collection", pa.repeat(source.collection, rows))
        .append_column("_shard", pa.repeat(member, rows))
        .append_column("_clock", batch["_clock"])
    )
