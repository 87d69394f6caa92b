"""Opens a Session: a Slice on every member, or on none, and what its consumer holds of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from headrace.settings import ServiceSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.member.member_connections import open_all, open_one
from headrace.shuffle.peer import Peer
from headrace.shuffle.queue.queue_client import Consumer
from headrace.transport import Client

_from_slice: msgspec.msgpack.Decoder[messages.FromSlice] = msgspec.msgpack.Decoder(
    messages.FromSlice
)


def open_slices(
    openings: Sequence[messages.OpenSlice], settings: ServiceSettings, stack: ExitStack
) -> tuple[list[Client], list[Peer]]:
    """Open a Slice on every member; return the clients and the Slices. Raises the first refusal."""
    members = openings[0].members
    timeout_s = openings[0].settings.open_s
    clients = [Client(member.address, settings) for member in members]
    for client in clients:
        stack.callback(client.close)
    slices = open_all(
        clients,
        lambda member, client: _open_slice(client, openings[member]),
        who="member",
        timeout_s=timeout_s,
    )
    return clients, slices


def open_consumers(
    clients: Sequence[Client], session: str, sources: Sources, timeout_s: float
) -> list[Consumer]:
    """Open a conversation for the consumer with every member. Raises the first refusal."""

    def open(_: int, client: Client) -> Consumer:
        consumer = Consumer(client, session, sources)
        consumer.connect()
        return consumer

    return open_all(clients, open, who="member", timeout_s=timeout_s)


def _open_slice(client: Client, opening: messages.OpenSlice) -> Peer:
    peer = Peer(f"member {opening.member}", client, messages.SLICE, _from_slice)
    return open_one(peer, opening, messages.Opened(opening.session))
