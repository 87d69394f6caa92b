"""`kill -9` of the process that writes the ledger, and of workers, around every step."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.pipeline.ledger.actor import LedgerActor
from headrace.testing.crash import Child, KillPoint
from tests.kinds import seeds
from tests.pipeline.ledger.crash.ledger_processes import CALLS, STAGE, UNITS

_SETUP = "from tests.pipeline.ledger.crash.ledger_processes import serve, work"
_WRITES = 30
"""About as many transactions as a run has."""
_STEPS = 3 * CALLS * len(UNITS)


# proves G17
@pytest.mark.parametrize("seed", seeds(4, deep=120))
def test_what_was_recorded_is_never_called_again(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ledger, log = tmp_path / "ledger", tmp_path / "calls.txt"
    log.touch()
    point = KillPoint.random(chance, _WRITES) if chance.random() < 0.6 else None
    deaths = [chance.randrange(1, _STEPS) if chance.random() < 0.6 else None for _ in range(2)]
    finished = run_workers(ledger, log, point, deaths)
    if not all(finished):
        assert all(run_workers(ledger, log, None, [None]))
    check(ledger, log)


def run_workers(
    ledger: Path, log: Path, point: KillPoint | None, deaths: list[int | None]
) -> list[bool]:
    """Start two workers on the same calls; return for each whether it finished."""
    with Child(_SETUP) as driver:
        try:
            address = driver.run("serve(path, point)", path=ledger, point=point)
        except (EOFError, ConnectionError):
            return [False]
        workers = [Child(_SETUP) for _ in deaths]
        try:
            for number, (worker, death) in enumerate(zip(workers, deaths, strict=True)):
                worker.start(
                    "work(address, name, log, death)",
                    address=address,
                    name=f"worker {number}",
                    log=log,
                    death=death,
                )
            return [finishes(worker) for worker in workers]
        finally:
            for worker in workers:
                worker.__exit__()


def finishes(worker: Child) -> bool:
    """Wait for the worker; return False if it or the ledger was killed."""
    try:
        worker.answer()
    except (EOFError, ConnectionError, HeadraceError):
        return False
    return True


def check(ledger: Path, log: Path) -> None:
    calls: Counter[str] = Counter()
    recorded: set[str] = set()
    for line in log.read_text().splitlines():
        event, name = line.split()
        if event == "called":
            assert name not in recorded
            calls[name] += 1
        else:
            recorded.add(name)
    actor = LedgerActor.open(ledger, "g")
    try:
        totals = actor.totals().result()[STAGE]
        actor.validate()
    finally:
        actor.close()
    wanted = CALLS * len(UNITS)
    assert len(calls) == totals.results == wanted
    # Every claim ended with a result or in doubt; nothing failed and nobody came back late.
    assert totals.calls == totals.results + totals.doubts
    assert calls.total() - wanted <= totals.doubts
    assert totals.cost == 0.5 * wanted
    assert totals.repeats == totals.failures == totals.releases == 0
