"""Opens one conversation with each of several members: with all of them in time, or with none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from headrace.errors import PeerLostError, ProtocolError, UsageError
from headrace.shuffle.peer import Peer
from headrace.transport import Client, LocalClient

P = TypeVar("P")
AnyClient = TypeVar("AnyClient", Client, Client | LocalClient)


def open_one(peer: Peer, opening: object, answer: object) -> Peer:
    """Send `opening`; raises ProtocolError if the peer does not reply `answer`."""
    peer.send(opening)
    reply = peer.receive()
    if reply is None or reply.control != answer:
        received = "nothing" if reply is None else type(reply.control).__name__
        if received == type(answer).__name__:
            received = "for another Session"
        raise ProtocolError(f"{peer.name} answered {received}", do="open the Session again")
    return peer


def check_addresses(members: object) -> None:
    """Raise UsageError if `members` is one address: as a sequence, it would be its letters."""
    if isinstance(members, str):
        raise UsageError(
            f"members must be a list of addresses, got {members!r}", do=f"use [{members!r}]"
        )


def open_all(
    clients: Sequence[AnyClient],
    open_peer: Callable[[int, AnyClient], P],
    *,
    who: str,
    timeout_s: float,
) -> list[P]:
    """Call `open_peer` for every member at the same time, and return what it returned.

    Raises the first error, or PeerLostError if a member lives and does not answer in time. Then
    all clients are closed. Errors call the peer of a member `who`.
    """
    with ThreadPoolExecutor(len(clients)) as pool:
        try:
            asked = [pool.submit(open_peer, *numbered) for numbered in enumerate(clients)]
            done, _ = wait(asked, timeout_s, FIRST_EXCEPTION)
            if error := next((found for each in done if (found := each.exception())), None):
                raise error
            if late := [member for member, each in enumerate(asked) if each not in done]:
                names = ", ".join(f"{who} {member} at {clients[member].address}" for member in late)
                raise PeerLostError(
                    f"{names} did not open within {timeout_s:g} s",
                    do="see what it waits for, or allow more time with shuffle.open_s",
                )
        except BaseException:
            # The pool ends only when every call has: closing frees those that still wait,
            # perhaps for the member that refused.
            close_all(clients)
            raise
    return [each.result() for each in asked]


def close_all(clients: Sequence[Client | LocalClient]) -> None:
    for client in clients:
        client.close()
