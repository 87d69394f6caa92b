"""How stages share slots: never more workers than there is room for, and one a stage or none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.spark.pipelines.slot_shares import (
    SLOTS,
    WorkerNeeds,
    describe,
    share_alone,
    share_slots,
)

EACH = st.fixed_dictionaries(
    {SLOTS: st.integers(1, 3)}, optional={"gpu": st.sampled_from([0.25, 0.5, 1, 2])}
)
NEEDS = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(WorkerNeeds, st.integers(1, 9), EACH), min_size=1
)
CAPACITY = st.fixed_dictionaries({SLOTS: st.integers(1, 40), "gpu": st.integers(0, 6)})


def held(needs: Mapping[str, WorkerNeeds], shares: Mapping[str, int], name: str) -> float:
    return sum(shares[stage] * needs[stage].each.get(name, 0) for stage in needs)


@given(NEEDS, CAPACITY)
def test_workers_never_need_more_than_there_is(
    needs: dict[str, WorkerNeeds], capacity: dict[str, float]
) -> None:
    shares = share_slots(needs, capacity)
    ones = dict.fromkeys(needs, 1)
    if shares is None:
        assert any(held(needs, ones, name) > capacity[name] for name in capacity)
        return
    assert shares.keys() == needs.keys()
    assert all(held(needs, shares, name) <= capacity[name] for name in capacity)
    assert all(1 <= shares[stage] <= needs[stage].workers for stage in needs)
    for stage in needs:
        more = {**shares, stage: shares[stage] + 1}
        is_full = shares[stage] == needs[stage].workers
        assert is_full or any(held(needs, more, name) > capacity[name] for name in capacity)


@given(NEEDS, CAPACITY)
def test_a_stage_that_runs_alone_gets_what_fits_or_is_refused(
    needs: dict[str, WorkerNeeds], capacity: dict[str, float]
) -> None:
    for stage, need in needs.items():
        try:
            count = share_alone(stage, need, capacity)
        except UsageError:
            assert any(need.each.get(name, 0) > capacity[name] for name in capacity)
        else:
            assert 1 <= count <= need.workers
            assert all(count * need.each.get(name, 0) <= capacity[name] for name in capacity)


def test_a_large_stage_gets_most() -> None:
    needs = {"small": WorkerNeeds(1), "large": WorkerNeeds(8)}
    assert share_slots(needs, {SLOTS: 5}) == {"small": 1, "large": 4}


def test_fractions_of_a_gpu_add_up_to_what_there_is() -> None:
    """0.1 + 0.1 + 0.1 is a little more than 0.3, and 0.3 / 0.1 a little less than 3."""
    needs = {"detect": WorkerNeeds(3, {SLOTS: 1, "gpu": 0.1})}
    assert share_slots(needs, {SLOTS: 8, "gpu": 0.3}) == {"detect": 3}
    assert share_alone("detect", needs["detect"], {SLOTS: 8, "gpu": 0.3}) == 3


def test_two_stages_share_the_gpus() -> None:
    """Otherwise the later one could hold all of them, and wait for the first for ever."""
    each = {SLOTS: 1, "gpu": 1}
    needs = {"detect": WorkerNeeds(2, each), "caption": WorkerNeeds(2, each)}
    assert share_slots(needs, {SLOTS: 8, "gpu": 2}) == {"detect": 1, "caption": 1}
    assert share_slots(needs, {SLOTS: 8, "gpu": 1}) is None


def test_one_line_says_how_stages_run() -> None:
    needs = {"call": WorkerNeeds(4), "keep": WorkerNeeds(1)}
    assert describe("j", needs, {"call": 4, "keep": 1}, {SLOTS: 5}) == ""
    assert describe("j", needs, {"call": 2, "keep": 1}, {SLOTS: 3}) == (
        "job j: 5 workers need 5 slots, and Spark has 3 slots free: stages run with fewer workers"
        " (call 2 of 4, keep 1 of 1)"
    )
    assert describe("j", needs, None, {SLOTS: 1}) == (
        "job j: 5 workers need 5 slots, and Spark has 1 slot free: the 2 stages run one after"
        " another"
    )
    models = {"detect": WorkerNeeds(4, {SLOTS: 1, "gpu": 0.5})}
    assert describe("j", models, {"detect": 2}, {SLOTS: 8, "gpu": 1}) == (
        "job j: 4 workers need 2 gpu, and Spark has 1 gpu free: stages run with fewer workers"
        " (detect 2 of 4)"
    )


def test_one_line_refuses_a_worker_that_no_executor_has_room_for() -> None:
    needs = WorkerNeeds(1, {SLOTS: 4, "gpu": 1})
    with pytest.raises(UsageError) as refused:
        share_alone("detect", needs, {SLOTS: 3, "gpu": 2})
    assert str(refused.value) == (
        "a worker of stage 'detect' needs 4 slots, and Spark has 3 slots free; give Spark's"
        " executors more, or the stage less in `resources`"
    )
