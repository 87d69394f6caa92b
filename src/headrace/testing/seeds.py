"""Runs a simulation for many seeds, in processes, and says what their histories contained."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

_CHUNK = 10
"""A process gets this many seeds at a time."""
_SHOWN_FAILURES = 20

Say = Callable[[str], None]


class Simulation(NamedTuple):
    """Random histories of something, each made by a seed. It travels to other processes."""

    module: str
    """`python -m` this module runs it."""
    what: str
    kinds: type[StrEnum]
    """The kinds of things that happen in its histories."""
    steps: int
    """How long a history is, unless somebody asks for another length."""
    run: Callable[[int, int, Say | None], Counter[StrEnum]]
    """Run the history of a seed, of so many steps, and say what happens; return how often each kind
    did. Raises if something is not as it must be."""

    def replay_command(self, seed: int, steps: int) -> str:
        return f"python -m {self.module} --replay {seed} --steps {steps}"


@dataclass
class SeedTotals:
    """What happened in the histories of some seeds."""

    seeds: int = 0
    counts: Counter[StrEnum] = field(default_factory=Counter)
    """How often each kind of thing happened."""
    failures: dict[int, str] = field(default_factory=dict)
    """What went wrong, by seed."""
    cpu_s: float = 0.0

    def add(self, other: SeedTotals) -> None:
        self.seeds += other.seeds
        self.counts += other.counts
        self.failures |= other.failures
        self.cpu_s += other.cpu_s

    def table(self, kinds: Iterable[StrEnum]) -> Iterator[str]:
        """A line for each kind."""
        for kind in kinds:
            yield f"{self.counts[kind]:14,}  {kind.name.lower():18}  {kind}"


def simulate(simulation: Simulation, seed: int, steps: int) -> SeedTotals:
    """Run one history; return a failure and do not raise it."""
    began_s = time.process_time()
    try:
        counts = simulation.run(seed, steps, None)
    except Exception as error:  # noqa: BLE001  any error is what a simulation looks for
        return SeedTotals(1, failures={seed: f"{type(error).__name__}: {error}"})
    return SeedTotals(1, counts, cpu_s=time.process_time() - began_s)


def simulate_all(
    simulation: Simulation,
    seeds: Sequence[int],
    steps: int | None = None,
    processes: int | None = None,
) -> SeedTotals:
    """Run histories in processes, by default one for each core; return what they came to."""
    totals = SeedTotals()
    # Arrow's threads do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    count = len(seeds)
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawn) as executor:
        for each in executor.map(
            simulate,
            [simulation] * count,
            seeds,
            [steps or simulation.steps] * count,
            chunksize=_CHUNK,
        ):
            totals.add(each)
    return totals


def main(simulation: Simulation, arguments: Sequence[str] | None = None) -> int:
    """Return 1 if any seed failed."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {simulation.module}",
        description=f"Run random histories of {simulation.what}, and judge them by an oracle.",
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--steps", type=int, default=simulation.steps, help="how long each history is"
    )
    parser.add_argument("--processes", type=int, help="how many to run at once; else the cores")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, say every step")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        simulation.run(options.replay, options.steps, print)
        return 0
    seeds = range(options.first, options.first + options.seeds)
    totals = simulate_all(simulation, seeds, options.steps, options.processes)
    each_s = totals.cpu_s / max(1, totals.seeds)
    print(f"{totals.seeds:,} seeds from {options.first} on, {options.steps} steps each")
    print(f"{totals.cpu_s:,.0f} s of processor time, {each_s:.4f} s for each seed")
    print(f"{len(totals.failures):,} failures")
    for seed, failure in islice(totals.failures.items(), _SHOWN_FAILURES):
        print(f"  seed {seed}: {failure}\n    {simulation.replay_command(seed, options.steps)}")
    for line in totals.table(simulation.kinds):
        print(line)
    return 1 if totals.failures else 0
