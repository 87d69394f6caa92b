"""How stages share slots: never more workers than slots, and one for each stage or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.pipelines.slot_shares import describe, share_slots

WORKERS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


@given(WORKERS, st.integers(1, 40))
def test_workers_are_never_more_than_slots(workers: dict[str, int], slots: int) -> None:
    shares = share_slots(workers, slots)
    if shares is None:
        assert slots < len(workers)
        return
    assert shares.keys() == workers.keys()
    assert sum(shares.values()) == min(slots, sum(workers.values()))
    assert all(1 <= shares[stage] <= workers[stage] for stage in workers)


def test_a_large_stage_gets_most() -> None:
    assert share_slots({"small": 1, "large": 8}, 5) == {"small": 1, "large": 4}


def test_one_line_says_how_stages_run() -> None:
    workers = {"call": 4, "keep": 1}
    assert describe("j", workers, {"call": 4, "keep": 1}, 5) == ""
    assert describe("j", workers, {"call": 2, "keep": 1}, 3) == (
        "job j: 5 workers need 5 slots, and Spark has 3 free: stages run with fewer workers"
        " (call 2 of 4, keep 1 of 1)"
    )
    assert describe("j", workers, None, 1).endswith(": the 2 stages run one after another")
