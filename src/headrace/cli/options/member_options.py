"""Options that choose the shuffle members a command reads through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.options.service_options import token_option
from headrace.cli.options.workspace_options import checked_location
from headrace.cli.render.units import counted
from headrace.errors import UsageError
from headrace.journal.location.workspace_ref import is_address

SHARDS_MAX = 64
"""Each member talks to each other one: on one machine, more members are slower."""

ShardsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=SHARDS_MAX,
        metavar="N",
        show_default=False,
        help="Read through N shuffle members, started for this.",
    ),
]


def _addresses(given: list[str] | None) -> list[str]:
    addresses = given or []
    for index, address in enumerate(addresses):
        if not is_address(address):
            what = f"{address!r} is not an address: write it like grpc://localhost:7071"
            raise typer.BadParameter(what)
        if checked_location(address) in addresses[:index]:
            raise typer.BadParameter(f"{address} is one member: name it once")
    return addresses


MemberOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        callback=_addresses,
        help="Read through this member, started by `shuffle member`; repeat it for more.",
    ),
]
MemberTokenOption = Annotated[str, token_option("HEADRACE_MEMBER_TOKEN", "The members' token")]


def members_to_use(shards: int | None, members: Sequence[str]) -> int | Sequence[str]:
    """Return how many members to start, or the addresses of running ones."""
    if members and shards and shards != len(members):
        raise UsageError(
            f"{counted(shards, 'shard')} for {counted(len(members), 'member')}",
            do="leave --shards out: every member is one",
        )
    return members or shards or 1
