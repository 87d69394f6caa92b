"""How busy a pipeline keeps its workers, and what it repeats after a kill; beside it Ray Data.

Two stages have four workers each, and every unit takes 50 ms in each of them. The ideal is that no
worker ever waits: the units of a worker one after the other, both stages at once, and the second
stage one unit behind: 1 000 units take 1 000 / 4 * 50 ms + 50 ms = 12.55 s. Both stages are
expensive, so every call is in the ledger before and after it is made, and every step is synced.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from headrace.bench.peers.ray_peer import has_ray
from headrace.bench.steps import step
from headrace.bench.unit_calls import CALL_S, count_calls, count_repeated, make_call

_WORKERS = 4
_STAGES = ("first", "second")
_POLL_S = 0.01
_PATIENCE_S = 600.0


def bench_utilisation(directory: Path, units: int = 1000) -> dict[str, float]:
    """Compare a run with the ideal; then kill one at half-way and count the calls of the next.

    `utilisation` is the ideal time divided by the time from the start of the run, with an empty
    workspace, until it returns. `repeated` counts calls that were made before the kill and again
    after it. The calls that were under way when the kill came are among them: nobody knows whether
    they took effect, so they are made again, with the same idempotency keys.
    """
    result: dict[str, float] = {"units": units, "workers": _WORKERS}
    result |= _measure("pipeline", "headrace.bench.bench_utilisation", directory, units, "")
    return result | measure_peer(directory, units) if has_ray() else result


def measure_peer(directory: Path, units: int) -> dict[str, float]:
    """Measure Ray Data with the same calls, its checkpoints on."""
    return _measure("Ray Data", "headrace.bench.peers.ray_peer", directory, units, "ray_")


def _measure(name: str, module: str, directory: Path, units: int, prefix: str) -> dict[str, float]:
    """Run a module's two stages to their end, then again with a kill at half-way."""
    whole, killed = directory / f"{prefix}whole", directory / f"{prefix}killed"
    step(f"{name}: {units:,} units in two stages")
    with _running(module, whole, units) as process:
        took_s = _finish(process)
    assert count_repeated(whole) == 0
    step(f"{name}: the same, killed at half-way and run again")
    with _running(module, killed, units) as process:
        _wait_for_calls(process, killed, units)
        process.kill()
    calls = count_calls(killed)
    with _running(module, killed, units) as process:
        _finish(process)
    return {
        f"{prefix}utilisation": _ideal_s(units) / took_s,
        f"{prefix}took_s": took_s,
        f"{prefix}calls_before_kill": calls,
        f"{prefix}repeated": count_repeated(killed),
    }


def _ideal_s(units: int) -> float:
    rounds = -(-units // _WORKERS)
    return (rounds + len(_STAGES) - 1) * CALL_S


@contextmanager
def _running(module: str, directory: Path, units: int) -> Iterator[subprocess.Popen[str]]:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", module, str(directory), str(units), str(_WORKERS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _finish(process: subprocess.Popen[str]) -> float:
    """Return the seconds that the process prints at its end."""
    out, errors = process.communicate(timeout=_PATIENCE_S)
    if process.returncode:
        raise RuntimeError(f"a process of the benchmark failed: {errors[-2000:]}")
    return float(out.split()[-1])


def _wait_for_calls(process: subprocess.Popen[str], directory: Path, calls: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while count_calls(directory) < calls:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the process made {count_calls(directory)} of {calls} calls")
        time.sleep(_POLL_S)


def _call(row: dict[str, Any], directory: Path, stage: str) -> dict[str, Any]:
    make_call(directory, stage, row["id"])
    return row


def run_pipeline(directory: Path, units: int, workers: int) -> float:
    """Run both stages, or go on where they were; return how long it took."""
    with headrace.open(directory / "workspace") as workspace:
        pipeline = headrace.pipeline("bench", workspace)
        pipeline.source(pa.table({"id": range(units)}), rows_per_unit=1)
        for stage in _STAGES:
            call = partial(_call, directory=directory, stage=stage)
            pipeline.map(call, workers=workers, expensive=True, version="1", name=stage)
        begin_s = time.monotonic()
        assert pipeline.run().outcome == "done"
        took_s = time.monotonic() - begin_s
        rows = pipeline.collect()["id"].to_pylist()
        assert sorted(rows) == list(range(units)), "a unit is missing, or is there twice"
    return took_s


if __name__ == "__main__":
    print(run_pipeline(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), flush=True)
