"""A process that writes checkpoints and plain rows to a shared store, and notes what was stored."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import InDoubtError, PeerLostError
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.shared_store import SharedStore
from tests.stores.service.row_store import open_rows, some_rows


def write_until(stop: Path, place: Path, name: str, notes: Path) -> None:
    """Write as task `name` until the file `stop` appears; note every number that is durable."""
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open_rows(place) as store:
        number = store.take(name, "g")
        while not stop.exists():
            number += 1
            _apply(store, StoreCheckpoint(name, "g", number))
            _write(store, f"{name} plain {number}")
            os.write(noted, f"{number}\n".encode())


def _apply(store: SharedStore, checkpoint: StoreCheckpoint) -> None:
    keys = [f"{checkpoint.task} {half} {checkpoint.number}" for half in "ab"]
    if checkpoint.number % 2:
        store.apply(some_rows(*keys), checkpoint)
        return
    while True:
        try:
            parts = [store.stage([some_rows(key)], checkpoint) for key in keys]
        except PeerLostError:
            continue
        store.apply_parts(parts, checkpoint)
        return


def _write(store: SharedStore, key: str) -> None:
    while True:
        try:
            store.flush(store.write(some_rows(key)))
        except InDoubtError:
            continue
        return
