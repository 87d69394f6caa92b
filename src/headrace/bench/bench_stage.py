"""What a stage of a pipeline takes in memory, and a resume in time."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa

import headrace
from headrace.bench.processes import peak_mib
from headrace.bench.steps import step
from headrace.bench.unit_calls import count_calls, first_call_s, note_call
from headrace.errors import UnitError
from headrace.settings import MIB

_STAGES = 3
_UNITS = 200
_ROWS_PER_UNIT = 100
_RESUMES = 3
_MB = 1_000_000


def bench_stage(directory: Path, rows: int = 100_000) -> dict[str, float]:
    """Measure the memory of a stage, and resumes after `rows` rows and after a tenth of them.

    `stage_mb` is what each of three stages adds to a process: the most memory of a process after
    many units of 1 MiB, less that of one after a single unit. Two of the stages keep their output
    on memory, the last on disk. `resume_s` is the time from the start of a run until its first
    call when `rows` rows are paid for, the median of three; `resume_tenth_s` is that for a tenth of
    the rows. The source is the same.
    """
    step(f"{_UNITS} units of 1 MiB through {_STAGES} stages")
    idle_mib = _in_process("memory", directory / "idle", 1)
    busy_mib = _in_process("memory", directory / "busy", _UNITS)
    result = {"stage_mb": (busy_mib - idle_mib) / _STAGES * MIB / _MB}
    units = max(2, rows // _ROWS_PER_UNIT)
    for name, done in (("resume_tenth_s", max(1, units // 10)), ("resume_s", units)):
        step(f"a resume after {done * _ROWS_PER_UNIT:,} rows")
        place = directory / name
        _in_process("pay", place, 2 * units, done)
        resumes = [
            _in_process("pay", place, 2 * units, done + number) for number in range(1, _RESUMES + 1)
        ]
        result[name] = median(resumes)
    return {**result, "resume_rows": units * _ROWS_PER_UNIT}


def _in_process(what: str, place: Path, *numbers: int) -> float:
    """Return what a process of this module prints."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "headrace.bench.bench_stage", what, str(place)]
    done = subprocess.run(
        [*command, *map(str, numbers)], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def measure_memory(place: Path, units: int) -> float:
    """Send units through the stages; return the most memory that this process has had."""
    files = place / "source"
    files.mkdir()
    for number in range(units):
        (files / f"{number}.bin").write_bytes(b"x" * MIB)
    with headrace.open(place / "workspace") as workspace:
        pipeline = headrace.pipeline("bench", workspace).source(str(files))
        for number in range(_STAGES):
            pipeline.map_batches(_pass_on, name=f"stage-{number}")
        assert pipeline.run().outcome == "done"
    return peak_mib("self")


def _pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def measure_resume(place: Path, units: int, calls_max: int) -> float:
    """Run until so many units are paid for; return the time until the first call of this run."""
    source = pa.table({"id": range(units * _ROWS_PER_UNIT)})
    pay = partial(_pay, place=place, calls_max=calls_max)
    with headrace.open(place / "workspace") as workspace:
        pipeline = headrace.pipeline("bench", workspace)
        pipeline.source(source, rows_per_unit=_ROWS_PER_UNIT)
        pipeline.map_batches(
            pay, batch_size=_ROWS_PER_UNIT, expensive=True, version="1", name="pay"
        )
        begin_s = time.monotonic()
        with suppress(UnitError):
            pipeline.run()
    return first_call_s(place, begin_s) - begin_s


def _pay(batch: pa.RecordBatch, place: Path, calls_max: int) -> pa.RecordBatch:
    """Pay for a unit; refuse it if enough are paid for."""
    if count_calls(place) >= calls_max:
        raise UnitError("enough units are paid for", do="run the benchmark again")
    note_call(place, "pay", batch["id"][0].as_py())
    return batch


if __name__ == "__main__":
    measure = measure_memory if sys.argv[1] == "memory" else measure_resume
    print(measure(Path(sys.argv[2]), *map(int, sys.argv[3:])), flush=True)
