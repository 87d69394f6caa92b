"""A read shows one moment of one collection, whatever happens while it reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr
from headrace.errors import BehindRetentionError, UsageError
from headrace.journal.contract import JournalInfo
from tests.journal.conftest import column, documents


@pytest.fixture
def orders(owner: hr.Workspace) -> None:
    """Two collections with the same partitions."""
    for name in ("shop/orders", "shop/pay"):
        owner.collection(name, "n long, region string", partition_by="region")
        for n, region in enumerate(["asia", "eu", "us"]):
            owner.append(name, [{"n": n + 10 * (name == "shop/pay"), "region": region}])


@pytest.mark.parametrize(
    ("selector", "seen"),
    [
        (hr.selector(), [0, 1, 2]),
        (hr.selector(include={"region": ["eu", "us"]}), [1, 2]),
        (hr.selector(exclude={"region": ["eu"]}), [0, 2]),
        (hr.selector("shop/orders", include={"region": ["asia"]}), [0]),
        (hr.selector(include={"region": ["none"]}), []),
    ],
)
def test_a_selector_narrows_what_is_read_of_the_collection(
    workspace: hr.Workspace, orders: None, selector: hr.Selector, seen: list[int]
) -> None:
    assert column(workspace, "shop/orders", "n", selector=selector) == seen


# proves G27
@pytest.mark.parametrize("other", ["shop/pay", "shop", "none"])
def test_a_selector_of_another_collection_is_refused(
    workspace: hr.Workspace, orders: None, other: str
) -> None:
    with pytest.raises(
        UsageError, match=f"the selector is for '{other}', but the read is of 'shop/orders'"
    ):
        workspace.table("shop/orders", selector=hr.selector(other))


def at_the_cut(
    workspace: hr.Workspace, patch: pytest.MonkeyPatch, happens: Callable[[], None], *, first: bool
) -> None:
    """Call a function right before or right after the next read lists its journals."""
    cut = workspace.journals

    def disturbed(selector: hr.Selector | None = None) -> list[JournalInfo]:
        patch.setattr(workspace, "journals", cut)
        if first:
            happens()
        taken = cut(selector)
        if not first:
            happens()
        return taken

    patch.setattr(workspace, "journals", disturbed)


@pytest.mark.parametrize("first", [True, False], ids=["before the cut", "after the cut"])
def test_a_schema_may_grow_while_a_read_begins(
    owner: hr.Workspace, workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    owner.collection("c", "n long")
    owner.append("c", [{"n": 1}])

    def grow() -> None:
        owner.append(owner.collection("c", "n long, m long"), [{"n": 2, "m": 3}])

    at_the_cut(workspace, monkeypatch, grow, first=first)
    expected = [{"n": 1, "m": None}, {"n": 2, "m": 3}]
    assert documents(workspace, "c") == expected[: 2 if first else 1]
    assert documents(workspace, "c") == expected


def test_a_schema_may_grow_while_a_read_goes_on(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    owner.collection("c", "n long, p string", partition_by="p")
    owner.append("c", [{"n": n, "p": f"{n}"} for n in range(3)])
    reading = workspace.read("c")
    batches = [next(reading)]
    grown = owner.collection("c", "n long, p string, m long", partition_by="p")
    owner.append(grown, [{"n": 9, "p": "2", "m": 1}])
    batches += reading
    assert [batch.to_pylist() for batch in batches] == [[{"n": n, "p": f"{n}"}] for n in range(3)]


def filled(owner: hr.Workspace) -> None:
    """A collection of three partitions with three frames; retention keeps the last of each."""
    owner.collection("c", "n long, p string", partition_by="p", retention_bytes=1)
    for n in range(3):
        owner.append("c", [{"n": 10 * p + n, "p": f"{p}"} for p in range(3)])


# proves G2
def test_what_retention_removes_before_it_is_read_is_left_out_and_nothing_else(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    filled(owner)
    reading = workspace.read("c")
    first = [next(reading) for _ in range(3)]
    owner.maintain()
    seen = [batch["n"].to_pylist() for batch in [*first, *reading]]
    assert seen == [[0], [1], [2], [12], [22]]


def test_a_read_ends_at_its_cut_even_if_retention_has_passed_it(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    filled(owner)
    reading = workspace.read("c")
    first = [next(reading) for _ in range(3)]
    owner.append("c", [{"n": 98, "p": "1"}, {"n": 98, "p": "2"}])
    owner.append("c", [{"n": 99, "p": "1"}])
    owner.maintain()
    assert [batch["n"].to_pylist() for batch in [*first, *reading]] == [[0], [1], [2]]
    assert column(workspace, "c", "n") == [2, 99, 98]


def test_a_read_is_overtaken_by_retention_in_the_middle_of_a_journal(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner looks up a few entries at a time, and the second time they are gone."""
    monkeypatch.setattr("headrace.journal.local.owner._ENTRIES_AT_ONCE", 2)
    owner.collection("c", "n long", retention_bytes=1)
    for n in range(8):
        owner.append("c", [{"n": n}])
    reading = owner.read("c")
    first = [next(reading) for _ in range(2)]
    owner.maintain()
    assert [batch["n"].to_pylist() for batch in [*first, *reading]] == [[0], [1], [7]]


# proves G27
def test_who_says_where_to_start_is_told_that_it_was_removed(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    filled(owner)
    reading = workspace.read("c", start={"c/p=1/0000": 0})
    first = [next(reading) for _ in range(3)]
    owner.maintain()
    assert len(first) == 3
    with pytest.raises(BehindRetentionError, match="c/p=1/0000: offset 0 was removed"):
        list(reading)
