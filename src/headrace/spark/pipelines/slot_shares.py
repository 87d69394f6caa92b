"""How stages share the slots of a session. Pure.

A worker holds its slot while it waits for input. If workers were more than slots, those that hold
the slots might wait for the output of one that has none. So no more workers are started than there
are slots; if not even every stage can have one, stages run in turn.
"""

from __future__ import annotations

from collections.abc import Mapping


def share_slots(workers: Mapping[str, int], slots: int) -> dict[str, int] | None:
    """Return how many workers each stage gets; None if stages are more than slots."""
    if len(workers) > slots:
        return None
    shares = dict.fromkeys(workers, 1)
    for _ in range(min(slots, sum(workers.values())) - len(workers)):
        # The stage that has the smallest part of what it asked for is next.
        open_stages = [stage for stage in workers if shares[stage] < workers[stage]]
        neediest = min(open_stages, key=lambda stage: shares[stage] / workers[stage])
        shares[neediest] += 1
    return shares


def describe(
    job: str, workers: Mapping[str, int], shares: Mapping[str, int] | None, slots: int
) -> str:
    """Return the line that tells how a run deviates from what was asked for; "" if it does not."""
    wanted = sum(workers.values())
    if shares == dict(workers):
        return ""
    begin = f"job {job}: {wanted} workers need {wanted} slots, and Spark has {slots} free"
    if shares is None:
        return f"{begin}: the {len(workers)} stages run one after another"
    parts = ", ".join(f"{stage} {count} of {workers[stage]}" for stage, count in shares.items())
    return f"{begin}: stages run with fewer workers ({parts})"
