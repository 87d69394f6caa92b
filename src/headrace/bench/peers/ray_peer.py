"""Does with Ray Data what a pipeline does with the same units: two stages, checkpoints on.

It runs in a process of its own, and so do its workers, which are actors.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from headrace.bench.unit_calls import first_call_s, make_call

_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_ACTOR_CPUS = 0.1
"""A call waits and computes nothing, so an actor needs no core of its own."""


def has_ray() -> bool:
    return find_spec("ray") is not None


def run_ray(directory: Path, units: int, workers: int) -> float:
    """Run both stages, or go on where they were. Return how long it took from the first call on.

    Ray needs seconds to start its actors, which a cluster does once; they are left out.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext, read_parquet
    from ray.data.checkpoint import CheckpointConfig

    class RayStage:
        """Makes the call of one stage for each row."""

        def __init__(self, stage: str) -> None:
            self._stage = stage

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            for number in batch["id"]:
                make_call(directory, self._stage, int(number))
            return batch

    sockets = _socket_folder(directory)
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        _temp_dir=str(sockets),
    )
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False  # It would read many files into one block.
    context.checkpoint_config = CheckpointConfig(
        id_column="id",
        checkpoint_path=str(directory / "checkpoints"),
        delete_checkpoint_on_success=False,
    )
    rows = read_parquet(_source(directory, units), override_num_blocks=units)
    for stage in ("first", "second"):
        rows = rows.map_batches(
            RayStage,
            fn_constructor_args=(stage,),
            batch_size=1,
            compute=ActorPoolStrategy(size=workers),
            num_cpus=_ACTOR_CPUS,
        )
    rows.write_parquet(str(directory / "output"))
    took_s = time.monotonic() - first_call_s(directory)
    ray.shutdown()
    shutil.rmtree(sockets, ignore_errors=True)
    return took_s


def _socket_folder(directory: Path) -> Path:
    """Return a folder with a short path, the same when a run goes on: sockets have 107 bytes."""
    return Path(tempfile.gettempdir()) / f"ray-{xxh3_64_hexdigest(bytes(directory))}"


def _source(directory: Path, units: int) -> str:
    """Return the folder of the source: a file for each unit, so that a unit is a block of Ray."""
    source = directory / "source"
    if not source.exists():
        source.mkdir()
        for number in range(units):
            pq.write_table(pa.table({"id": [number]}), source / f"{number:06d}.parquet")
    return str(source)


if __name__ == "__main__":
    os.environ.update(_ENVIRONMENT)
    print(run_ray(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), flush=True)
