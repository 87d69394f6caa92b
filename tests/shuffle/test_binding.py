"""`resolve` turns bindings and their collections into sources, and refuses bad bindings."""

from __future__ import annotations

import pytest

from headrace.clock import COUNTER_BITS, TICKS_PER_SECOND, Clock
from headrace.errors import UsageError
from headrace.frontier import BindingTag
from headrace.journal.collection import Collection, define
from headrace.journal.names import selector
from headrace.shuffle.binding import Binding, Source, document_schema, resolve

COLLECTIONS = {
    each.name: each
    for each in (
        Collection(define("a", "id long, region string", key="id", partition_by="region")),
        Collection(define("b", "id long, text string")),
        Collection(define("c/d", "at timestamp, ratio double", key="at")),
    )
}


def resolved(*bindings: Binding, known: dict[int, str] | None = None) -> tuple[Source, ...]:
    tags = {BindingTag(tag): name for tag, name in (known or {}).items()}
    return resolve(bindings, COLLECTIONS, tags).all


def test_a_binding_takes_what_it_does_not_say_from_its_collection() -> None:
    (source,) = resolved(Binding(collection="a"))
    assert (source.tag, source.name, source.collection) == (0, "a", "a")
    assert source.key == ("id",)
    assert source.partition_by == ("region",)
    assert document_schema(source) == COLLECTIONS["a"].schema
    assert (source.lane, source.cohort, source.delay) == (0, 0, 0)
    assert source.selector.collection == "a"


def test_a_key_of_ones_own_replaces_that_of_the_collection() -> None:
    by_region, spread = resolved(
        Binding(collection="a", name="x", key=("region",)),
        Binding(collection="a", name="y", key=()),
    )
    assert by_region.key == ("region",)
    assert spread.key == ()


def test_tags_stay_with_names_wherever_a_binding_stands() -> None:
    known = {4: "a", 7: "gone", 2: "b"}
    sources = resolved(
        Binding(collection="c/d"),
        Binding(collection="b"),
        Binding(collection="a"),
        Binding(collection="a", name="again"),
        known=known,
    )
    assert [(s.name, s.tag) for s in sources] == [("c/d", 8), ("b", 2), ("a", 4), ("again", 9)]


def test_equal_priority_and_delay_make_a_cohort_and_equal_priority_a_lane() -> None:
    sources = resolved(
        Binding(collection="a", name="0"),
        Binding(collection="a", name="1", priority=5),
        Binding(collection="a", name="2", read_delay_s=1.5),
        Binding(collection="a", name="3", priority=5, read_delay_s=1.5),
        Binding(collection="a", name="4", priority=-1),
        Binding(collection="b", name="5"),
        Binding(collection="b", name="6", priority=5, read_delay_s=1.5),
    )
    assert [s.lane for s in sources] == [1, 0, 1, 0, 2, 1, 0]
    assert [s.cohort for s in sources] == [0, 1, 2, 3, 4, 0, 3]
    assert sources[2].delay == (TICKS_PER_SECOND * 3 // 2) << COUNTER_BITS


def test_a_journal_is_read_by_the_bindings_that_select_it() -> None:
    sources = resolve(
        [
            Binding(collection="a", name="all"),
            Binding(collection="a", name="eu", selector=selector("a", {"region": ["eu"]})),
            Binding(collection="a", name="rest", selector=selector("", None, {"region": ["eu"]})),
            Binding(collection="b"),
        ],
        COLLECTIONS,
        {},
    )
    assert [s.name for s in sources.of_journal("a/region=eu/0001")] == ["all", "eu"]
    assert [s.name for s in sources.of_journal("a/region=us/0001")] == ["all", "rest"]
    assert [s.name for s in sources.of_journal("b/0000")] == ["b"]
    assert sources.of_journal("c/d/0000") == []
    assert sources.of_journal("unknown/0000") == []


@pytest.mark.parametrize(
    ("bindings", "error"),
    [
        ([], "the task has no bindings; name at least one collection"),
        (
            [Binding(collection="a"), Binding(collection="b", name="a")],
            "two bindings are named 'a'; give each its own name",
        ),
        (
            [Binding(collection="no", name="x")],
            "binding 'x': there is no collection 'no'; create it, or correct the name",
        ),
        (
            [Binding(collection="a", read_delay_s=-1.0)],
            "binding 'a' has a read delay of -1.0 s; choose 0 to 31622400",
        ),
        (
            [Binding(collection="a", read_delay_s=float("nan"))],
            "binding 'a' has a read delay of nan s; choose 0 to 31622400",
        ),
        (
            [Binding(collection="a", not_before=Clock(2), not_after=Clock(1))],
            "binding 'a': its clock window ends before it begins; swap the two",
        ),
        (
            [Binding(collection="a", selector=selector("b"))],
            "binding 'a': its selector is for 'b'; select journals of 'a'",
        ),
    ],
)
# proves G13
def test_a_binding_that_cannot_be_is_refused_by_name(bindings: list[Binding], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolved(*bindings)
    assert str(refused.value) == error


@pytest.mark.parametrize("key", [("nothing",), ("ratio",)])
def test_a_key_that_cannot_be_hashed_is_refused(key: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=key[0]):
        resolved(Binding(collection="c/d", key=key))
