"""Reads very many journals through many members: opening, idling, and single transactions."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

import headrace
from headrace.bench.peers.disk_rates import small_syncs
from headrace.bench.processes import cpu_s, owner, peak_mib
from headrace.bench.steps import step
from headrace.shuffle import History
from headrace.shuffle.member.local_members import LocalMembers

_IDLE_S = 5.0
_TRANSACTIONS = 100
_MOVED = 1000
_PART = 10_000
_POLL_S = 0.05


def bench_scale(
    directory: Path, journals: int = 100_000, members: int = 10, seed: int = 0
) -> dict[str, float]:
    """Measure a Session over `journals` journals; the owner and the members are processes.

    `open_s` is the time until members have read every journal to its head. `visible_*_ms` is the
    time from the call of a transaction until a checkpoint shows it. The members count `streams`.
    Idle CPU is the CPU time of all processes, as a share of one core. `delta_bytes_*` are for
    journals that earlier checkpoints have named.
    """
    location = directory / "workspace"
    with owner(location) as owning, headrace.open(location) as workspace:
        step(f"creating {journals:,} journals")
        collection = workspace.collection("bench", "id long", key="id", journals=journals)
        ids = np.random.default_rng(seed).integers(0, 1 << 62, journals)
        for first in range(0, journals, _PART):
            workspace.append(collection, _batch(ids[first : first + _PART]))
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
                reader = _CheckpointReader(shuffle, History(workspace.objects, "bench"))
                reader.catch_up(journals)
                step(f"doing nothing for {_IDLE_S:g} s")
                processes = [os.getpid(), owning, *local.processes]
                cpu, wall = cpu_s(processes), time.monotonic()
                time.sleep(_IDLE_S)
                idle_cpu = (cpu_s(processes) - cpu) / (time.monotonic() - wall)
                step("transactions, until they are visible")
                visible_ms, syncs_ms = _transactions(directory, workspace, reader, seed)
                one = _delta_bytes(workspace, reader, ids[:1])
                moved = ids[: min(_MOVED, journals)]
                many = _delta_bytes(workspace, reader, moved)
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
                    "offset_bytes": reader.offset_bytes,
                }


def _batch(ids: object) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _settle(shuffle: headrace.Shuffle, journals: int) -> None:
    while not (status := shuffle.status()).settled or status.places < journals:
        time.sleep(_POLL_S)


class _CheckpointReader:
    """Takes checkpoints as a task does: it stores each one before it reads it."""

    def __init__(self, shuffle: headrace.Shuffle, history: History) -> None:
        self._shuffle = shuffle
        self._history = history
        self._number = 0

    def next(self) -> tuple[int, int, float]:
        """Return the next checkpoint's documents, the bytes of its delta, and when it was shown."""
        checkpoint = self._shuffle.next_checkpoint(60)
        assert checkpoint, "nothing became visible"
        shown_s = time.perf_counter()
        self._number += 1
        assert self._history.append(self._number, checkpoint.delta) is None
        self._history.release(self._number - 1)
        found = sum(
            batch.num_rows
            for member in range(self._shuffle.members)
            for _, batch in self._shuffle.read(member, checkpoint)
        )
        self._shuffle.release(checkpoint)
        return found, len(checkpoint.delta.encode()), shown_s

    def catch_up(self, count: int) -> int:
        """Read checkpoints until they have shown `count` documents; return their bytes."""
        found = size = 0
        while found < count:
            documents, delta, _ = self.next()
            found, size = found + documents, size + delta
        return size

    @property
    def offset_bytes(self) -> int:
        """The bytes that Spark writes to its offset log for a micro-batch."""
        return len(msgspec.json.encode(self._history.offset(self._number)))


def _transactions(
    directory: Path, workspace: headrace.Workspace, reader: _CheckpointReader, seed: int
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of small transactions, and of small synced writes between them."""
    pick = random.Random(seed)
    visible_ms, syncs_ms = [], []
    with small_syncs(directory) as sync_s:
        for _ in range(_TRANSACTIONS):
            begin = time.perf_counter()
            with workspace.publisher() as transaction:
                transaction.append("bench", [{"id": pick.getrandbits(62)} for _ in range(3)])
            found = 0
            while not found:
                found, _, shown_s = reader.next()
            assert found == 3, "half of a transaction"
            visible_ms.append((shown_s - begin) * 1e3)
            syncs_ms.append(sync_s() * 1e3)
    return visible_ms, syncs_ms


def _delta_bytes(
    workspace: headrace.Workspace, reader: _CheckpointReader, ids: np.typing.NDArray[np.int64]
) -> int:
    """Return the size of the checkpoints that show one document of each of these ids."""
    for _ in range(2):  # the first delta may name journals
        workspace.append("bench", _batch(ids))
        size = reader.catch_up(len(ids))
    return size
