"""Runs the simulator for many seeds, in processes, and says what their histories contained."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.simulator import STEPS, Simulator

_CHUNK = 10
"""A process gets this many seeds at a time."""
_SHOWN_FAILURES = 20


@dataclass
class Totals:
    """What happened in the histories of some seeds."""

    seeds: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    """How often each kind of thing happened."""
    failures: dict[int, str] = field(default_factory=dict)
    """What went wrong, by seed."""

    def add(self, other: Totals) -> None:
        self.seeds += other.seeds
        self.counts += other.counts
        self.failures |= other.failures

    def table(self) -> Iterator[str]:
        """A line for each kind."""
        for kind in Kind:
            yield f"{self.counts[kind]:14,}  {kind.name.lower():18}  {kind}"


def simulate(seed: int, steps: int = STEPS) -> Totals:
    """Run one history; return a failure and do not raise it."""
    try:
        simulator = Simulator(seed)
        simulator.simulate(steps)
    except Exception as error:  # noqa: BLE001  any error is what the simulator looks for
        return Totals(1, failures={seed: f"{type(error).__name__}: {error}"})
    return Totals(1, simulator.counts)


def simulate_all(
    seeds: Sequence[int], steps: int = STEPS, processes: int | None = None
) -> Iterator[Totals]:
    """Run histories in processes, by default one for each core; yield what comes of each."""
    # Arrow's threads do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawn) as executor:
        yield from executor.map(simulate, seeds, [steps] * len(seeds), chunksize=_CHUNK)


def total(results: Iterable[Totals]) -> Totals:
    totals = Totals()
    for result in results:
        totals.add(result)
    return totals


def replay_command(seed: int, steps: int) -> str:
    return f"python -m headrace.testing.shuffle.simulator --replay {seed} --steps {steps}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if any seed failed."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.testing.shuffle.simulator",
        description="Run random histories of a shuffle and judge them by an oracle.",
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="how long each history is")
    parser.add_argument("--processes", type=int, help="how many to run at once; else the cores")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, say every step")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        Simulator(options.replay, say=print).simulate(options.steps)
        return 0
    seeds = range(options.first, options.first + options.seeds)
    totals = total(simulate_all(seeds, options.steps, options.processes))
    print(f"{totals.seeds:,} seeds from {options.first} on, {options.steps} steps each")
    print(f"{len(totals.failures):,} failures")
    for seed, failure in islice(totals.failures.items(), _SHOWN_FAILURES):
        print(f"  seed {seed}: {failure}\n    {replay_command(seed, options.steps)}")
    for line in totals.table():
        print(line)
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
