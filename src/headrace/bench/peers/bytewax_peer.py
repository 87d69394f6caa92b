"""Does with Bytewax what a shuffle does with the same documents: key them, keep state, recover.

It runs as a cluster of two processes, since the shuffle has two members. Its directory holds the
documents as an Arrow file, the recovery files, and when each process began and ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

_PARTITIONS = 2
_BATCH = 1000
_EPOCH_S = "1"
_DIRECTORY = "HEADRACE_BENCH_DIRECTORY"


def bytewax_docs_per_s(directory: Path, batch: pa.RecordBatch) -> float | None:
    """Return the rate of Bytewax, or None if it is not installed."""
    if find_spec("bytewax") is None:
        return None
    location = directory / "bytewax"
    recovery = location / "recovery"
    recovery.mkdir(parents=True)
    with (
        pa.OSFile(str(location / "documents"), "wb") as file,
        pa.ipc.new_file(file, batch.schema) as out,
    ):
        out.write_batch(batch)
    _run("bytewax.recovery", str(recovery), str(_PARTITIONS))
    _run(
        *("bytewax.testing", "headrace.bench.peers.bytewax_peer:flow()", "-p", str(_PARTITIONS)),
        *("-r", str(recovery), "-s", _EPOCH_S, "-b", "0"),
        location=str(location),
    )
    begin = min(float(each.read_text()) for each in location.glob("begin-*"))
    end = max(float(each.read_text()) for each in location.glob("end-*"))
    return float(batch.num_rows / (end - begin))


def _run(*command: str, location: str = "") -> None:
    subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, _DIRECTORY: location},
        check=True,
        capture_output=True,
    )


def flow() -> Any:
    """Return the dataflow: it keeps the sum of each account, with recovery on."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    location = Path(os.environ[_DIRECTORY])

    class BytewaxDocuments(StatefulSourcePartition):  # type: ignore[misc]
        def __init__(self, partition: int, row: int) -> None:
            whole = pa.ipc.open_file(pa.memory_map(str(location / "documents"))).read_all()
            share = whole.num_rows // _PARTITIONS
            self._rows = whole.slice(partition * share, share)
            self._row = row
            (location / f"begin-{partition}").write_text(str(time.monotonic()))

        def next_batch(self) -> list[dict[str, Any]]:
            if self._row >= self._rows.num_rows:
                raise StopIteration
            found: list[dict[str, Any]] = self._rows.slice(self._row, _BATCH).to_pylist()
            self._row += _BATCH
            return found

        def snapshot(self) -> int:
            return self._row

    class BytewaxSource(FixedPartitionedSource):  # type: ignore[misc]
        def list_parts(self) -> list[str]:
            return [str(partition) for partition in range(_PARTITIONS)]

        def build_part(self, step: str, part: str, row: int | None) -> BytewaxDocuments:
            return BytewaxDocuments(int(part), row or 0)

    class BytewaxNoOutput(StatelessSinkPartition):  # type: ignore[misc]
        def __init__(self, worker: int) -> None:
            self._worker = worker

        def write_batch(self, items: list[Any]) -> None:
            pass

        def close(self) -> None:
            (location / f"end-{self._worker}").write_text(str(time.monotonic()))

    class BytewaxSink(DynamicSink):  # type: ignore[misc]
        def build(self, step: str, worker: int, workers: int) -> BytewaxNoOutput:
            return BytewaxNoOutput(worker)

    def add(total: int | None, document: dict[str, Any]) -> tuple[int, int]:
        after = (total or 0) + document["cents"]
        return after, after

    dataflow = Dataflow("accounts")
    read = op.input("read", dataflow, BytewaxSource())
    keyed = op.key_on("key", read, lambda document: document["account"])
    op.output("write", op.stateful_map("sum", keyed, add), BytewaxSink())
    return dataflow
