"""A name holds everything that a selector needs, and every partition value has a name."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.journal.names import (
    JournalName,
    check_collection_name,
    escape_value,
    parse_journal_name,
    selector,
    unescape_value,
)

# Leave out surrogates, which no UTF-8 string can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
COLLECTION = st.lists(st.from_regex(r"[A-Za-z._-][A-Za-z0-9._-]*", fullmatch=True), min_size=1).map(
    "/".join
)


@given(COLLECTION, st.dictionaries(TEXT, st.none() | TEXT, max_size=3), st.integers(0, 20_000))
def test_a_name_is_parsed_into_what_it_was_made_of(
    collection: str, values: dict[str, str | None], number: int
) -> None:
    escaped = tuple((field, escape_value(value)) for field, value in values.items())
    name = JournalName(collection, escaped, number)
    assert parse_journal_name(str(name)) == name
    assert {field: unescape_value(value) for field, value in name.partition} == values


@given(st.none() | TEXT, st.none() | TEXT)
def test_different_strings_have_different_escaped_values(
    one: str | None, other: str | None
) -> None:
    assert (escape_value(one) == escape_value(other)) is (one == other)
    assert "/" not in escape_value(one)
    assert escape_value(one).isascii()


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        (None, "%null"),
        ("", "%empty"),
        ("null", "null"),
        ("%null", "%25null"),
        ("%empty", "%25empty"),
        ("a/b=c", "a%2Fb%3Dc"),
        ("Zürich", "Z%C3%BCrich"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (-7, "-7"),
        (date(2026, 11, 15), "2026-11-15"),
    ],
)
def test_escaped_values_are_for_ever(value: object, escaped: str) -> None:
    assert escape_value(value) == escaped


def test_the_example_of_the_documentation() -> None:
    name = parse_journal_name("bank/debits/region=eu/day=2026-11-15/0003")
    assert name == JournalName("bank/debits", (("region", "eu"), ("day", "2026-11-15")), 3)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0000",
        "/0000",
        "a",
        "a/b",
        "a//0000",
        "a/x=1",
        "a/x=1/b/0000",
        "x=1/0000",
        "a/²",
        "a/-1",
    ],
)
def test_what_is_no_journal_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a journal's name"):
        parse_journal_name(name)


@pytest.mark.parametrize("name", ["a", "bank/debits", "a.b-c_d/E9", "2026/day"])
def test_collection_names(name: str) -> None:
    assert check_collection_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", "a b", "a=b", "ä", "a/007", "a" * 513]
)
def test_what_cannot_name_a_collection_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a collection"):
        check_collection_name(name)


def matches(include: dict[str, list[object]], exclude: dict[str, list[object]], name: str) -> bool:
    return selector("c", include, exclude).matches(parse_journal_name(name))


@pytest.mark.parametrize(
    ("include", "exclude", "matching"),
    [
        ({}, {}, {"eu", "us", "%null", "%empty"}),
        ({"region": ["eu"]}, {}, {"eu"}),
        ({"region": ["eu", None]}, {}, {"eu", "%null"}),
        ({"region": [""]}, {}, {"%empty"}),
        ({}, {"region": ["eu", ""]}, {"us", "%null"}),
        ({"region": ["eu", "us"]}, {"region": ["us"]}, {"eu"}),
        ({"region": []}, {}, set()),
        ({"other": ["eu"]}, {}, set()),
        ({}, {"other": ["eu"]}, {"eu", "us", "%null", "%empty"}),
    ],
)
def test_a_selector_decides_from_the_name_alone(
    include: dict[str, list[object]], exclude: dict[str, list[object]], matching: set[str]
) -> None:
    values = {"eu", "us", "%null", "%empty"}
    found = {v for v in values if matches(include, exclude, f"c/region={v}/0000")}
    assert found == matching


def test_a_selector_of_a_collection_takes_no_other() -> None:
    assert not selector("c").matches(parse_journal_name("c/d/0000"))
    assert not selector("c/d").matches(parse_journal_name("c/0000"))
    assert selector().matches(parse_journal_name("anything/0000"))


def test_one_string_in_place_of_a_list_of_values_is_refused() -> None:
    with pytest.raises(UsageError, match="give a list: \\['eu'\\]"):
        selector("c", {"region": "eu"})
