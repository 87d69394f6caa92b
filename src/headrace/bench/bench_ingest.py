"""What the write coordinator and the stores on it take in, and how fast they answer.

Each part is a module of its own, and its figures have names of their own: all of them are in one
object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.bench.bench_coordinator import bench_coordinator
from headrace.bench.bench_timeseries import bench_timeseries
from headrace.bench.bench_vectors import bench_vectors
from headrace.bench.steps import step
from headrace.errors import UsageError

PARTS: dict[str, Callable[[Path, float], dict[str, float]]] = {
    "coordinator": bench_coordinator,
    "timeseries": bench_timeseries,
    "vectors": bench_vectors,
}
"""Takes a directory of its own, which it makes, and the size as a part of the default."""


def bench_ingest(
    directory: Path, scale: float = 1.0, parts: Sequence[str] = ()
) -> dict[str, float]:
    """Measure these parts, one after the other; all of them if none is named."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no part of this benchmark", do=f"name one of {', '.join(PARTS)}"
        )
    figures: dict[str, float] = {}
    for part in parts or PARTS:
        step(part)
        found = PARTS[part](directory / part, scale)
        assert not figures.keys() & found.keys()
        figures |= found
    return figures
