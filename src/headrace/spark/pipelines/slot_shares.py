"""How stages share the slots of a session, and other resources of its executors. Pure.

A worker holds what it needs while it waits for input. If workers needed more than there is, those
that hold it might wait for the output of one that has nothing. So no more workers are started than
there is room for; if not even every stage can have one, stages run in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.errors import UsageError

SLOTS = "slots"
"""The resource that every worker needs."""
_ROUNDING = 1e-9


class WorkerNeeds(NamedTuple):
    """What the workers of a stage need."""

    workers: int
    each: Mapping[str, float] = {SLOTS: 1}
    """What one worker holds, by resource."""


def share_slots(
    needs: Mapping[str, WorkerNeeds], capacity: Mapping[str, float]
) -> dict[str, int] | None:
    """Return how many workers each stage gets; None if not all stages can have one at once."""
    shares = dict.fromkeys(needs, 1)
    if not _fits(needs, shares, capacity):
        return None
    while True:
        growing = [
            stage
            for stage, share in shares.items()
            if share < needs[stage].workers and _fits(needs, {**shares, stage: share + 1}, capacity)
        ]
        if not growing:
            return shares
        # The stage that has the smallest part of what it asked for is next.
        shares[min(growing, key=lambda stage: shares[stage] / needs[stage].workers)] += 1


def share_alone(stage: str, need: WorkerNeeds, capacity: Mapping[str, float]) -> int:
    """Return how many workers a stage gets if it runs alone.

    Raises UsageError if there is no room for one.
    """
    lacking = _lacking({stage: need}, {stage: 1}, capacity)
    if lacking:
        raise UsageError(
            f"a worker of stage {stage!r} needs {_list(need.each, lacking)}, and Spark has"
            f" {_list(capacity, lacking)} free",
            do="give Spark's executors more, or the stage less in `resources`",
        )
    return min(
        [
            need.workers,
            *(
                int(capacity[name] / amount + _ROUNDING)
                for name, amount in need.each.items()
                if amount
            ),
        ]
    )


def describe(
    job: str,
    needs: Mapping[str, WorkerNeeds],
    shares: Mapping[str, int] | None,
    capacity: Mapping[str, float],
) -> str:
    """Return the line that tells how a run deviates from what was asked for; "" if it does not."""
    wanted = {stage: need.workers for stage, need in needs.items()}
    if shares == wanted:
        return ""
    lacking = _lacking(needs, wanted, capacity)
    needed = {name: _total(needs, wanted, name) for name in lacking}
    count = sum(wanted.values())
    begin = (
        f"job {job}: {count} workers need {_list(needed, lacking)}, and Spark has"
        f" {_list(capacity, lacking)} free"
    )
    if shares is None:
        return f"{begin}: the {len(needs)} stages run one after another"
    parts = ", ".join(f"{stage} {count} of {wanted[stage]}" for stage, count in shares.items())
    return f"{begin}: stages run with fewer workers ({parts})"


def _fits(
    needs: Mapping[str, WorkerNeeds], shares: Mapping[str, int], capacity: Mapping[str, float]
) -> bool:
    return not _lacking(needs, shares, capacity)


def _lacking(
    needs: Mapping[str, WorkerNeeds], shares: Mapping[str, int], capacity: Mapping[str, float]
) -> list[str]:
    """Return the resources that there is too little of."""
    named = dict.fromkeys(name for need in needs.values() for name in need.each)
    return [
        name for name in named if _total(needs, shares, name) > capacity.get(name, 0.0) + _ROUNDING
    ]


def _total(needs: Mapping[str, WorkerNeeds], shares: Mapping[str, int], name: str) -> float:
    return sum(shares[stage] * need.each.get(name, 0.0) for stage, need in needs.items())


def _list(amounts: Mapping[str, float], names: list[str]) -> str:
    """Return text such as `3 slots and 2 gpu`."""
    return " and ".join(f"{amounts.get(name, 0.0):g} {_singular(name, amounts)}" for name in names)


def _singular(name: str, amounts: Mapping[str, float]) -> str:
    return "slot" if name == SLOTS and amounts.get(name) == 1 else name
