"""Measures very many journals in one workspace: creating, listing and watching them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import headrace
from headrace.bench.peers.disk_rates import empty_files_s, small_syncs
from headrace.bench.processes import cpu_s
from headrace.bench.steps import step

_NOTICED = 400
_IDLE_S = 5.0
_GAP_S = 0.005


def bench_catalog(directory: Path, journals: int = 100_000, seed: int = 0) -> dict[str, float]:
    """Measure journals, and time from a call of `append` until a watch in another process notices.

    Idle CPU is the CPU time of both processes, as a share of one core. The yardstick of creating
    journals is creating as many empty files. The yardstick of a notice is a small synced write,
    made between the notices.
    """
    step(f"creating {journals:,} files, then as many journals")
    disk_files_s = empty_files_s(directory, journals)
    with headrace.open(directory / "workspace") as workspace:
        name = "bench/catalog"
        begin = time.perf_counter()
        collection = workspace.collection(name, "id long", key="id", journals=journals)
        create_s = time.perf_counter() - begin
        begin = time.perf_counter()
        listed = workspace.journals()
        list_s = time.perf_counter() - begin
        assert len(listed) == journals
        step("opening a watch of all journals")
        command = [sys.executable, "-m", __name__, str(directory / "workspace")]
        # The watcher ends when its standard input does: at the end of the block.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as watcher:
            assert watcher.stdout is not None
            watch_open_s = float(watcher.stdout.readline())
            pick = random.Random(seed)
            step(f"appending {_NOTICED} times, and waiting until the watch notices")
            notices_ms, syncs_ms = [], []
            with small_syncs(directory) as sync_s:
                for _ in range(_NOTICED):
                    begin = time.monotonic()
                    workspace.append(collection, [{"id": pick.getrandbits(62)}])
                    notices_ms.append((float(watcher.stdout.readline()) - begin) * 1e3)
                    syncs_ms.append(sync_s() * 1e3)
                    time.sleep(_GAP_S)
            step(f"doing nothing for {_IDLE_S:g} s")
            processes = [os.getpid(), watcher.pid]
            cpu, wall = cpu_s(processes), time.monotonic()
            time.sleep(_IDLE_S)
            idle_cpu = (cpu_s(processes) - cpu) / (time.monotonic() - wall)
    step("opening the workspace again")
    begin = time.perf_counter()
    with headrace.open(directory / "workspace") as workspace:
        reopen_s = time.perf_counter() - begin
    return {
        "journals": journals,
        "create_s": create_s,
        "list_s": list_s,
        "notice_p50_ms": float(np.percentile(notices_ms, 50)),
        "notice_p99_ms": float(np.percentile(notices_ms, 99)),
        "idle_cpu": idle_cpu,
        "disk_files_s": disk_files_s,
        "disk_sync_p50_ms": float(np.percentile(syncs_ms, 50)),
        "disk_sync_p99_ms": float(np.percentile(syncs_ms, 99)),
        "watch_open_s": watch_open_s,
        "reopen_s": reopen_s,
    }


def _watch(directory: str) -> None:
    """Print the time at which the watch notices each change, until standard input ends."""
    begin = time.perf_counter()
    with headrace.open(directory, create=False) as workspace:
        watch = workspace.watch()
        watch.next(timeout_s=60)
        print(time.perf_counter() - begin, flush=True)
        for _ in range(_NOTICED):
            while not watch.next(timeout_s=60):
                pass
            print(time.monotonic(), flush=True)
        sys.stdin.read()
        watch.close()


if __name__ == "__main__":
    _watch(sys.argv[1])
