"""Opening one conversation with each of several members: all of them in time, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from headrace.errors import PeerLostError, ProtocolError
from headrace.shuffle.peer import Peer
from headrace.transport import Client


def open_one(peer: Peer, opening: object, answer: object) -> Peer:
    """Say `opening`, and hear `answer`."""
    peer.send(opening)
    said = peer.receive()
    if said is None or said.control != answer:
        heard = "nothing" if said is None else type(said.control).__name__
        if heard == type(answer).__name__:
            heard = "for another Session"
        raise ProtocolError(f"{peer.name} answered {heard}", do="open the Session again")
    return peer


def open_all(
    clients: Sequence[Client],
    open_at: Callable[[int, Client], Peer],
    *,
    who: str,
    timeout_s: float,
) -> list[Peer]:
    """`open_at` of every member at the same time. The first refusal ends it, and is raised.

    A member that lives and does not answer in time ends it too. `who` is what answers there.
    """
    with ThreadPoolExecutor(len(clients)) as pool:
        try:
            asked = [pool.submit(open_at, at, client) for at, client in enumerate(clients)]
            done, _ = wait(asked, timeout_s, FIRST_EXCEPTION)
            if error := next((found for each in done if (found := each.exception())), None):
                raise error
            if late := [at for at, each in enumerate(asked) if each not in done]:
                names = ", ".join(f"{who} {at} at {clients[at].address}" for at in late)
                raise PeerLostError(
                    f"{names} did not open within {timeout_s:g} s",
                    do="see what it waits for, or allow more time with shuffle.open_s",
                )
        except BaseException:
            # Those that still wait, perhaps for the one that refused, are freed: the pool ends
            # when they do, also if this was interrupted.
            close_all(clients)
            raise
    return [each.result() for each in asked]


def close_all(clients: Sequence[Client]) -> None:
    for client in clients:
        client.close()
