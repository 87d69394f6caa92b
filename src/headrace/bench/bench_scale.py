"""Very many journals through many members: opening, idling, and one transaction in all of it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

import headrace
from headrace.bench.disk_rates import small_syncs
from headrace.bench.processes import cpu_s, owner, peak_mib
from headrace.bench.steps import step
from headrace.shuffle import History
from headrace.shuffle.local_members import LocalMembers

_IDLE_S = 5.0
_TRANSACTIONS = 100
_MOVED = 1000
_PART = 10_000
_LOOK_AGAIN_S = 0.05


def bench_scale(
    directory: Path, journals: int = 100_000, members: int = 10, seed: int = 0
) -> dict[str, float]:
    """The owner and the members are processes. A transaction takes from its commit until shown.

    `open_s` is until every journal is read to its head. `streams` are counted at the members; idle
    CPU is that of all processes, as a share of one core. Deltas are of journals known before.
    """
    place = directory / "workspace"
    with owner(place) as owning, headrace.open(place) as workspace:
        step(f"making {journals:,} journals")
        collection = workspace.collection("bench", "id long", key="id", journals=journals)
        ids = np.random.default_rng(seed).integers(0, 1 << 62, journals)
        for at in range(0, journals, _PART):
            workspace.append(collection, _batch(ids[at : at + _PART]))
        step(f"starting {members} members, which read them all")
        with LocalMembers(members, directory, processes=True) as local:
            begin = time.perf_counter()
            with headrace.Shuffle(
                workspace,
                [headrace.Binding(collection="bench")],
                local.addresses,
                service=local.service,
            ) as shuffle:
                _settle(shuffle, journals)
                open_s = time.perf_counter() - begin
                reading = _Reading(shuffle, History(workspace.objects, "bench"))
                reading.catch_up(journals)
                step(f"doing nothing for {_IDLE_S:g} s")
                processes = [os.getpid(), owning, *local.processes]
                cpu, wall = cpu_s(processes), time.monotonic()
                time.sleep(_IDLE_S)
                idle_cpu = (cpu_s(processes) - cpu) / (time.monotonic() - wall)
                step("transactions, until they are visible")
                visible_ms, syncs_ms = _transactions(directory, workspace, reading, seed)
                one = _delta_bytes(workspace, reading, ids[:1])
                moved = ids[: min(_MOVED, journals)]
                many = _delta_bytes(workspace, reading, moved)
                return {
                    "journals": journals,
                    "members": members,
                    "open_s": open_s,
                    "streams": local.streams(),
                    "idle_cpu": idle_cpu,
                    "visible_p50_ms": float(np.percentile(visible_ms, 50)),
                    "visible_p99_ms": float(np.percentile(visible_ms, 99)),
                    "disk_sync_p50_ms": float(np.percentile(syncs_ms, 50)),
                    "member_mib": max(peak_mib(each) for each in local.processes),
                    "delta_bytes_1": one,
                    f"delta_bytes_{_MOVED}": many,
                    "offset_bytes": reading.offset_bytes,
                }


def _batch(ids: object) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _settle(shuffle: headrace.Shuffle, journals: int) -> None:
    while not (status := shuffle.status()).settled or status.places < journals:
        time.sleep(_LOOK_AGAIN_S)


class _Reading:
    """Takes checkpoints as a task does: each is stored before it is read."""

    def __init__(self, shuffle: headrace.Shuffle, history: History) -> None:
        self._shuffle = shuffle
        self._history = history
        self._number = 0

    def next(self) -> tuple[int, int, float]:
        """Of the next one: its documents, the bytes that were stored, and when it was there."""
        checkpoint = self._shuffle.next_checkpoint(60)
        assert checkpoint, "nothing became visible"
        shown_at = time.perf_counter()
        self._number += 1
        assert self._history.append(self._number, checkpoint.delta) is None
        self._history.release(self._number - 1)
        found = sum(
            batch.num_rows
            for member in range(self._shuffle.members)
            for _, batch in self._shuffle.read(member, checkpoint)
        )
        self._shuffle.release(checkpoint)
        return found, len(checkpoint.delta.encode()), shown_at

    def catch_up(self, count: int) -> int:
        """Until so many documents were shown; the bytes of the deltas."""
        found = size = 0
        while found < count:
            documents, delta, _ = self.next()
            found, size = found + documents, size + delta
        return size

    @property
    def offset_bytes(self) -> int:
        """What Spark writes down for a micro-batch."""
        return len(msgspec.json.encode(self._history.offset(self._number)))


def _transactions(
    directory: Path, workspace: headrace.Workspace, reading: _Reading, seed: int
) -> tuple[list[float], list[float]]:
    """Milliseconds for each of some small transactions, and for small synced writes between."""
    pick = random.Random(seed)
    visible_ms, syncs_ms = [], []
    with small_syncs(directory) as sync_s:
        for _ in range(_TRANSACTIONS):
            begin = time.perf_counter()
            with workspace.publisher() as transaction:
                transaction.append("bench", [{"id": pick.getrandbits(62)} for _ in range(3)])
            found = 0
            while not found:
                found, _, shown_at = reading.next()
            assert found == 3, "half of a transaction"
            visible_ms.append((shown_at - begin) * 1e3)
            syncs_ms.append(sync_s() * 1e3)
    return visible_ms, syncs_ms


def _delta_bytes(
    workspace: headrace.Workspace, reading: _Reading, ids: np.typing.NDArray[np.int64]
) -> int:
    """How large checkpoints are when the journals of these ids have moved."""
    for _ in range(2):  # the first may name journals
        workspace.append("bench", _batch(ids))
        size = reading.catch_up(len(ids))
    return size
