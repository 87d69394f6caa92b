"""Opening one conversation with each of several members: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from headrace.transport import Channel, Client


def open_all(
    clients: Sequence[Client], open_one: Callable[[int, Client], Channel[Any]]
) -> list[Channel[Any]]:
    """`open_one` of every member at the same time. The first refusal ends it, and is raised."""
    with ThreadPoolExecutor(len(clients)) as pool:
        asked = [pool.submit(open_one, at, client) for at, client in enumerate(clients)]
        done, _ = wait(asked, return_when=FIRST_EXCEPTION)
        for each in done:
            if error := each.exception():
                # Those that still wait, perhaps for the one that refused, are freed.
                close_all(clients)
                raise error
    return [each.result() for each in asked]


def close_all(clients: Sequence[Client]) -> None:
    for client in clients:
        client.close()
