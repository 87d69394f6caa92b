"""The unit of each figure, and its target on a quiet machine of two cores. Pure.

Targets are for the default sizes of the benchmarks. Those of `members` are for sixteen cores.
"""

from __future__ import annotations

from typing import NamedTuple


class FigureTarget(NamedTuple):
    bound: float
    is_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.is_least else 'at most'} {self.bound:,}"


def _at_least(bound: float) -> FigureTarget:
    return FigureTarget(bound, is_least=True)


def _at_most(bound: float) -> FigureTarget:
    return FigureTarget(bound, is_least=False)


TARGETS: dict[str, dict[str, FigureTarget]] = {
    "journal": {
        "ratio_to_disk": _at_least(0.6),
        "docs_per_s": _at_least(1_000_000),
        "read_docs_per_s": _at_least(3_000_000),
    },
    "catalog": {
        "create_s": _at_most(30),
        "list_s": _at_most(2),
        "notice_p99_ms": _at_most(100),
        "idle_cpu": _at_most(0.05),
    },
    "shuffle": {
        "docs_per_s": _at_least(1_500_000),
        "ratio_to_disk": _at_least(0.5),
        "txn_per_s": _at_least(10_000),
        "ratio_to_bytewax": _at_least(10),
    },
    "members": {
        "speedup_8": _at_least(5),
        "speedup_16_unsynced": _at_least(8),
        "ratio_to_disk_16": _at_least(0.6),
        "cpu_growth": _at_most(1.3),
    },
    "scale": {
        "open_s": _at_most(60),
        "idle_cpu": _at_most(0.2),
        "visible_p50_ms": _at_most(250),
        "member_mib": _at_most(400),
        "offset_bytes": _at_most(200),
    },
    "queue": {
        "memory_produce": _at_least(2_000_000),
        "memory_fetch": _at_least(1_000_000),
        "served_p50_ms": _at_most(1),
        "local_produce": _at_least(100_000),
        "local_fetch": _at_least(500_000),
        "local_p50_ms": _at_most(2),
        "local_p99_ms": _at_most(10),
        "local_produce_1000_s": _at_most(1),
        "local_fetch_10000_s": _at_most(2),
        "memory_small": _at_least(10_000),
        "local_small": _at_least(10_000),
        "memory_references": _at_least(10_000),
        "local_references": _at_least(10_000),
        "recovery_s": _at_most(1),
        "stage_mb": _at_most(100),
    },
    "utilisation": {"utilisation": _at_least(0.85)},
    "recovery": {"first_checkpoint_s": _at_most(5)},
    "ledger": {"overhead": _at_most(0.02), "lookups_per_s": _at_least(200_000)},
    "ingest": {
        "writes_per_s": _at_least(300_000),
        "samples_per_s": _at_least(1_000_000),
        "bytes_per_sample": _at_most(4),
        "range_ms": _at_most(50),
        "vectors_per_s": _at_least(15_000),
        "search_p50_ms": _at_most(5),
        "recall_at_10": _at_least(0.98),
        "filtered_recall_at_10": _at_least(0.95),
    },
    "exchange": {"ratio_durable": _at_most(1), "ratio_plain": _at_most(1.2)},
    "spark": {
        "ratio_to_source_limit": _at_least(0.5),
        "ratio_to_rows": _at_least(3),
        "overhead_ms": _at_most(100),
    },
}

_YARDSTICKS = (
    "disk_",
    "journal_",
    "queue_writes_",
    "prometheus_",
    "victoriametrics_",
    "duckdb_",
    "numpy_",
    "usearch_",
    "bytewax_",
    "ray_",
    "source_limit_",
    "rows_",
    "parquet_",
    "trivial_",
    "spark_",
)
_UNITS = {
    "mib_per_s": "MiB/s",
    "docs_per_s": "documents/s",
    "docs_1kib_per_s": "documents/s",
    "txn_per_s": "transactions/s",
    "produce_1000_s": "s",
    "fetch_10000_s": "s",
    "produce": "messages/s",
    "fetch": "messages/s",
    "small": "messages/s",
    "references": "messages/s",
    "lookups_per_s": "results/s",
    "samples_per_s": "samples/s",
    "bytes_per_sample": "bytes",
    "pairs_per_s": "calls/s",
    "writes_per_s": "writes/s",
    "vectors_per_s": "vectors/s",
    "recall": "of the nearest",
    "ratio": "times",
    "speedup": "times",
    "cpu_growth": "times",
    "cpu_us": "µs a document",
    "idle_cpu": "cores",
    "cpu_s": "core seconds",
    "bytes": "bytes",
    "mib": "MiB",
    "mb": "MB",
    "kib": "KiB",
    "ms": "ms",
    "s": "s",
    "overhead": "times",
    "utilisation": "of the ideal",
    "repeated": "calls",
    "calls": "calls",
}
"""Units by a part of the figure's name. The first part that the name contains decides."""


def unit_of(figure: str) -> str:
    """Return the unit of a figure; a count has none."""
    for part, unit in _UNITS.items():
        if f"_{part}_" in f"_{figure}_":
            return unit
    return ""


def verdict(bench: str, figure: str, value: float) -> str:
    """Return whether the figure meets its target, or that it is a yardstick."""
    target = TARGETS.get(bench, {}).get(figure)
    if target:
        return f"{'met' if target.is_met(value) else 'missed'}: {target}"
    return "yardstick" if figure.startswith(_YARDSTICKS) else ""


def noise(load: float, cores: int) -> str:
    """Return what the machine's load before the benchmark means for the figures."""
    measured = f"the load was {load:.1f} on {cores} cores before it began"
    if load > cores / 4:
        return f"{measured}: others use this machine, so the figures are lower than it can do"
    return f"{measured}: it was quiet; runs may still differ by a third, so compare ratios"
